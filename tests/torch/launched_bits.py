"""Trains many models as one rank of several: `launched_bits.py FILE`, a JSON list of (model, schedule,
ranks, precision, recompute). Rank 0 prints a line of JSON with the results."""

import dataclasses
import json
import sys
from pathlib import Path

import torch
from models import piped, program_of

import millrace

torch.set_num_threads(1)
here = millrace.join_launch()
results = [dataclasses.asdict(piped(model, program_of(schedule, ranks), "ranks", precision, recompute))
           for model, schedule, ranks, precision, recompute in json.loads(Path(sys.argv[1]).read_text())]
if here.rank == 0:
    print("results", json.dumps(results), flush=True)
