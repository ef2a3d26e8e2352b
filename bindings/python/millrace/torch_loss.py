"""What a loss of PyTorch means to a Pipeline: a sum over a unit and the weight it was summed over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .errors import InvalidArgument

# Means over the elements of the output.
_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
# Means over targets that are numbers of classes.
_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)


def _one(tensors: Sequence[torch.Tensor]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


class LossRule:
    """A callable of the user's, and what it will weigh."""

    def __init__(self, loss: Callable[..., Any], weight: Callable[..., float] | None) -> None:
        self._loss, self._weight = loss, weight
        self._knows = False  # it was seen that the loss is a sum

    def weight(self, targets: Sequence[torch.Tensor]) -> float | None:
        """Of a unit or a mini-batch, before it runs; None: its number of samples."""
        return None if self._weight is None else float(self._weight(_one(targets)))

    def of_unit(self, outputs: list[torch.Tensor], targets: list[torch.Tensor]) -> tuple[Any, float, int, int]:
        """(sum, weight, right, judged)."""
        said = self._loss(_one(outputs), _one(targets))
        if isinstance(said, torch.Tensor):
            weight = self.weight(targets)
            said = said, len(targets[0]) if weight is None else weight
        if not isinstance(said, tuple) or len(said) not in (2, 4) or not isinstance(said[0], torch.Tensor):
            raise TypeError("a loss gives its sum, (sum, weight) or (sum, weight, right, judged); the sum is a tensor")
        total, weight, *counts = said
        if not self._knows and len(targets[0]) > 1:
            self._require_sum(float(total), float(weight), outputs, targets)
        right, judged = counts or (0, 0)
        return total, float(weight), int(right), int(judged)


    def _require_sum(self, total: float, weight: float, outputs: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
        """Raises InvalidArgument for a mean. Checks once: the loss of a unit against those of its halves."""
        self._knows = True
        half = len(targets[0]) // 2
        state = torch.get_rng_state()
        try:
            first, second = (self._of_rows(outputs, targets, rows) for rows in (slice(half), slice(half, None)))
        except Exception:  # a loss that takes whole units alone
            return
        finally:
            torch.set_rng_state(state)
        least, most = sorted((first[0], second[0]))
        slack = 1e-3 * max(abs(least), abs(most))
        adds_up = abs(first[1] + second[1] - weight) <= 1e-6 * weight
        if adds_up and least - slack <= total <= most + slack and abs(total - least - most) > 2 * slack:
            raise InvalidArgument(
                f"the loss is a mean: {total:g} over {len(targets[0])} samples, {first[0]:g} and {second[0]:g} over their halves; "
                "return the sum over the samples (reduction='sum'), with loss_weight where it is not per sample"
            )

    def _of_rows(self, outputs: list[torch.Tensor], targets: list[torch.Tensor], rows: slice) -> tuple[float, float]:
        """Sum and weight of some rows of a unit."""
        with torch.no_grad():
            some = [one[rows] for one in targets]
            said = self._loss(_one([one.detach()[rows] for one in outputs]), _one(some))
            if isinstance(said, tuple):
                return float(said[0]), float(said[1])
            weight = self.weight(some)
            return float(said), float(len(some[0]) if weight is None else weight)


class _ClassMean(LossRule):
    """A mean over targets that count: the sum and their number. Without class weights, whose mean
    has other weights than its targets are many."""

    def __init__(self, module: Any) -> None:
        super().__init__(_summed(module), lambda targets: float((targets != module.ignore_index).sum()))

    def of_unit(self, outputs: list[torch.Tensor], targets: list[torch.Tensor]) -> tuple[Any, float, int, int]:
        if targets[0].is_floating_point():
            raise TypeError("the mean of a loss over probabilities is not taken; give numbers of classes, or reduction='sum'")
        total, weight, *_ = super().of_unit(outputs, targets)
        if torch.is_grad_enabled():
            return total, weight, 0, 0
        right = int((outputs[0].argmax(1) == targets[0]).sum())
        return total, weight, right, int(weight)


class _ElementMean(LossRule):
    """A mean over elements: the sum and their number."""

    def __init__(self, module: Any) -> None:
        super().__init__(_summed(module), lambda targets: float(targets.numel()))

    def of_unit(self, outputs: list[torch.Tensor], targets: list[torch.Tensor]) -> tuple[Any, float, int, int]:
        if outputs[0].shape != targets[0].shape:
            raise TypeError(
                f"the outputs are {list(outputs[0].shape)}, their targets {list(targets[0].shape)}; "
                "a mean needs the same extents"
            )
        return super().of_unit(outputs, targets)


def _summed(module: Any) -> Callable[..., torch.Tensor]:
    """The same loss, adding up."""
    summed = copy.copy(module)
    summed.reduction = "sum"
    return summed


def loss_rule(loss: Callable[..., Any], weight: Callable[..., float] | None) -> LossRule:
    """Throws InvalidArgument for what has no exact sum and weight."""
    if not callable(loss):
        raise InvalidArgument("loss is called with outputs and targets and gives a sum; it cannot be called")
    reduction = getattr(loss, "reduction", None)
    if reduction is None or reduction == "sum":
        return LossRule(loss, weight)
    name = type(loss).__name__
    if reduction != "mean":
        raise InvalidArgument(f"{name} has reduction='{reduction}'; a step needs 'sum' or 'mean'")
    if weight is not None:
        raise InvalidArgument(f"{name} with reduction='mean' weighs by itself; loss_weight is for reduction='sum'")
    if isinstance(loss, _OF_CLASSES) and getattr(loss, "weight", None) is None:
        return _ClassMean(loss)
    if isinstance(loss, _ELEMENTWISE) and getattr(loss, "weight", None) is None:
        return _ElementMean(loss)
    why = "its class weights" if isinstance(loss, _OF_CLASSES + _ELEMENTWISE) else "its mean"
    raise InvalidArgument(
        f"{name} with reduction='mean': a step cannot know beforehand what {why} will be divided by; "
        "give reduction='sum' and loss_weight"
    )
