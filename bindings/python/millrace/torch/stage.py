"""A module as a stage: its passes, called for one micro-batch at a time by the thread of its rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import get_num_threads, nn
from torch.autograd import profiler
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import InvalidArgument
from . import draws
from .loss import LossRule, UnitLoss
from .split_backward import Gradient, Learned, SavedTensors, SplitBackward, accumulate

Tensors = tuple[Optional[torch.Tensor], ...]

_NOTHING = nullcontext()
_HOSTS = (torch.device("cpu"), torch.device("meta"))  # without settings of a thread


@dataclass
class StepInput:
    """What the stages of a process read in one pass, and what they leave."""

    step: int = 0
    seed: int = 1
    first_unit: int = 0  # of the pass in the mini-batch
    weight: float = 1.0  # of the mini-batch
    loss_scale: float = 1.0
    training: bool = True
    inputs: Sequence[tuple[Sequence[Any], dict[str, Any]]] = ()  # arguments by unit
    targets: Sequence[Any] = ()  # by unit; none: the loss is not computed
    weights: Sequence[float] = ()  # of the losses, by unit
    first_row: Sequence[int] = ()  # of each unit in the mini-batch
    losses: dict[int, UnitLoss] = field(default_factory=dict)  # by unit of the mini-batch
    outputs: dict[int, Any] = field(default_factory=dict)


class _Unit:
    """What a stage keeps from a forward pass to the last backward pass."""

    outputs: Sequence[torch.Tensor] = ()
    positions: Sequence[int] = ()  # of the outputs that need a gradient
    gradients: Sequence[Any] = ()
    saved: SavedTensors | None = None
    split: SplitBackward | None = None

    def __init__(self, arguments: tuple[Any, ...], inputs: Sequence[torch.Tensor]) -> None:
        self.arguments, self.inputs = arguments, inputs


class Bytes:
    """Counts what the units of stages keep; the stages of a rank share one."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def add(self, more: int) -> None:
        self.now += more
        self.most = max(self.most, self.now)


def _action(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A method with PyTorch's settings of its thread."""
    may_cast = op in "FR"

    def with_settings(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(stage: ModuleStage, unit: int, *given: Any) -> Any:
            if stage._device is None:
                stage._set_device(stage._device_of(unit, given))
            if get_num_threads() != stage._threads:
                torch.set_num_threads(stage._threads)
            casts = may_cast and stage._precision is not None
            if stage._on_host and not casts and not profiler._is_profiler_enabled:
                return method(stage, unit, *given)
            with stage._set(f"{stage.number}{op}{unit}", casts):
                return method(stage, unit, *given)

        return run

    return with_settings


class ModuleStage:
    """Runs `call`, which is made of `modules`. One thread at a time. `run` is set before every pass.

    `bytes`, if set, counts what its units keep between passes: unique storages of saved tensors, inputs,
    outputs and captured gradients. Parameters, buffers and the mini-batch are apart."""

    splits = True

    def __init__(
        self,
        call: Callable[..., Any],
        modules: Sequence[nn.Module],
        number: int,
        *,
        has_loss: bool,
        chained: bool = False,
        loss: LossRule | None = None,
        precision: torch.dtype | None = None,
        threads: int = 1,
        takes_turns: bool = False,
        name: str | None = None,
        uses: Sequence[int] | None = None,
    ) -> None:
        """`uses`: how many inputs of later stages each output is; None: the stages are a chain."""
        self.call, self.modules, self.number, self.has_loss = call, list(modules), number, has_loss
        self._run = StepInput()
        self._device: torch.device | None = None
        self._on_host = False  # needs no settings of a thread
        self.bytes: Bytes | None = None
        self._counted: dict[int, int] = {}  # by unit
        self._whole: set[int] = set()  # units whose backward pass has one part
        self._chained, self._loss, self._precision, self._threads = chained, loss, precision, threads
        self._takes_turns = takes_turns
        self._first_use = None if uses is None else [sum(uses[:at]) for at in range(len(uses) + 1)]
        self.draws: bool | None = None  # not known before the first pass
        self._learned = Learned(modules)
        self._units: dict[int, _Unit] = {}
        self.name = name or f"stage {number}"
        self.splits = not any(isinstance(one, torch._dynamo.eval_frame.OptimizedModule) for one in _compiled(modules))

    @property
    def run(self) -> StepInput:
        return self._run

    @run.setter
    def run(self, run: StepInput) -> None:
        self._run = run
        self._set_device(self.device)

    def _set_device(self, device: torch.device | None) -> None:
        self._device, self._on_host = device, device in _HOSTS

    @property
    def device(self) -> torch.device | None:
        """Where its parameters are; without any it works where its inputs are."""
        for module in self.modules:
            for tensor in (*module.parameters(), *module.buffers()):
                return tensor.device
        return None

    def _device_of(self, unit: int, given: tuple[torch.Tensor | None, ...]) -> torch.device:
        leaves = given if self.number else tree_leaves(self._run.inputs[unit])
        return next((one.device for one in leaves if isinstance(one, torch.Tensor)), torch.device("cpu"))

    # The five methods that the core calls.

    @_action("F")
    def forward(self, unit: int, recomputes: bool, *given: torch.Tensor | None) -> Tensors:
        if not self._run.training:
            return self._evaluate(unit, given)
        made = self._units[unit] = self._entered(given)
        if recomputes:
            with torch.no_grad():
                value = self._called(unit, made)
        else:
            value = self._traced(unit, made)
        outputs = self._given_on(unit, made, value, not recomputes)
        if self.bytes is not None:
            self._count(unit, made)
        return outputs

    @_action("R")
    def recompute(self, unit: int) -> None:
        with self._same_buffers():
            made = self._units[unit]
            self._given_on(unit, made, self._traced(unit, made), True)
            if self.bytes is not None:
                self._count(unit, made)

    @_action("B")
    def backward(self, unit: int, *gradients: torch.Tensor | None) -> Tensors:
        made = self._units.pop(unit)
        self._whole.add(unit)
        outputs, given = self._of_outputs(made, gradients)
        if outputs:
            accumulate(outputs, given)
        if self.bytes is not None:
            self._count(unit, None)
        return self._for_inputs(made, [one.grad for one in made.inputs])

    @_action("I")
    def backward_input(self, unit: int, *gradients: torch.Tensor | None) -> Tensors:
        made = self._units[unit]
        outputs, given = self._of_outputs(made, gradients)
        if outputs and made.inputs:
            made.split = SplitBackward(outputs, given, made.inputs, made.saved, self._learned)
            result = self._for_inputs(made, made.split.input_gradients)
            made.split.input_gradients, made.inputs, made.outputs = (), [], []
        else:  # W has all of the work, if there is any
            made.outputs, made.gradients = outputs, given
            result = self._for_inputs(made, [None] * len(made.inputs))
        made.arguments = ()
        if self.bytes is not None:
            self._count(unit, made)
        return result

    @_action("W")
    def backward_weight(self, unit: int) -> None:
        made = self._units.pop(unit)
        if made.split is not None:
            made.split.weight()
        elif made.outputs:
            accumulate(made.outputs, made.gradients)
        if self.bytes is not None:
            self._count(unit, None)

    def abandon(self) -> None:
        """Drops all units of a failed step."""
        if self.bytes is not None:
            for unit in list(self._units):
                self._count(unit, None)
        self._units.clear()
        self._run.losses.clear()
        self._run.outputs.clear()

    # What they are made of.

    @contextmanager
    def _set(self, action: str, casts: bool) -> Any:
        with ExitStack() as stack:
            if self._device not in _HOSTS:
                stack.enter_context(getattr(torch, self._device.type).device(self._device))
            if profiler._is_profiler_enabled:
                stack.enter_context(torch.profiler.record_function(action))
            if casts:
                stack.enter_context(torch.autocast(self._device.type, self._precision, cache_enabled=False))
            yield

    def _entered(self, given: tuple[torch.Tensor | None, ...]) -> _Unit:
        """The unit with leaves of a graph of its own."""
        if self.number == 0:
            return _Unit((), ())
        if self._first_use is not None:  # other stages may have been given the same tensors
            given = tuple([one if one is None else one.detach().requires_grad_() if one.requires_grad else one.clone()
                           for one in given])
        device, inputs = self._device, []
        for one in given:
            if one is None:
                continue
            if one.device != device:
                return self._entered(tuple([None if one is None else _leaf(one, device) for one in given]))
            if one.requires_grad:
                inputs.append(one)
        return _Unit(given, inputs)

    def _traced(self, unit: int, made: _Unit) -> Any:
        splits = made.inputs and self._learned.gives_back and self.splits and unit not in self._whole
        if not splits and self.bytes is None:
            return self._result(unit, made.arguments) if self.draws is False else self._called(unit, made)
        made.saved = SavedTensors()
        with made.saved.hooks():
            return self._called(unit, made)

    def _called(self, unit: int, made: _Unit) -> Any:
        """What the module makes of the unit; of the last stage (loss, weight, ...)."""
        if self.draws is not False and self._device.type != "meta":
            with self._drawn(unit):
                return self._result(unit, made.arguments)
        return self._result(unit, made.arguments)

    def _result(self, unit: int, arguments: tuple[Any, ...]) -> Any:
        """Of the last stage the outputs where there are no targets."""
        named: dict[str, Any] = {}
        if self.number == 0:
            arguments, named = self._run.inputs[unit]
            arguments = tuple([_moved(one, self._device) for one in arguments])
        if named:
            value = self.call(*arguments, **{name: _moved(one, self._device) for name, one in named.items()})
        elif self._chained and len(arguments) > 1:
            value = self.call(arguments)
        else:
            value = self.call(*arguments)
        if not self.has_loss or not self._run.targets:
            return value
        return self._loss.of_unit(value, _moved(self._run.targets[unit], self._device), self._run.weights[unit])

    def _given_on(self, unit: int, made: _Unit, value: Any, keeps: bool) -> Tensors:
        """Keeps what the backward pass begins with; the outputs for the next stage, apart from the
        graph. The last stage has a loss."""
        if self.has_loss:
            run = self._run
            total = value.sum / run.weight if run.weight > 0 else value.sum * 0.0
            if run.loss_scale != 1:
                total = total * run.loss_scale
            made.outputs = [total] if keeps and total.requires_grad else []
            value.sum = value.sum.detach()
            run.losses[run.first_unit + unit] = value
            return ()
        if keeps and isinstance(value, torch.Tensor) and value.requires_grad:  # most often
            made.outputs, made.positions = (value,), (0,)
            return (value.detach().requires_grad_(),)
        given: list[Gradient] = []
        outputs, positions = [], []
        # What of a unit without a graph will need a gradient is known when it is computed again.
        wants = not keeps and (bool(made.inputs) or self._is_trained())
        for at, one in enumerate(self._tensors_of(value)):
            if one is None:
                given.append(None)
                continue
            alias = one.detach()
            if one.requires_grad or wants and one.is_floating_point():
                alias.requires_grad_()
                if keeps:
                    positions.append(at)
                    outputs.append(one)
            given.append(alias)
        made.outputs, made.positions = outputs, positions
        return tuple(given)

    def _is_trained(self) -> bool:
        return any(parameter.requires_grad for module in self.modules for parameter in module.parameters())

    def _of_outputs(self, made: _Unit, gradients: tuple[Any, ...]) -> tuple[Sequence[torch.Tensor], list[Any]]:
        """The outputs that were given a gradient, and these."""
        if self.has_loss:
            return made.outputs, [torch.ones_like(one) for one in made.outputs]
        if self._first_use is not None:
            gradients = self._of_uses(gradients)
        outputs, given = [], []
        for output, at in zip(made.outputs, made.positions):
            gradient = gradients[at]
            if gradient is not None:
                outputs.append(output)
                given.append(gradient if gradient.device == output.device else gradient.to(output.device))
        return outputs, given

    def _of_uses(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        """By output, the sum over its uses. The last stage comes first, as in autograd."""
        assert self._first_use is not None
        sums = []
        for first, end in zip(self._first_use, self._first_use[1:]):
            known = [one for one in reversed(gradients[first:end]) if one is not None]
            total = known[0] if known else None
            for one in known[1:]:
                total = total + one.to(total.device)
            sums.append(total)
        return tuple(sums)

    def _for_inputs(self, made: _Unit, found: Sequence[Gradient]) -> Tensors:
        if len(found) == len(made.arguments):
            return tuple(found)
        rest = iter(found)
        return tuple([next(rest) if one is not None and one.requires_grad else None for one in made.arguments])

    def _count(self, unit: int, made: _Unit | None) -> None:
        assert self.bytes is not None
        now = 0
        if made is not None:
            kept = [*made.arguments, *made.outputs, *made.gradients]
            kept += made.saved.tensors if made.saved is not None else []
            kept += made.split.captured() if made.split is not None else []
            apart = [one for module in self.modules for one in (*module.parameters(), *module.buffers())]
            apart += tree_leaves((self._run.inputs, self._run.targets))
            others = _storages(apart)
            now = sum(size for key, size in _storages(kept).items() if key not in others)
        self.bytes.add(now - self._counted.pop(unit, 0))
        if made is not None:
            self._counted[unit] = now

    def _evaluate(self, unit: int, given: tuple[Any, ...]) -> Tensors:
        with torch.no_grad():
            value = self._result(unit, self._entered(given).arguments)
            if not self.has_loss:
                return self._tensors_of(value)
            (self._run.losses if self._run.targets else self._run.outputs)[self._run.first_unit + unit] = value
            return ()

    def _tensors_of(self, value: Any) -> Tensors:
        if isinstance(value, torch.Tensor):
            return (value,)
        several = value if isinstance(value, (tuple, list)) else (value,)
        if several and all(one is None or isinstance(one, torch.Tensor) for one in several):
            return tuple(several)
        raise TypeError(f"{self.name} returned a {type(value).__name__}: a stage must return a tensor or a tuple of tensors")

    @contextmanager
    def _same_buffers(self) -> Any:
        """Running statistics were updated by the first forward pass of the unit."""
        owners = [(owner, dict(owner._buffers)) for module in self.modules for owner in module.modules() if owner._buffers]
        for owner, buffers in owners:
            for name, tensor in buffers.items():
                owner._buffers[name] = None if tensor is None else tensor.clone()
        try:
            yield
        finally:
            for owner, buffers in owners:
                owner._buffers.update(buffers)

    @contextmanager
    def _drawn(self, unit: int) -> Any:
        """Stages that draw random numbers take turns where they share a process."""
        with draws.turn if self._takes_turns else _NOTHING:
            draws.seed(self._run.step, self._run.first_unit + unit, self.number, self._run.seed)
            before = draws.GeneratorState() if self.draws is None else None
            yield
            if before is not None:
                self.draws = draws.GeneratorState() != before


def _leaf(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What a stage was given is no part of a graph: another stage has detached it."""
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def _moved(value: Any, device: torch.device) -> Any:
    """The tensors of a tree on that device."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    return tree_map_only(torch.Tensor, lambda one: one if one.device == device else one.to(device), value)


def _storages(tensors: Sequence[Any]) -> dict[int, int]:
    """Bytes by storage."""
    storages = [one.untyped_storage() for one in tensors if isinstance(one, torch.Tensor)]
    return {one._cdata: one.nbytes() for one in storages}


def _compiled(modules: Sequence[nn.Module]) -> list[nn.Module]:
    return [one for module in modules for one in module.modules()]


def require_dense(parameters: Sequence[nn.Parameter]) -> None:
    """Raises InvalidArgument for sparse gradients."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise InvalidArgument(f"a gradient of shape {list(parameter.shape)} is sparse: gradients must be dense (sparse=False)")
