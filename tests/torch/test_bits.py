"""Weights, buffers, losses and norms of a Pipeline have the bits of a plain loop in one torch thread, for
every schedule whose gradients are added in ascending order; others have equal bits in every executor
and number of processes. Every pair of settings is tested; MILLRACE_SOAK=1 runs all combinations."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import millrace
import pytest
import torch
from models import CASES, Result, covering, piped, plain, program_of

torch.set_num_threads(1)
HERE = Path(__file__).parent
COMMAND = os.environ.get("MILLRACE_COMMAND", str(HERE.parents[1] / "build/release/millrace"))
SOAK = os.environ.get("MILLRACE_SOAK") == "1"
RANKS = (1, 2, 3, 4)
PRECISIONS, RECOMPUTES = ("f32", "bf16"), (False, True)

program = functools.lru_cache(None)(program_of)


def runs(schedule: str, ranks: int) -> bool:
    return program(schedule, ranks) is not None


def _schedules(ascending: bool) -> list[str]:
    whole = [(one.name, program_of(one.name, 2)) for one in millrace.schedules()]
    return [name for name, made in whole if made is not None and not made.shape.forward_only and made.shape.slices == 1
            and made.accumulation().ascending == ascending]


ASCENDING, OTHERS = _schedules(True), _schedules(False)


def chosen(factors, allowed):
    if SOAK:
        return [case for case in itertools.product(*factors) if allowed(*case)]
    return covering(factors, allowed)


@functools.lru_cache(None)
def reference(model: str, micro_batches: int, stages: int, precision: str) -> Result:
    return plain(model, micro_batches, stages, precision)


def expected(model: str, made, precision: str) -> Result:
    stages = made.shape.stages if model in ("dropout", "gpt") else 1  # others do not depend on them
    return reference(model, made.shape.micro_batches, stages, precision)


IN_PROCESS = chosen((ASCENDING, list(CASES), RANKS, ("sequential", "flow-graph", "ranks"), PRECISIONS, RECOMPUTES),
                    lambda schedule, model, ranks, *_: runs(schedule, ranks))


def test_schedules_are_all_that_add_in_ascending_order():
    assert len(ASCENDING) == 21 and OTHERS == ["gpipe-lifo", "bfs-lifo", "dualpipe", "stp", "chimera", "bitpipe"]


@pytest.mark.parametrize("schedule", ASCENDING)
def test_a_pipeline_has_the_bits_of_a_plain_loop(schedule):
    cases = [case for case in IN_PROCESS if case[0] == schedule]
    assert cases
    wrong = []
    for _, model, ranks, executor, precision, recompute in cases:
        made = program(schedule, ranks)
        if piped(model, made, executor, precision, recompute) != expected(model, made, precision):
            wrong.append((model, ranks, executor, precision, recompute))
    assert wrong == []


def launched(tmp_path: Path, ranks: int, cases: list) -> list[Result]:
    """Of (model, schedule, ranks, precision, recompute), all in one job."""
    given = tmp_path / "cases.json"
    given.write_text(json.dumps(cases))
    ran = subprocess.run([COMMAND, "launch", "-n", str(ranks), "--", sys.executable, str(HERE / "launched_bits.py"), str(given)],
                         capture_output=True, text=True, timeout=3600 if SOAK else 300)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    line = next(line for line in ran.stdout.splitlines() if "results [" in line)
    return [Result(**one) for one in json.loads(line[line.index("results [") + 8 :])]


@pytest.mark.parametrize("ranks", (2, 4))
def test_processes_have_the_bits_of_a_plain_loop(ranks, tmp_path):
    cases = [(model, schedule, ranks, precision, recompute) for schedule, model, precision, recompute in chosen(
        (ASCENDING, list(CASES), PRECISIONS, RECOMPUTES), lambda schedule, *_: runs(schedule, ranks))]
    if not SOAK:  # every schedule has met every model in one process
        cases = cases[:: 3 if ranks == 2 else 6]
    found = launched(tmp_path, ranks, cases)
    wrong = [case for case, one in zip(cases, found) if one != expected(case[0], program(case[1], ranks), case[3])]
    assert len(found) == len(cases) and wrong == []


def _other_cases(ranks: int) -> list:
    # two replicas of running statistics are refused
    return [(model, schedule, ranks, precision, recompute) for model, schedule, precision, recompute in itertools.product(
        CASES if SOAK or ranks == 2 else ("gpt", "dropout"), OTHERS, PRECISIONS if SOAK else ("f32",),
        RECOMPUTES if SOAK else (False,))
        if runs(schedule, ranks) and not (model == "cnn" and program(schedule, ranks).shape.replicas > 1)]


@pytest.mark.parametrize("ranks", (2, 4))
def test_other_schedules_have_equal_bits_everywhere(ranks, tmp_path):
    cases = _other_cases(ranks)
    found, wrong = launched(tmp_path, ranks, cases), []
    for (model, schedule, _, precision, recompute), apart in zip(cases, found):
        made = program(schedule, ranks)
        alone = [piped(model, made, executor, precision, recompute) for executor in ("sequential", "flow-graph", "ranks")]
        if any(one != apart for one in alone):
            wrong.append((model, schedule, precision, recompute))
    assert len(found) == len(cases) and wrong == []
