"""Which optimizers and schedulers of torch.optim a Pipeline can step, and what it says of others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch import nn

from .. import training
from ..errors import InvalidArgument

Named = list[tuple[str, nn.Parameter]]
OptimizerOf = Union[torch.optim.Optimizer, Callable[[Named], torch.optim.Optimizer]]
_TORCH_NAMES = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW"}


def made_optimizer(given: OptimizerOf, named: Named, must_be_callable: bool) -> Optional[torch.optim.Optimizer]:
    """`given`, or what it makes of the trained parameters; none without any."""
    if must_be_callable and not callable(given):
        raise InvalidArgument("a callable makes the stages, so optimizer must be a callable of their named parameters: "
                              "optimizer=lambda named: torch.optim.AdamW(named, 3e-3)")
    if callable(given) and not isinstance(given, torch.optim.Optimizer):
        given = given(named) if named else None
        if given is None:
            return None
    require_optimizer(given)
    known = {id(parameter) for group in given.param_groups for parameter in group["params"]}
    missing = next((name for name, parameter in named if id(parameter) not in known), None)
    if missing is not None:
        raise InvalidArgument(f"optimizer: '{missing}' is trained and not among its parameters; make it after the "
                              "model, or set requires_grad_(False)")
    return given


def require_optimizer(given: Any) -> None:
    """Raises InvalidArgument for what is not of torch.optim, or needs a closure."""
    if isinstance(given, training.Optimizer):
        raise InvalidArgument(f"optimizer millrace.{given.kind}: a Pipeline takes those of PyTorch, "
                              f"optimizer={_in_torch(given)}")
    if not isinstance(given, torch.optim.Optimizer):
        raise InvalidArgument(f"optimizer {given!r:.60}: must be of torch.optim, as torch.optim.AdamW(model.parameters(), "
                              "3e-3), or a callable that makes one of named parameters")
    closure = inspect.signature(type(given).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidArgument(f"optimizer {type(given).__name__}: its step() needs a closure, which would run passes again; "
                              "use one without, as torch.optim.AdamW")


def _in_torch(given: training.Optimizer) -> str:
    """The line of torch.optim that does the same."""
    settings = dict(given.settings)
    words = [f"lr={given.learning_rate:g}"]
    if given.kind == "momentum":
        words.append(f"momentum={settings.pop('momentum', 0.9):g}")
    if "beta1" in settings or "beta2" in settings:
        words.append(f"betas=({settings.pop('beta1', 0.9):g}, {settings.pop('beta2', 0.999):g})")
    if "epsilon" in settings:
        words.append(f"eps={settings.pop('epsilon'):g}")
    words += [f"{name}={value:g}" for name, value in settings.items()]
    return f"torch.optim.{_TORCH_NAMES.get(given.kind, 'AdamW')}(model.parameters(), {', '.join(words)})"


def made_scheduler(given: Any, optimizer: Optional[torch.optim.Optimizer]) -> Optional[Any]:
    """`given`, or what it makes of the optimizer. Raises InvalidArgument for one of another optimizer."""
    if isinstance(given, Callable) and not isinstance(given, torch.optim.lr_scheduler.LRScheduler):
        given = None if optimizer is None else given(optimizer)
    if isinstance(given, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise InvalidArgument("lr_scheduler ReduceLROnPlateau: needs a value; call its step(value) after evaluate()")
    if given is not None and optimizer is not None and getattr(given, "optimizer", optimizer) is not optimizer:
        raise InvalidArgument(f"lr_scheduler {type(given).__name__}: is of another optimizer than the Pipeline's")
    return given
