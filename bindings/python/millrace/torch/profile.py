"""Measured costs of a model's stages, in the form that simulate, search and sweep read."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.utils._pytree import tree_leaves

from .._millrace import Costs, Shape
from ..errors import InvalidArgument
from .export import arguments_of
from .loss import LossRule, loss_rule
from .partition import Model, Partition, Split
from .stage import Bytes, ModuleStage, StepInput


def profile(model: Model, example: Any, targets: Any = None, *, loss: Optional[Callable[..., Any]] = None, ranks: int = 4,
            chunks: int = 1, split: Split = "even", precision: Optional[torch.dtype] = None, tie: bool = False,
            repeats: int = 5, file: Optional[str] = None) -> Costs:
    """Seconds of F, I and W of each stage for one micro-batch, `example`, in one torch thread: the fastest
    of `repeats` after a first; `message_bytes` is by boundary; `memory_...` are bytes of what
    a stage keeps of a micro-batch. Writes them into `file`, a cost
    file, and returns them: `plan.simulate(costs=millrace.torch.profile(model, example))`. Without `loss`
    the last stage's is the sum of its outputs. The model keeps its weights, gradients and buffers."""
    if repeats < 1:
        raise InvalidArgument(f"repeats {repeats}: must be at least 1")
    shape = Shape(ranks, 1, list(range(ranks)) * chunks)
    partition = Partition(model, split, shape, tie, example)
    rule = loss_rule(_sum if loss is None else loss, None)
    stages = []
    for number in range(shape.stages):
        one = partition.stage(0, number)
        stages.append(ModuleStage(one.call, [one.module], number, has_loss=number + 1 == shape.stages,
                                  chained=one.chained, loss=rule, precision=precision))
    kept = [(one, one.grad) for stage in partition.hosted().values() for one in stage.parameters.values()]
    buffers = [(one, one.clone()) for stage in partition.hosted().values() for one in stage.module.buffers()]
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng():
            rounds = [_round(stages, example, targets, rule) for _ in range(repeats + 1)][1:]
            for stage in stages:
                stage.bytes = Bytes()
            memory = _round(stages, example, targets, rule)[2]  # apart: counting takes time
    finally:
        torch.set_num_threads(threads)
        for parameter, gradient in kept:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    return _as_costs(ranks, chunks, rounds, memory, file)


def _sum(outputs: Any, targets: Any = None) -> torch.Tensor:
    leaves = [one for one in tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.is_floating_point()]
    return torch.stack([one.float().sum() for one in leaves]).sum()


def _round(stages: list[ModuleStage], example: Any, targets: Any, rule: LossRule) -> tuple[dict[str, list[float]], list[int], dict[str, list[int]]]:
    """Seconds by kind of pass and stage, the bytes of boundaries, and of what stages keep, where they count."""
    weight = rule.weight(example if targets is None else targets)
    run = StepInput(inputs=[arguments_of(example)], targets=[targets], weights=[weight], weight=weight)
    seconds: dict[str, list[float]] = {"forward": [], "input": [0.0] * len(stages), "weight": [0.0] * len(stages)}
    values: Any = ()
    sent = []
    kept = {"memory_forward": [], "memory_input": [0] * len(stages), "memory_weight": [0] * len(stages)}
    for stage in stages:
        stage.run = run
        began = time.perf_counter()
        values = stage.forward(0, False, *values)
        seconds["forward"].append(time.perf_counter() - began)
        kept["memory_forward"].append(_now(stage))
        sent.append(sum(one.numel() * one.element_size() for one in values if one is not None))
    gradients: Any = ()
    for stage in reversed(stages):
        began = time.perf_counter()
        gradients = stage.backward_input(0, *gradients)
        between, held = time.perf_counter(), _now(stage)
        stage.backward_weight(0)
        seconds["input"][stage.number] = between - began
        seconds["weight"][stage.number] = time.perf_counter() - between
        kept["memory_input"][stage.number] = held - kept["memory_forward"][stage.number]
        kept["memory_weight"][stage.number] = _now(stage) - held
    return seconds, sent[:-1], kept


def _now(stage: ModuleStage) -> int:
    return stage.bytes.now if stage.bytes is not None else 0


def _as_costs(ranks: int, chunks: int, rounds: list[Any], memory: dict[str, list[int]], file: Optional[str]) -> Costs:
    """The fastest of the rounds, by way of a cost file."""
    document: dict[str, Any] = {"millrace_costs": 1, "unit": "s", "ranks": ranks, "chunks": chunks, "slices": 1}
    for kind in rounds[0][0]:
        document[kind] = [min(times) for times in zip(*(one[kind] for one, *_ in rounds))]
    document |= {"message_bytes": rounds[0][1], **memory}
    text = json.dumps(document, indent=1) + "\n"
    if file is not None:
        with open(file, "w") as stream:
            stream.write(text)
        return Costs(file=file)
    handle, path = tempfile.mkstemp(suffix=".json")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        return Costs(file=path)
    finally:
        os.unlink(path)
