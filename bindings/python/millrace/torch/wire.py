"""Tensors as bytes between processes: any dtype, shape and device."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch


def pack(objects: list[Any]) -> list[np.ndarray]:
    """The bytes of each tensor, behind a header that describes them all. None stays None."""
    head, arrays = [], []
    for one in objects:
        if one is None:
            head.append(None)
            continue
        head.append((str(one.dtype)[6:], tuple(one.shape), one.requires_grad))
        arrays.append(one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return [np.frombuffer(json.dumps(head).encode(), np.uint8), *arrays]


def unpack(arrays: list[np.ndarray]) -> tuple[torch.Tensor | None, ...]:
    """What pack() was given, on the CPU."""
    rest = iter(arrays[1:])
    objects = []
    for described in json.loads(arrays[0].tobytes()):
        if described is None:
            objects.append(None)
            continue
        dtype, shape, requires_grad = described
        tensor = torch.from_numpy(next(rest)).view(getattr(torch, dtype)).reshape(shape)
        objects.append(tensor.requires_grad_(requires_grad))
    return tuple(objects)
