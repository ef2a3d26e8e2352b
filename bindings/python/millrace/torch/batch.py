"""A mini-batch as micro-batches: trees of tensors, cut by their rows."""

from __future__ import annotations

import zlib
from itertools import accumulate
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from ..errors import InvalidArgument
from .export import arguments_of
from .loss import Sink, UnitLoss, rows_of


class SinkLosses:
    """The losses that a stage leaves of a mini-batch, by micro-batch, and what they weigh."""

    def __init__(self, sink: Sink, weights: list[float], weight: float | None) -> None:
        self.sink, self.weights = sink, weights
        self.weight = sum(weights) if weight is None or sink.rule.is_mean else float(weight)
        self.of_unit: dict[int, UnitLoss] = {}

    def require_weight(self, found: float) -> None:
        """Raises InvalidArgument unless the losses weigh what gradients were divided by."""
        if abs(found - self.weight) > 1e-9 * self.weight:
            raise InvalidArgument(f"the losses of stage {self.sink.stage} weigh {found:g} in this step, its gradient was divided "
                                  f"by {self.weight:g}: give loss_weight, or step(weight=...)")


class MiniBatch:
    """What a step reads, and the losses that it leaves, by micro-batch. The first (samples modulo
    micro-batches) of them have one sample more."""

    def __init__(self, inputs: Any, targets: Any, count: int, sinks: list[Sink], weight: float | None,
                 predicts: bool = False) -> None:
        loss = sinks[-1].rule
        inputs = dict(inputs) if hasattr(inputs, "keys") else inputs  # transformers has a dict of its own
        if loss.labels is not None and isinstance(inputs, dict):
            found = inputs.pop(loss.labels, None)
            targets = found if targets is None else targets
        self.samples = rows_of(inputs)
        sizes = [self.samples // count + (at < self.samples % count) for at in range(count)]
        self.first_rows = [0, *accumulate(sizes[:-1])]
        given = _cut(inputs, self.samples, sizes)
        self.inputs = [arguments_of(part) for part in given]
        self.targets: list[Any] = [] if predicts else _cut(targets, self.samples, sizes)
        self.losses = [SinkLosses(sink, [sink.rule.weight(part if own is None else own)
                                         for part, own in zip(given, self.targets)], weight) for sink in sinks]
        self.outputs: dict[int, Any] = {}
        self._given = inputs, targets

    def digest(self) -> int:
        """Of the bytes that lie on the host: ranks compare it."""
        digest = 1
        for leaf in tree_leaves(self._given):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                digest = zlib.crc32(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy(), digest)
        return digest


def _cut(tree: Any, samples: int, sizes: list[int]) -> list[Any]:
    """The tree's rows, part after part. What is not a tensor is in every part."""
    if tree is None:
        return [None] * len(sizes)
    if isinstance(tree, torch.Tensor) and tree.dim() > 0 and len(tree) == samples:  # most often
        return list(tree.detach().split(sizes))
    leaves, shape = tree_flatten(tree)
    columns = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            columns.append([leaf] * len(sizes))
        elif len(leaf) != samples:
            raise InvalidArgument(f"a mini-batch of {samples} samples has a tensor of {len(leaf)} rows")
        else:
            columns.append(list(leaf.detach().split(sizes)))
    return [tree_unflatten([column[at] for column in columns], shape) for at in range(len(sizes))]


def joined(outputs: list[Any]) -> Any:
    """Outputs of micro-batches, one after another."""
    leaves = [tree_map_only(torch.Tensor, lambda one: one.detach(), one) for one in outputs]
    first = leaves[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(leaves)
    if isinstance(first, dict):
        return {key: joined([leaf[key] for leaf in leaves]) for key in first}
    return type(first)(joined([leaf[at] for leaf in leaves]) for at in range(len(first)))
