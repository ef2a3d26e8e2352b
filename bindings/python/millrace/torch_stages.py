"""A model of PyTorch as the stages of a pipeline: where it is cut, and what a stage owns of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Union

import torch
from torch import nn

from . import _millrace_torch
from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._millrace import Shape

Cut = Union[Literal["even", "parameters"], Sequence[int]]


class ModuleStage:
    """Consecutive modules of the model, `first` the number of the first one. `chained`: a tuple that
    the stage before it gave is one value, as inside nn.Sequential."""

    def __init__(self, modules: list[nn.Module], first: int, number: int, is_last: bool, chained: bool) -> None:
        self.modules, self.number, self.is_last = modules, number, is_last
        self._first, self._chained = first, chained and number > 0
        self._original: ModuleStage | None = None
        self._owned = [
            (owner, place, name, tensor)
            for module in modules
            for owner in module.modules()
            for place in ("_parameters", "_buffers")
            for name, tensor in getattr(owner, place).items()
        ]

    def copied(self) -> ModuleStage:
        """For another copy of the model, of the same weights."""
        twin = ModuleStage(copy.deepcopy(self.modules), self._first, self.number, self.is_last, self._chained)
        twin._original = self
        return twin

    def copy_original(self) -> None:
        """Takes the tensors of the stage that it was copied of."""
        if self._original is not None:
            for mine, theirs in zip(self.modules, self._original.modules):
                mine.load_state_dict(theirs.state_dict())

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """By global names, those that training in C++ has: "layers.3.weight"."""
        return [pair for at, module in self._placed() for pair in module.named_parameters(f"layers.{at}")]

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """The same of buffers."""
        return [pair for at, module in self._placed() for pair in module.named_buffers(f"layers.{at}")]

    def _placed(self) -> list[tuple[int, nn.Module]]:
        return list(enumerate(self.modules, self._first))

    def require_same_tensors(self) -> None:
        """Raises InvalidArgument when a module has another tensor than at the start."""
        for owner, place, name, tensor in self._owned:
            if getattr(owner, place).get(name) is not tensor:
                whole = next(
                    f"layers.{at}.{inside}.{name}".replace("..", ".")
                    for at, module in self._placed()
                    for inside, other in module.named_modules()
                    if other is owner
                )
                raise InvalidArgument(
                    f"'{whole}' is another tensor than when the pipeline was made; write into the one that is there "
                    "(copy_(...) under torch.no_grad())"
                )

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Module after module."""
        if self._chained and len(inputs) > 1:
            inputs = (inputs,)
        value = self.modules[0](*inputs)
        for module in self.modules[1:]:
            value = module(value)
        return self._tensors_of(value)

    def _tensors_of(self, value: Any) -> list[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return [value]
        several = isinstance(value, (tuple, list)) and all(isinstance(one, torch.Tensor) for one in value)
        if several and len(value) > 1:
            return list(value)
        given = f"a {type(value).__name__} of one" if several else f"a {type(value).__name__}"
        raise TypeError(f"{type(self.modules[-1]).__name__} gave {given}; a stage gives a tensor or a tuple of several")


def cut_into_stages(model: Any, cut: Cut, shape: Shape) -> list[ModuleStage]:
    """One for each stage of each replica. The first replica's have the model's own modules. Raises
    InvalidArgument for a model that cannot be cut like that."""
    chained = isinstance(model, nn.Sequential)
    if not chained and not (isinstance(model, (list, tuple, nn.ModuleList)) and len(model) > 0):
        raise InvalidArgument(
            f"model is a {type(model).__name__}; a pipeline takes an nn.Sequential, or a list of modules, one for each stage"
        )
    modules = list(model)
    if not chained and len(modules) != shape.stages:
        raise InvalidArgument(f"the model is a list of {len(modules)} modules, the schedule has {shape.stages} stages")
    boundaries = _boundaries(modules, cut, shape.stages)
    stages = [
        ModuleStage(modules[first:last], first, number, number == shape.stages - 1, chained)
        for number, (first, last) in enumerate(zip(boundaries, boundaries[1:]))
    ]
    _refuse_shared(stages)
    return stages + [stage.copied() for _ in range(shape.replicas - 1) for stage in stages]


def _boundaries(modules: list[nn.Module], cut: Cut, stages: int) -> list[int]:
    if isinstance(cut, str):
        if cut not in ("even", "parameters"):
            raise InvalidArgument(f"cut is '{cut}'; known are 'even', 'parameters' and a list of boundaries")
        counts = [float(sum(one.numel() for one in module.parameters())) for module in modules]
        return _millrace_torch.boundaries(counts if cut == "parameters" else len(modules), stages)
    boundaries = list(cut)
    _millrace_torch.check_boundaries(boundaries, len(modules))
    if len(boundaries) != stages + 1:
        raise InvalidArgument(f"{len(boundaries)} boundaries cut a model into {len(boundaries) - 1} stages, the schedule has {stages}")
    return boundaries


def _refuse_shared(stages: list[ModuleStage]) -> None:
    """Two stages run at the same time, and each adds to what it takes for its own gradient."""
    owners: dict[int, tuple[int, str]] = {}
    for stage in stages:
        for name, tensor in stage.parameters():
            other, their_name = owners.setdefault(id(tensor), (stage.number, name))
            if other != stage.number:
                raise InvalidArgument(
                    f"stages {other} and {stage.number} share the tensor '{their_name}' ('{name}'); give each its "
                    "own, or cut the model so that one stage has both"
                )
