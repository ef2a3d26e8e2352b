"""What options of a Pipeline may be."""

from __future__ import annotations

import inspect
from typing import Any, Optional

import torch

from .._millrace import Program, generate
from ..errors import InvalidArgument
from ..keywords import refuse_unknown

_PRECISIONS = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}


def dtype_of(precision: str) -> Optional[torch.dtype]:
    """What autocast casts to."""
    if precision not in _PRECISIONS:
        raise InvalidArgument(f"precision '{precision}': must be {', '.join(_PRECISIONS)}")
    return _PRECISIONS[precision]


def refuse(unknown: dict[str, Any], pipeline: type) -> None:
    """Raises InvalidArgument for an option that a Pipeline does not have, with the nearest that it has."""
    names = [name for name in inspect.signature(pipeline.__init__).parameters if name not in ("self", "unknown")]
    for name in unknown:
        if name in ("lr", "betas", "eps", "momentum", "weight_decay"):
            raise InvalidArgument(f"Pipeline has no argument '{name}': the optimizer has it, "
                                  f"optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3)")
        refuse_unknown("Pipeline", name, names)


def program_of(schedule: str | Program, ranks: int | None, micro_batches: int | None, chunks: int | None) -> Program:
    """A schedule's; raises InvalidArgument for sizes that it does not have."""
    if isinstance(schedule, str):
        schedule = generate(schedule, 4 if ranks is None else ranks, 8 if micro_batches is None else micro_batches,
                            chunks=chunks)
    for name, given in (("ranks", ranks), ("micro_batches", micro_batches), ("chunks", chunks)):
        if given not in (None, getattr(schedule.shape, name)):
            raise InvalidArgument(f"{name} {given}: the program has {getattr(schedule.shape, name)}")
    if schedule.shape.slices > 1:
        raise InvalidArgument(f"the schedule has {schedule.shape.slices} slices per micro-batch: modules of PyTorch take "
                              "whole sequences; use a schedule without slices")
    return schedule
