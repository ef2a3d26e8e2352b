#!/usr/bin/python3
"""The same nn modules in PyTorch's pipeline engine and in millrace.torch: `./run bench --torch-pipelining [--rounds N]
[--only small,long,large]`. Two processes (or threads) of one torch thread each, equal malloc settings, in turns.
Prints milliseconds a step, the least of the rounds' medians, and ratios to the best of PyTorch's engine, to plain PyTorch and to the floor."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
WORKER = str(TOP / "bench/against_pytorch/pipelining_worker.py")
COMMAND = str(pathlib.Path(sys.executable).with_name("millrace"))
JOBS = {
    "small": {"layers": 4, "width": 128, "heads": 4, "context": 64, "rows": 4, "micro_batches": 8, "words": 96},
    "long": {"layers": 4, "width": 128, "heads": 4, "context": 64, "rows": 4, "micro_batches": 32, "words": 96},
    "large": {"layers": 8, "width": 256, "heads": 8, "context": 128, "rows": 4, "micro_batches": 8, "words": 96},
}
STEPS = {"small": 13, "long": 7, "large": 5}
RUNS = [("plain", "1"), ("plain", "2"), ("floor", "two processes"),
        *(("torch", name) for name in ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")),
        *(("millrace", name) for name in ("1f1b", "zb-h1", "zb-v", "dualpipe-v")),
        *(("millrace", name) for name in ("1f1b/flow-graph", "zb-v/flow-graph"))]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1",
               "MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


def seconds_of(engine: str, schedule: str, name: str) -> list:
    """Of each step."""
    line = [sys.executable, WORKER, engine, schedule, json.dumps(JOBS[name]), str(STEPS[name])]
    if engine in ("torch", "floor"):
        line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611", *line[1:]]
    elif engine == "millrace" and "/" not in schedule:
        line = [COMMAND, "launch", "-n", "2", "--", *line]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": schedule} if engine == "plain" else ENVIRONMENT
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{engine} {schedule}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(next(one for one in done.stdout.splitlines() if one.startswith("[")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(JOBS))
    asked = parser.parse_args()
    for name in asked.only.split(","):
        found: dict = {run: [] for run in RUNS}
        for _ in range(asked.rounds):
            for run in RUNS:
                found[run].append(1000 * statistics.median(seconds_of(*run, name)))
        least = {run: min(medians) for run, medians in found.items()}
        best = min(value for (engine, _), value in least.items() if engine == "torch")
        floor = least["floor", "two processes"]
        print(f"\n{name}: {JOBS[name]}")
        print(f"{'':34}{'ms':>9}{'of best torch':>15}{'of plain 1':>12}{'of floor':>10}")
        for (engine, schedule), value in least.items():
            print(f"{engine + ' ' + schedule:34}{value:9.1f}{best / value:14.2f}x{least['plain', '1'] / value:11.2f}x{value / floor:10.2f}",
                  flush=True)


if __name__ == "__main__":
    main()
