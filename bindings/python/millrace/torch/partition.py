"""A model as stages: which module runs where, what its tensors are called, and which are shared."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Optional, Union

import torch
from torch import nn

from .._millrace import Group, Label, Shape
from ..errors import InvalidArgument
from . import elastic
from .export import ExportedStage, is_pipe, measured, pipe_stages, split_by_export

Split = Union[Literal["even", "parameters", "time"], Sequence[int], Sequence[str], Callable[[int], list[nn.Module]]]
Model = Union[nn.Module, Sequence[nn.Module], Callable[[int], nn.Module], Any]


class Stage:
    """The module of one stage in one replica, with its parameters and buffers by global name."""

    def __init__(self, module: nn.Module, number: int, names: dict[int, str], chained: bool,
                 saved: Optional[set[str]] = None) -> None:
        """`saved`: the names of the model's state_dict(), where the module has more tensors than that."""
        self.module, self.number, self.chained = module, number, chained
        self._saved = saved
        for name, one in module.named_modules():
            if getattr(one, "sparse", False) is True:
                raise InvalidArgument(f"{name or 'the module'} of stage {number} is {type(one).__name__}(sparse=True): "
                                      "gradients must be dense (sparse=False)")
        self.parameters = _named(module.named_parameters(), names, number)
        self.buffers = {name: one for name, one in _named(module.named_buffers(), names, number).items()
                        if saved is None or name in saved}
        self._owned = [(owner, kind, key, tensor, tensor.dtype, tensor.device)
                       for owner in module.modules() for kind in ("_parameters", "_buffers")
                       for key, tensor in getattr(owner, kind).items() if tensor is not None]

    def module_state(self) -> dict[str, Any]:
        """Its part of the model's state_dict()."""
        known = {id(tensor): name for one in (self.parameters, self.buffers) for name, tensor in one.items()}
        state = {known.get(id(value), f"{self.number}.{name}"): value
                 for name, value in self.module.state_dict(keep_vars=True).items()}
        return {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in state.items()
                if self._saved is None or name in self._saved}

    def load(self, state: dict[str, Any]) -> None:
        """Copies its part of such a state."""
        own = self.module_state()
        missing = next((name for name in own if name not in state), None)
        if missing is not None:
            raise InvalidArgument(f"state_dict has no '{missing}'")
        for name, tensor in own.items():
            if isinstance(tensor, torch.Tensor) and tensor.shape != state[name].shape:
                raise InvalidArgument(f"'{name}' has the shape {list(state[name].shape)} in the state_dict; the model has "
                                      f"{list(tensor.shape)}")
        with torch.no_grad():
            for name, tensor in own.items():
                if isinstance(tensor, torch.Tensor):
                    tensor.copy_(state[name])

    @property
    def call(self) -> Any:
        """What runs it: of a _Chain, which has no hooks, forward() itself."""
        if not isinstance(self.module, _Chain):
            return self.module
        return self.module[0] if len(self.module) == 1 else self.module.forward

    def require_same_tensors(self) -> None:
        """Raises InvalidArgument when the module was moved, cast or given other tensors."""
        for owner, kind, key, tensor, dtype, device in self._owned:
            now = getattr(owner, kind).get(key)
            if now is tensor and now.dtype == dtype and now.device == device:
                continue
            if kind == "_buffers" and now is not None and now.dtype == dtype and now.device == device:
                continue  # modules may make new running statistics
            name = self.parameters.get(key) is not None and key or f"{type(owner).__name__}.{key}"
            raise InvalidArgument(f"{name} of stage {self.number} was replaced, moved or cast after the Pipeline was "
                                  "made; write into it (copy_ under torch.no_grad()), or make the Pipeline again")


def _named(pairs: Any, names: dict[int, str], number: int) -> dict[str, Any]:
    return {names.get(id(tensor), f"{number}.{name}"): tensor for name, tensor in pairs}


class _Chain(nn.Sequential):
    """Modules one after another; the first may take any arguments."""

    def forward(self, *given: Any, **named: Any) -> Any:
        modules = iter(self._modules.values())
        value = next(modules)(*given, **named)
        for one in modules:
            value = one(value)
        return value


class Partition:
    """Stages of a model, by (replica, stage). Raises InvalidArgument for a model that cannot be split."""

    def __init__(self, model: Model, split: Split, shape: Shape, tie: bool, example: Any = None) -> None:
        self.model, self.shape = model, shape
        self.names: dict[int, str] = {}
        self.shared: dict[str, list[tuple[int, int]]] = {}  # names that several (replica, stage) have
        self.order: list[str] = []  # names in the order of model.parameters()
        self.used: set[tuple[int, int]] = set()  # (replica, stage) of this process
        self._originals: dict[str, nn.Parameter] = {}
        self._make: Optional[Callable[[int], nn.Module]] = None
        self._stages: dict[tuple[int, int], Stage] = {}
        self._own_module: Optional[nn.Module] = None
        self._saved: Optional[set[str]] = None
        self._chained = isinstance(model, nn.Sequential)
        modules = self._modules(model, split, example)
        if modules is None:
            self._make = model
            return
        _tie_again(modules)
        self._own_module = model if isinstance(model, nn.Module) and not is_pipe(model) else None
        wholes = [one.part for one in modules] if is_pipe(model) else [self._own_module or nn.ModuleList(modules)]
        for whole in wholes:
            for name, tensor in (*whole.named_parameters(), *whole.named_buffers()):
                self.names.setdefault(id(tensor), name)
            self._originals.update(whole.named_parameters())
        if isinstance(modules[0], ExportedStage):
            self._saved = {self.names.get(id(tensor), name) for whole in wholes
                           for name, tensor in whole.state_dict(keep_vars=True).items()}
        self.order = list(self._originals)
        self._untie(modules, tie)
        for number, module in enumerate(modules):
            self._stages[0, number] = self._stage(module, number)

    def _modules(self, model: Model, split: Split, example: Any) -> Optional[list[nn.Module]]:
        """The module of each stage; None where they are made on demand."""
        stages = self.shape.stages
        if callable(split):
            return split(stages)
        if isinstance(model, nn.Sequential):
            children = list(model)
            if split == "time" and example is None:
                raise InvalidArgument("split 'time' needs example=, the arguments of one micro-batch")
            ends = boundaries(children, split, stages, lambda: measured(model, children, example))
            return [_Chain(*children[first:last]) for first, last in zip(ends, ends[1:])]
        if is_pipe(model):
            return pipe_stages(model, stages)
        if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
            if example is None:
                raise InvalidArgument(f"model {type(model).__name__}: an nn.Module that is not an nn.Sequential needs "
                                      "example=, the arguments of one micro-batch, to be split")
            return split_by_export(model, example, split, stages)
        if isinstance(model, (list, tuple, nn.ModuleList)) and len(model) > 0:
            if len(model) != stages:
                raise InvalidArgument(f"model: a list of {len(model)} modules; the schedule has {stages} stages")
            return list(model)
        if callable(model):
            return None
        raise InvalidArgument(f"model {model!r:.60}: must be an nn.Module, a list of modules (one per stage), a Pipe, or a "
                              "callable that makes the module of a stage")

    def _stage(self, module: nn.Module, number: int) -> Stage:
        return Stage(module, number, self.names, self._chained, self._saved)

    def stage(self, replica: int, number: int) -> Stage:
        """Made now where the model is a callable, and for another replica."""
        place = replica, number
        self.used.add(place)
        if place not in self._stages:
            if replica == 0:
                assert self._make is not None
                self._stages[place] = self._stage(self._make(number), number)
            else:
                self._stages[place] = self._replica(self.stage(0, number))
        return self._stages[place]

    def _replica(self, stage: Stage) -> Stage:
        """The same weights in parameters with gradients of their own."""
        if any(isinstance(one, nn.modules.batchnorm._BatchNorm) and one.track_running_stats
               for one in stage.module.modules()):
            raise InvalidArgument(f"stage {stage.number} has running statistics, and the schedule two replicas of it; "
                                  "use a schedule with one direction")
        aliases = {id(one): _alias(one) for one in stage.parameters.values()}
        names = {id(aliases[id(one)]): name for name, one in stage.parameters.items()}
        buffers = {id(one): one for one in stage.buffers.values()}
        module = copy.deepcopy(stage.module, {**aliases, **buffers})
        self.names.update(names)
        return Stage(module, stage.number, {**self.names, **names}, stage.chained, self._saved)

    def require_inputs(self, parts: Sequence[Any], samples: int) -> None:
        """Raises InvalidArgument for micro-batches that an exported model cannot take."""
        first = self._stages.get((0, 0))
        if first is not None and isinstance(first.module, ExportedStage) and first.module.example is not None:
            first.module.example.require(parts, samples)

    def whole_state(self, own: dict[str, Any]) -> dict[str, Any]:
        """The model's own state_dict(), with `own` in it; a tied weight has all of its names."""
        if self._own_module is None:
            return own
        return {name: own.get(self.names.get(id(value), name), value.detach() if isinstance(value, torch.Tensor) else value)
                for name, value in self._own_module.state_dict(keep_vars=True).items()}

    @property
    def is_made_by_callable(self) -> bool:
        """Whether stages are made on demand."""
        return self._make is not None

    def hosted(self) -> dict[tuple[int, int], Stage]:
        """The stages of this process."""
        return {place: stage for place, stage in self._stages.items() if place in self.used}

    def original(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter of the model that has this name, which the optimizer updates."""
        return self._originals.get(name, parameter)

    def sorted_names(self, names: Iterable[str]) -> list[str]:
        """In the order of model.parameters(); of a callable's stages in theirs."""
        place = {name: at for at, name in enumerate(self.order)}
        return sorted(names, key=lambda name: (place.get(name, len(place)), _natural(name)))

    def in_order(self, found: dict[str, nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
        return [(name, found[name]) for name in self.sorted_names(found)]

    def count_replicas(self) -> None:
        """Names every parameter shared where stages have replicas."""
        for replica in range(1, self.shape.replicas):
            for (of, number), stage in list(self._stages.items()):
                if of == 0:
                    for name in stage.parameters:
                        places = self.shared.setdefault(name, [(0, number)])
                        if (replica, number) not in places:
                            places.append((replica, number))

    def _untie(self, modules: list[nn.Module], tie: bool) -> None:
        """A tensor of two stages becomes a parameter in each, over the same memory."""
        homes: dict[int, int] = {}
        owners: dict[int, int] = {}
        aliases: dict[tuple[int, int], nn.Parameter] = {}
        for number, module in enumerate(modules):
            for owner in module.modules():
                if owner._parameters and owners.setdefault(id(owner), number) != number:
                    raise InvalidArgument(f"stages {owners[id(owner)]} and {number} have the same {type(owner).__name__}: "
                                          "each needs its own (copy.deepcopy); tie=True trains one weight of two modules")
                for key, parameter in owner._parameters.items():
                    if parameter is None or homes.setdefault(id(parameter), number) == number:
                        continue
                    name, home = self.names[id(parameter)], homes[id(parameter)]
                    if not tie:
                        raise InvalidArgument(f"stages {home} and {number} share '{name}': tie=True trains it as one "
                                              "weight; or split the model so that one stage has both")
                    alias = aliases.setdefault((id(parameter), number), _alias(parameter))
                    alias.tied_to = parameter
                    self.names[id(alias)] = name
                    owner._parameters[key] = alias
                    places = self.shared.setdefault(name, [(0, home)])
                    if (0, number) not in places:
                        places.append((0, number))


def _tie_again(modules: list[nn.Module]) -> None:
    """Takes out the parameters that an earlier Pipeline of the same model put in by _untie()."""
    for module in modules:
        for owner in module.modules():
            owner._parameters.update({key: one.tied_to for key, one in owner._parameters.items() if hasattr(one, "tied_to")})


def _natural(name: str) -> list[Any]:
    """"10.weight" after "9.weight"."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"[.]", name)]


def _alias(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach(), parameter.requires_grad)


def boundaries(children: Sequence[nn.Module], split: Split, stages: int,
               seconds: Optional[Callable[[], list[float]]] = None) -> list[int]:
    """Where each stage begins, and the end. `seconds` measures the children, for "time"."""
    if len(children) < stages:
        raise InvalidArgument(f"the model has {len(children)} modules; the schedule has {stages} stages")
    if isinstance(split, str):
        if split not in ("even", "parameters", "time"):
            raise InvalidArgument(f"split '{split}': must be even, parameters, time, or a list of boundaries")
        if split == "time":
            if seconds is None:
                raise InvalidArgument("split 'time': not for this model; use even, parameters or a list of boundaries")
            return _agreed(balanced(seconds(), stages))
        weights = [1.0 if split == "even" else float(sum(one.numel() for one in child.parameters())) for child in children]
        return balanced(weights, stages)
    ends = [int(one) for one in split]
    if len(ends) == stages - 1:
        ends = [0, *ends, len(children)]
    if len(ends) != stages + 1 or ends[0] != 0 or ends[-1] != len(children) or sorted(set(ends)) != ends:
        raise InvalidArgument(f"split {list(split)}: must be {stages - 1} ascending boundaries inside 0 to {len(children)}")
    return ends


def _agreed(ends: list[int]) -> list[int]:
    """Rank 0's, because every process measures other times."""
    here = elastic.place()
    if here.world == 1:
        return ends
    return [int(end) for end in Group(here).gather(" ".join(map(str, ends)), Label.Settings)[0].split()]


def balanced(weights: Sequence[float], stages: int) -> list[int]:
    """Boundaries of non-empty parts whose largest sum is smallest; of several the earliest ends."""
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    count = len(weights)
    best = [[(float("inf"), 0)] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = (0.0, 0)
    for parts in range(1, stages + 1):
        for end in range(parts, count + 1):
            best[parts][end] = min((max(best[parts - 1][start][0], sums[end] - sums[start]), -start)
                                   for start in range(parts - 1, end))
    ends = [count]
    for parts in range(stages, 0, -1):
        ends.append(-best[parts][ends[-1]][1])
    return ends[::-1]
