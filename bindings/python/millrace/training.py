"""Stages and optimizers of a Trainer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .errors import InvalidArgument
from .keywords import refuse_unknown

if TYPE_CHECKING:
    from ._millrace import Unit


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of the library, its learning rate and the settings that are not its paper's."""

    kind: str
    learning_rate: float = 1e-3
    settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = _SETTINGS.get(self.kind, _ALL_SETTINGS)
        for name in self.settings:
            if name not in known:
                refuse_unknown(f"the optimizer {self.kind}", name, ("learning_rate", *known))
        for name, value in {"learning_rate": self.learning_rate, **self.settings}.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise InvalidArgument(
                    f"the optimizer {self.kind}: {name} is {value!r:.60}, a {type(value).__name__}; expected a number")


_ALL_SETTINGS = ("momentum", "beta1", "beta2", "epsilon", "weight_decay")
_SETTINGS = {
    "sgd": ("weight_decay",),
    "momentum": ("momentum", "weight_decay"),
    "adam": ("beta1", "beta2", "epsilon", "weight_decay"),
    "adamw": ("beta1", "beta2", "epsilon", "weight_decay"),
}


def Sgd(learning_rate: float = 1e-3, **settings: float) -> Optimizer:
    """Plain gradient descent; settings: weight_decay."""
    return Optimizer("sgd", learning_rate, settings)


def Momentum(learning_rate: float = 1e-3, **settings: float) -> Optimizer:
    """Gradient descent with momentum; settings: momentum, weight_decay."""
    return Optimizer("momentum", learning_rate, settings)


def Adam(learning_rate: float = 1e-3, **settings: float) -> Optimizer:
    """Adam; settings: beta1, beta2, epsilon, weight_decay."""
    return Optimizer("adam", learning_rate, settings)


def AdamW(learning_rate: float = 1e-3, **settings: float) -> Optimizer:
    """Adam with decoupled weight decay; settings: beta1, beta2, epsilon, weight_decay."""
    return Optimizer("adamw", learning_rate, settings)


class Stage:
    """What a Trainer asks of a stage; deriving is optional. One stage sees one pass at a time.

    `parameters` names float32 arrays, which training changes in place; `gradients` (made by the
    trainer unless it is there) has an array for each, to which passes add. Names are unique in the
    model and the same in every cut. Names in `no_decay` have no weight decay. Arrays that a pass is
    given must not be written to.

    `tensors = "dlpack"` gives passes a millrace.Tensor instead of an array: `torch.from_dlpack` and its
    like take it without a copy, bf16 too, which numpy does not have. What a pass gives may be such
    tensors of either kind of stage, on the CPU; what autograd watches is detached.

    Passes:
      forward(unit, *inputs)            gives the inputs of the next stage, an array or a tuple. The
                                        last stage calls `unit.add_loss` where `unit.targets` is not
                                        None, and gives its predictions. The loss is the sum over the
                                        samples, not their mean: the first unit that a trainer runs is
                                        also run in two halves, before, with `unit.training` False, to
                                        see that it is.
      backward_input(unit, *gradients)  takes the gradient of each output (the last stage: none, and
                                        scales its loss' gradient by `unit.loss_scale`) and gives one
                                        for each input; the first stage may give None.
      backward_weight(unit)             adds the unit's weight gradients to `gradients`.
      backward(unit, *gradients)        both, of a stage without the two.
    """

    parameters: dict[str, np.ndarray] = {}
    gradients: dict[str, np.ndarray]
    no_decay: Collection[str] = ()
    tensors: Literal["numpy", "dlpack"] = "numpy"

    def forward(self, unit: Unit, *inputs: np.ndarray) -> Any:
        """See above."""
        raise NotImplementedError
