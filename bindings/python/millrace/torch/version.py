"""Whether this PyTorch does what the split of a backward pass relies on. 2.13 is tested; any other one is tried once."""

from __future__ import annotations

import functools

import torch
from torch import nn

from ..errors import Error

TESTED = "2.13"


@functools.cache
def require_torch() -> None:
    """Raises Error, naming the version, where the two halves differ from one backward pass."""
    if torch.__version__.startswith(f"{TESTED}."):
        return
    try:
        fits = splits_right()
    except Exception as failure:
        raise Error(f"torch {torch.__version__} cannot split a backward pass ({failure}): use {TESTED}") from failure
    if not fits:
        raise Error(f"torch {torch.__version__} changes the bits of a split backward pass: use {TESTED}")


def splits_right() -> bool:
    """Takes some milliseconds, and leaves the generators as they are."""
    from .split_backward import SplitBackward

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = nn.LayerNorm(8)
        block = nn.Sequential(nn.Linear(8, 8), norm, nn.GELU(), nn.Linear(8, 8), norm)
        rows = torch.randn(3, 4, 8)
    found = []
    for splits in (False, True):
        block.zero_grad()
        inputs = [row.clone().requires_grad_() for row in rows]
        for one in inputs:
            output = block(one) * one
            if splits:
                halves = SplitBackward([output], [torch.ones_like(output)], [one])
                one.grad = halves.input_gradients[0]
                halves.weight()
            else:
                output.backward(torch.ones_like(output))
        found.append([one.grad.clone() for one in (*inputs, *block.parameters())])
    return all(torch.equal(whole, halves) for whole, halves in zip(*found))
