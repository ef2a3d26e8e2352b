"""A loss of PyTorch as a pipeline needs it: a sum over a micro-batch, and what it weighs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Union

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import InvalidArgument

# Means over the elements of the output.
_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
# Means over targets that are numbers of classes.
_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)

Count = Union[float, torch.Tensor]


@dataclass
class UnitLoss:
    """Of one micro-batch. What is a tensor is read at the end of the step."""

    sum: torch.Tensor
    weight: Count
    right: Count = 0
    evaluated: Count = 0


def rows_of(tree: Any) -> int:
    """Samples of a batch: the rows of its first tensor."""
    for leaf in (tree,) if isinstance(tree, torch.Tensor) else tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return len(leaf)
    raise InvalidArgument("a mini-batch has no tensor with a row per sample")


def rows(tree: Any, part: Any) -> Any:
    """Those rows of every tensor of a batch."""
    return tree_map_only(torch.Tensor, lambda one: one[part] if one.dim() > 0 else one, tree)


class LossRule:
    """A user's callable of outputs and targets, and of what it will weigh."""

    labels: str | None = None  # the name of the targets among the inputs
    is_mean = False  # a mean has its own weight

    def __init__(self, loss: Callable[..., Any], weight: Callable[[Any], Count] | None) -> None:
        self._loss, self._weight = loss, weight
        self._is_checked = False

    def weight(self, targets: Any) -> float:
        """Of a micro-batch, before it runs: the number of its samples unless set."""
        return float(rows_of(targets) if self._weight is None else self._weight(targets))

    def of_unit(self, outputs: Any, targets: Any, weight: float) -> UnitLoss:
        """`weight`: what weight() said of the targets."""
        loss = self._made(outputs, targets, weight)
        if not self._is_checked and not loss.sum.is_meta:
            self._is_checked = True
            self._require_sum(loss, outputs, targets)
        return loss

    def _made(self, outputs: Any, targets: Any, weight: float) -> UnitLoss:
        given = self._loss(outputs) if targets is None else self._loss(outputs, targets)
        if isinstance(given, torch.Tensor) and given.dim() == 0:
            return UnitLoss(given, weight)
        parts = given if isinstance(given, tuple) else (given, weight)
        if len(parts) not in (2, 4) or not isinstance(parts[0], torch.Tensor) or parts[0].dim() > 0:
            raise TypeError("a loss must return its sum, (sum, weight) or (sum, weight, right, evaluated); "
                            "the sum is a tensor of one number")
        return UnitLoss(*parts)

    def _require_sum(self, loss: UnitLoss, outputs: Any, targets: Any) -> None:
        """Raises InvalidArgument for a mean: the loss of a micro-batch against those of its halves."""
        count = rows_of(outputs)
        if count < 2 or targets is None:
            return
        halves = []
        state = torch.get_rng_state()
        try:
            for part in (slice(count // 2), slice(count // 2, None)):
                some = rows(tree_map_only(torch.Tensor, torch.Tensor.detach, (outputs, targets)), part)
                with torch.no_grad():
                    half = self._made(some[0], some[1], self.weight(some[1]))
                halves.append((float(half.sum), float(half.weight)))
        except Exception:  # a loss that takes whole micro-batches alone
            return
        finally:
            torch.set_rng_state(state)
        total, weight = float(loss.sum.detach()), float(loss.weight)
        least, most = sorted(half for half, _ in halves)
        slack = 1e-3 * max(abs(least), abs(most))
        adds_up = abs(halves[0][1] + halves[1][1] - weight) <= 1e-6 * abs(weight)
        if adds_up and least - slack <= total <= most + slack and abs(total - least - most) > 2 * slack:
            raise InvalidArgument(
                f"the loss is a mean: {total:g} over {count} samples, {halves[0][0]:g} and {halves[1][0]:g} over "
                "their halves; return the sum (reduction='sum'), with loss_weight where it is not per sample"
            )


class _ClassMean(LossRule):
    """A mean over targets that count: their sum and number."""

    is_mean = True

    def __init__(self, module: Any) -> None:
        super().__init__(_summed(module), lambda targets: (targets != module.ignore_index).sum())

    def of_unit(self, outputs: Any, targets: Any, weight: float) -> UnitLoss:
        if targets.is_floating_point():
            raise TypeError("a mean over class probabilities: targets must be class numbers, or use reduction='sum'")
        loss = super().of_unit(outputs, targets, weight)
        if not torch.is_grad_enabled():
            loss.right, loss.evaluated = (outputs.argmax(1) == targets).sum(), weight
        return loss


class _ElementMean(LossRule):
    """A mean over elements: their sum and number."""

    is_mean = True

    def __init__(self, module: Any) -> None:
        super().__init__(_summed(module), lambda targets: targets.numel())

    def of_unit(self, outputs: Any, targets: Any, weight: float) -> UnitLoss:
        if outputs.shape != targets.shape:
            raise TypeError(f"outputs {list(outputs.shape)}, targets {list(targets.shape)}: "
                            "a mean over elements needs equal shapes")
        return super().of_unit(outputs, targets, weight)


def _summed(module: Any) -> Any:
    """The same loss, adding up."""
    summed = copy.copy(module)
    summed.reduction = "sum"
    return summed


def loss_rule(loss: Any, weight: Callable[[Any], Count] | None) -> LossRule:
    """Raises InvalidArgument for what has no exact sum and weight."""
    if isinstance(loss, LossRule):
        return loss
    if not callable(loss):
        raise InvalidArgument(f"loss {loss!r:.60}: must be a callable of outputs and targets that returns a sum")
    reduction = getattr(loss, "reduction", None)
    if reduction is None or reduction == "sum":
        return LossRule(loss, weight)
    name = type(loss).__name__
    if reduction != "mean":
        raise InvalidArgument(f"{name}(reduction='{reduction}'): must be 'sum' or 'mean'")
    if weight is not None:
        raise InvalidArgument(f"{name}(reduction='mean') has a weight of its own; loss_weight is for reduction='sum'")
    if isinstance(loss, _OF_CLASSES) and getattr(loss, "weight", None) is None:
        return _ClassMean(loss)
    if isinstance(loss, _ELEMENTWISE) and getattr(loss, "weight", None) is None:
        return _ElementMean(loss)
    raise InvalidArgument(f"{name}(reduction='mean'): the divisor of this mean is not known before the step; "
                          "use reduction='sum' and loss_weight")


@dataclass
class Sink:
    """A stage with a loss, and what that counts in the sum that is minimized."""

    stage: int
    rule: LossRule
    factor: float = 1.0


def sinks_of(loss: Any, weight: Callable[[Any], Count] | None, stages: int) -> list[Sink]:
    """By stage; the last one is the last stage, whose loss is the main one. `loss`: a callable, or
    {stage: callable or (callable, factor)}."""
    if not isinstance(loss, dict):
        return [Sink(stages - 1, loss_rule(loss, weight))]
    for stage in loss:
        if type(stage) is not int or not 0 <= stage < stages:
            raise InvalidArgument(f"loss has the stage {stage!r:.60}: must be a number from 0 to {stages - 1}")
    if stages - 1 not in loss:
        raise InvalidArgument(f"loss has stages {sorted(loss)}: the last stage, {stages - 1}, must be among them")
    return [_sink(stage, loss[stage], weight) for stage in sorted(loss)]


def _sink(stage: int, given: Any, weight: Callable[[Any], Count] | None) -> Sink:
    rule, factor = given if isinstance(given, tuple) and len(given) == 2 else (given, 1.0)
    if isinstance(given, tuple) and (len(given) != 2 or isinstance(factor, bool) or not isinstance(factor, Real)
                                     or not 0 <= factor < math.inf):
        raise InvalidArgument(f"the loss of stage {stage} is {given!r:.60}: must be a loss, or (loss, factor) with a finite "
                              "factor of at least 0")
    return Sink(stage, loss_rule(rule, None if getattr(rule, "reduction", None) == "mean" else weight), float(factor))
