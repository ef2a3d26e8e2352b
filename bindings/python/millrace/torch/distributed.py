"""millrace schedules in PyTorch's own pipeline engine, torch.distributed.pipelining (torch 2.6 or later).

    stages = [PipelineStage(modules[i], i, plan.shape.stages, device) for i in stages_of_this_rank]
    runtime = schedule(plan, stages, n_microbatches=plan.shape.micro_batches, loss_fn=loss)
    runtime.step(inputs) if rank == 0 else runtime.step(target=targets, losses=losses)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from .._millrace import Program
from ..errors import InvalidArgument

__all__ = ["schedule"]


def schedule(
    plan: Program,
    stages: Sequence[Any],
    n_microbatches: int,
    loss_fn: Callable[..., torch.Tensor],
    **options: Any,
) -> _PipelineScheduleRuntime:
    """PyTorch's runtime, loaded with the passes of `plan`; it inserts sends and receives by itself.

    `stages` are the PipelineStages of this rank, in any order; `options` go to the runtime, such as
    scale_grads. Raises InvalidArgument, with a schedule that fits, where PyTorch would compute wrong
    gradients, and where stages or micro-batches are not those of the plan.
    """
    csv = plan.to_pytorch_csv()
    _require(stages != [], "stages: must be the PipelineStages of this rank")
    first, shape = stages[0], plan.shape
    _require(n_microbatches == shape.micro_batches,
             f"n_microbatches {n_microbatches}: the plan has {shape.micro_batches} micro-batches")
    _require(first.group_size == shape.ranks,
             f"group of {first.group_size} ranks: the plan has {shape.ranks}")
    _require(first.num_stages == shape.stages,
             f"num_stages {first.num_stages}: the plan has {shape.stages} stages")
    given = sorted(stage.stage_index for stage in stages)
    planned = [stage for stage, rank in enumerate(shape.placement[0]) if rank == first.group_rank]
    _require(given == planned, f"stages {given}: the plan has {planned} on rank {first.group_rank}")
    runtime = _PipelineScheduleRuntime(
        list(stages), n_microbatches=n_microbatches, loss_fn=loss_fn, **options)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(csv)
        file.flush()
        runtime._load_csv(file.name)
    return runtime


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidArgument(message)
