"""Which optimizers and schedulers of torch.optim a Pipeline can step, and what it says of others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Optional

import torch

from .. import training
from ..errors import InvalidArgument

_TORCH_NAMES = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW"}


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
