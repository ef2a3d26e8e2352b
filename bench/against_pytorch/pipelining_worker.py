"""One rank of a step that torch_pipelining.py times: `pipelining_worker.py ENGINE SCHEDULE JOB STEPS`. ENGINE: plain (one
process), torch (torch.distributed.pipelining over gloo), millrace, floor (each rank's passes alone, nothing sent). Rank 0
prints the seconds of every step as JSON."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, positions, width = x.shape
        q, k, v = self.mix(self.before(x)).view(rows, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, positions, width))
        return x + self.mlp(self.between(x))


class Embedding(nn.Module):
    def __init__(self, words: int, context: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids) + self.places.weight


def stages_of(job: dict, count: int) -> list:
    """The GPT in so many stages: the same weights however many."""
    torch.manual_seed(1)
    width = job["width"]
    blocks = [Block(width, job["heads"]) for _ in range(job["layers"])]
    first = Embedding(job["words"], job["context"], width)
    last = [nn.LayerNorm(width), nn.Linear(width, job["words"])]
    share = job["layers"] // count
    parts = [blocks[at * share : (at + 1) * share] for at in range(count)]
    parts[0] = [first, *parts[0]]
    parts[-1] = [*parts[-1], *last]
    return [nn.Sequential(*part) for part in parts]


def batch_of(job: dict) -> tuple:
    ids = torch.randint(job["words"], (job["micro_batches"] * job["rows"], job["context"] + 1),
                        generator=torch.Generator().manual_seed(2))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def optimizer_of(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 3e-4, weight_decay=0.1, fused=True)


def plain(job: dict, schedule: str):
    torch.set_num_threads(int(schedule))
    model = nn.Sequential(*stages_of(job, 1))
    optimizer = optimizer_of(list(model.parameters()))
    inputs, targets = batch_of(job)

    def step() -> None:
        optimizer.zero_grad()
        for x, y in zip(inputs.chunk(job["micro_batches"]), targets.chunk(job["micro_batches"])):
            (loss_of(model(x), y) / job["micro_batches"]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return step


def in_torch(job: dict, schedule: str):
    from torch.distributed import pipelining
    from torch.distributed.pipelining import schedules

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    one_stage = schedule in ("GPipe", "1F1B")
    modules = stages_of(job, world if one_stage else 2 * world)
    numbers = [rank] if one_stage else ([rank, rank + world] if schedule.startswith("Interleaved") else
                                        [rank, 2 * world - 1 - rank])
    stages = [pipelining.PipelineStage(modules[at], at, len(modules), torch.device("cpu")) for at in numbers]
    engine = schedules.get_schedule_class(schedule)(stages[0] if one_stage else stages, job["micro_batches"], loss_fn=loss_of)
    parameters = [one for at in numbers for one in modules[at].parameters()]
    optimizer = optimizer_of(parameters)
    inputs, targets = batch_of(job)
    is_last = len(modules) - 1 in numbers

    def step() -> None:
        optimizer.zero_grad()
        engine.step(*([inputs] if 0 in numbers else []), **({"target": targets} if is_last else {}))
        squares = torch.stack([one.grad.pow(2).sum() for one in parameters]).sum()
        dist.all_reduce(squares)
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, squares.sqrt())
        optimizer.step()
    return step


def in_millrace(job: dict, schedule: str):
    import millrace.torch

    name, _, executor = schedule.partition("/")
    plan = millrace.generate(name, 2, job["micro_batches"])
    modules = stages_of(job, plan.shape.stages)
    pipeline = millrace.torch.Pipeline(
        modules, loss=lambda outputs, targets: F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum"),
        loss_weight=torch.Tensor.numel, schedule=plan, clip_norm=1.0, executor=executor or "flow-graph",
        optimizer=optimizer_of([one for module in modules for one in module.parameters()]))
    inputs, targets = batch_of(job)
    return lambda: pipeline.step(inputs, targets)


def floor(job: dict, schedule: str):
    """What each of two processes has to compute, with nothing sent and nobody waited for."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    module = stages_of(job, 2)[rank]
    parameters = list(module.parameters())
    optimizer = optimizer_of(parameters)
    inputs, targets = batch_of(job)
    hidden = torch.randn(job["rows"], job["context"], job["width"])

    def step() -> None:
        optimizer.zero_grad()
        for x, y in zip(inputs.chunk(job["micro_batches"]), targets.chunk(job["micro_batches"])):
            if rank == 0:
                module(x).backward(hidden)
            else:
                (loss_of(module(hidden.detach().requires_grad_()), y) / job["micro_batches"]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        dist.barrier()
    return step


def main() -> None:
    engine, schedule, text, steps = sys.argv[1:]
    torch.set_num_threads(1)
    step = {"plain": plain, "torch": in_torch, "millrace": in_millrace, "floor": floor}[engine](json.loads(text), schedule)
    seconds = []
    for _ in range(int(steps) + 2):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if engine == "millrace":
        from millrace import launch

        is_first = launch.place().rank == 0
    if is_first:
        print(json.dumps(seconds[2:]))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
