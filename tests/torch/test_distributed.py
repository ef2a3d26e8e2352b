"""millrace's schedules in PyTorch's pipeline engine: gradients against plain accumulation."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

import millrace
from millrace.torch import distributed as engine

WORKER = pathlib.Path(__file__).with_name("pipelining_rank.py")
SOAK = bool(os.environ.get("MILLRACE_SOAK"))
COUNTS = {2: (3, 4, 8, 9) if SOAK else (4,), 4: (3, 8, 12, 17) if SOAK else (8,)}
FEW = {"gpipe", "zb-h1", "interleaved", "bfs-lifo", "zb-v", "v-half", "dualpipe-v", "wave"}  # of 4 ranks, outside the soak


def fitting(ranks, micro_batches):
    """Every schedule of the catalogue that PyTorch runs, and searched ones, by name."""
    plans = {}
    for entry in millrace.schedules():
        if ranks == 4 and not SOAK and entry.name not in FEW:
            continue
        try:
            plan = millrace.generate(entry.name, ranks=ranks, micro_batches=micro_batches)
            plan.to_pytorch_csv()
        except millrace.InvalidArgument:
            continue
        plans[plan.name] = plan
    for chunks in (1, 2):
        found = millrace.search(ranks=ranks, micro_batches=micro_batches, chunks=chunks, memory_limit=3, budget=500,
                                bidirectional=False)
        plans[f"searched v={chunks} m={micro_batches}"] = found.best.program
    return plans


def with_messages(ranks, micro_batches, folder):
    """Files that `show --comms --csv` writes, and whether their messages arrive where they are expected."""
    kinds = [(name, "--comms") for name in ("1f1b", "interleaved", "v-half", "dualpipe-v")]
    for name, comms in [*kinds, ("1f1b", "--comms=before-use"), ("zb-v", "--comms=before-use")]:
        plan = millrace.generate(name, ranks=ranks, micro_batches=micro_batches)
        file = folder / f"{name}-{micro_batches}{comms}.csv"
        subprocess.run([os.environ["MILLRACE_COMMAND"], "show", name, "-p", str(ranks), "-m", str(micro_batches),
                        comms, "--csv", str(file)], check=True)
        yield f"{plan.name} {comms}", plan, file


def compared(ranks, folder):
    """Plans by name, those of them that swap messages, and what each rank finds of its gradients."""
    plans, swapped, given = {}, set(), {}
    for micro_batches in COUNTS[ranks]:
        for name, plan in fitting(ranks, micro_batches).items():
            plans[name], given[name] = plan, (plan.to_plan(), None)
        if micro_batches >= 2 * ranks:
            for name, plan, file in with_messages(ranks, micro_batches, folder):
                plans[name], given[name] = plan, (plan.to_plan(), str(file))
                if millrace.Program.read(file).verify(transport="fifo"):
                    swapped.add(name)
    (folder / "plans.json").write_text(json.dumps(given))
    processes = [subprocess.Popen([sys.executable, WORKER, str(rank), str(ranks), folder]) for rank in range(ranks)]
    try:
        assert [process.wait(timeout=500) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return plans, swapped, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_are_those_of_plain_accumulation(ranks, tmp_path):
    plans, swapped, verdicts = compared(ranks, tmp_path)

    for name, plan in plans.items():
        allowed = {"equal"} if plan.accumulation().ascending else {"equal", "close"}
        found = {verdict[name] for verdict in verdicts}
        assert "wrong" in found if name in swapped else found <= allowed, name
    assert swapped and all(name.startswith("zb-v") for name in swapped)
    orders = [plan.accumulation().ascending for plan in plans.values()]
    assert orders.count(True) >= (20 if ranks == 2 or SOAK else 12) and orders.count(False) >= 1


def stage(index, *, rank=0, ranks=2, count=2):
    return types.SimpleNamespace(stage_index=index, group_rank=rank, group_size=ranks, num_stages=count)


@pytest.mark.parametrize("stages, micro_batches, message", [
    ([stage(0)], 8, "n_microbatches 8: the plan has 4 micro-batches"),
    ([stage(0, ranks=4)], 4, "group of 4 ranks: the plan has 2"),
    ([stage(0, count=3)], 4, "num_stages 3: the plan has 2 stages"),
    ([stage(1)], 4, r"stages \[1\]: the plan has \[0\] on rank 0"),
    ([], 4, "stages: must be the PipelineStages of this rank"),
])
def test_what_is_not_of_the_plan_is_rejected(stages, micro_batches, message):
    plan = millrace.generate("1f1b", ranks=2, micro_batches=4)
    with pytest.raises(millrace.InvalidArgument, match=message):
        engine.schedule(plan, stages, micro_batches, None)


def test_a_schedule_that_does_not_fit_is_rejected_first():
    plan = millrace.generate("dualpipe", ranks=2, micro_batches=4)
    with pytest.raises(millrace.InvalidArgument, match="one replica of the model; nearest: dualpipe-v"):
        engine.schedule(plan, [], 4, None)
