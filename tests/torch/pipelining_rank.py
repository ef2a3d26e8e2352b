"""One rank of PyTorch's pipeline engine over gloo, for test_distributed.py: runs many plans, and
compares losses and gradients with plain accumulation in this process.

usage: pipelining_rank.py RANK RANKS FOLDER; reads FOLDER/plans.json, writes FOLDER/rank-RANK.json
"""

import json
import pathlib
import sys

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

import millrace
from millrace.torch import distributed as engine

WIDTH, SAMPLES = 6, 3


def stage_modules(count):
    torch.manual_seed(count)
    return [nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH)) for _ in range(count)]


def batch(micro_batches, step):
    torch.manual_seed(100 * micro_batches + step)
    rows = micro_batches * SAMPLES
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


def gradients_of(modules):
    return [[p.grad.clone() for p in module.parameters()] for module in modules]


def plain(stages, micro_batches, step):
    """Losses and gradients by stage of one process that accumulates micro-batch by micro-batch."""
    modules = stage_modules(stages)
    inputs, targets = batch(micro_batches, step)
    losses = []
    for x, y in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches)):
        for module in modules:
            x = module(x)
        losses.append(nn.functional.mse_loss(x, y))
        losses[-1].backward()
    for module in modules:
        for p in module.parameters():
            p.grad.div_(micro_batches)
    return [loss.item() for loss in losses], gradients_of(modules)


def runtime_of(plan, file, stages):
    """From the plan, or from a file with messages that the command wrote."""
    if file is None:
        return engine.schedule(plan, stages, plan.shape.micro_batches, nn.functional.mse_loss)
    runtime = _PipelineScheduleRuntime(
        stages, n_microbatches=plan.shape.micro_batches, loss_fn=nn.functional.mse_loss)
    runtime._load_csv(file, format="compute_comms")
    return runtime


def run(plan, file, rank):
    """How the gradients of two steps on this rank compare: "equal", "close" or "wrong"."""
    shape = plan.shape
    mine = [stage for stage, where in enumerate(shape.placement[0]) if where == rank]
    modules = stage_modules(shape.stages)
    stages = [PipelineStage(modules[i], i, shape.stages, torch.device("cpu")) for i in mine]
    runtime = runtime_of(plan, file, stages)
    verdict = "equal"
    for step in range(2):
        inputs, targets = batch(shape.micro_batches, step)
        losses = []
        last = shape.stages - 1 in mine
        runtime.step(*([inputs] if 0 in mine else []), **({"target": targets, "losses": losses} if last else {}))
        expected_losses, expected = plain(shape.stages, shape.micro_batches, step)
        if last and [loss.item() for loss in losses] != expected_losses:
            return "wrong"
        for stage in mine:
            for got, want in zip(gradients_of([modules[stage]])[0], expected[stage]):
                if not torch.allclose(got, want, rtol=1e-4, atol=1e-6):
                    return "wrong"
                if not torch.equal(got, want):
                    verdict = "close"
            modules[stage].zero_grad()
    return verdict


def main():
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    verdicts = {}
    for name, (text, file) in json.loads((folder / "plans.json").read_text()).items():
        verdicts[name] = run(millrace.Program.from_plan(text), file, rank)
    (folder / f"rank-{rank}.json").write_text(json.dumps(verdicts))
    distributed.barrier()
    distributed.destroy_process_group()


main()
