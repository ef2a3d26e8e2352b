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
        self._owned = [
            (owner, place, name, tensor)
            for module in modules
            for owner in module.modules()
            for place in ("_parameters", "_buffers")
            for name, tensor in getattr(owner, place).items()
        ]

    def copied(self) -> ModuleStage:
        """For another copy of the model, of the same weights."""
        return ModuleStage(copy.deepcopy(self.modules), self._first, self.number, self.is_last, self._chained)

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """By global names, those that training in C++ has: "layers.3.weight"."""
        return [pair for at, module in self._placed() for pair in module.named_parameters(f"layers.{at}")]

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """The same of buffers."""
        return [pair for at, module in self._placed() for pair in module.named_buffers(f"layers.{at}")]

    def state(self, names: list[str]) -> dict[str, Any]:
        """As the model's own state_dict(), whose modules have those names."""
        return {
            key: value
            for at, module in self._placed()
            for key, value in module.state_dict(prefix=f"{names[at]}.").items()
        }

    def load(self, names: list[str], state: dict[str, Any]) -> None:
        """Copies what is its own of such a state."""
        for at, module in self._placed():
            start = f"{names[at]}."
            module.load_state_dict({key[len(start) :]: state[key] for key in state if key.startswith(start)})

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


class Cutting:
    """The model's stages, replica after replica, and the names that its modules have in it. Raises
    InvalidArgument for a model that cannot be cut like that."""

    def __init__(self, model: Any, cut: Cut, shape: Shape, tie: bool) -> None:
        self.count = shape.stages * shape.replicas
        self._stages = shape.stages
        self._made: dict[int, ModuleStage] = {}
        self._make = model if callable(model) and not isinstance(model, nn.Module) else None
        self.names = [str(number) for number in range(shape.stages)]
        self.tied: list[list[str]] = []  # names of parameters that are one weight
        if self._make is not None:
            return
        chained = isinstance(model, nn.Sequential)
        if not chained and not (isinstance(model, (list, tuple, nn.ModuleList)) and len(model) > 0):
            raise InvalidArgument(
                f"model is a {type(model).__name__}; a pipeline takes an nn.Sequential, or a list of modules, one for each stage"
            )
        modules = list(model)
        if not chained and len(modules) != shape.stages:
            raise InvalidArgument(f"the model is a list of {len(modules)} modules, the schedule has {shape.stages} stages")
        self.names = list(model._modules) if chained else self.names
        boundaries = _boundaries(modules, cut, shape.stages)
        cuts = list(zip(boundaries, boundaries[1:]))
        self.tied = _untied(modules, cuts, tie)
        for number, (first, last) in enumerate(cuts):
            self._made[number] = self._stage(modules[first:last], first, number, chained)

    def _stage(self, modules: list[nn.Module], first: int, number: int, chained: bool) -> ModuleStage:
        return ModuleStage(modules, first, number, number == self._stages - 1, chained)

    def stage(self, place: int) -> ModuleStage:
        """Made now where the model is a callable. The first replica's stages have the model's own modules."""
        number = place % self._stages
        if number not in self._made:
            assert self._make is not None
            self._made[number] = self._stage([self._make(number)], number, number, False)
        return self._made[number] if place < self._stages else self._made[number].copied()


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


def _untied(modules: list[nn.Module], cuts: list[tuple[int, int]], tie: bool) -> list[list[str]]:
    """Two stages run at the same time, and each adds to what it takes for its own gradient: a tensor
    that both have becomes one in each if `tie`, and is refused otherwise. The names of each."""
    groups: dict[int, list[str]] = {}
    owners: dict[int, int] = {}
    own: dict[tuple[int, int], nn.Parameter] = {}
    homes: dict[int, int] = {}  # of modules
    for number, (first, last) in enumerate(cuts):
        for name, module, key, tensor in _parameters_of(modules, first, last):
            owner = owners.setdefault(id(tensor), number)
            homes.setdefault(id(module), number)
            group = groups.setdefault(id(tensor), [name])
            if owner == number:
                continue
            if not tie:
                raise InvalidArgument(
                    f"stages {owner} and {number} share the tensor '{group[0]}' ('{name}'); tie=True gives each its own "
                    "and keeps them equal, or cut the model so that one stage has both"
                )
            if homes[id(module)] != number:
                raise InvalidArgument(f"stages {homes[id(module)]} and {number} share the module of '{name}'; give each its own")
            if (id(tensor), number) not in own:
                own[id(tensor), number] = nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
                group.append(name)
            module._parameters[key] = own[id(tensor), number]
    return [group for group in groups.values() if len(group) > 1]


def _parameters_of(modules: list[nn.Module], first: int, last: int) -> list[tuple[str, nn.Module, str, nn.Parameter]]:
    """(global name, owner, its own name, tensor)."""
    return [
        (".".join(filter(None, ("layers", str(at), inside, key))), owner, key, tensor)
        for at in range(first, last)
        for inside, owner in modules[at].named_modules()
        for key, tensor in owner._parameters.items()
        if tensor is not None
    ]
