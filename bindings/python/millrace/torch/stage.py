"""A module as a stage: its passes, called for one micro-batch at a time by the thread of its rank."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from ..errors import InvalidArgument
from .loss import LossRule, UnitLoss
from .split_backward import Learned, SavedTensors, SplitBackward

Tensors = tuple[Optional[torch.Tensor], ...]

_drawing = threading.RLock()  # the default generators belong to the process
_MIX = 0x9E3779B97F4A7C15


def seed(step: int, micro_batch: int, stage: int, base: int = 1) -> None:
    """Seeds PyTorch's default generators as a pipeline does before every forward pass of a stage."""
    mixed = base
    for number in (step, micro_batch, stage):
        mixed = ((mixed ^ (number + 1)) * _MIX + (mixed >> 29)) & (2**64 - 1)
        mixed ^= mixed >> 32
    torch.manual_seed(mixed >> 1)


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

    __slots__ = ("arguments", "inputs", "outputs", "gradients", "saved", "split", "positions")

    def __init__(self, arguments: tuple[Any, ...], inputs: list[torch.Tensor]) -> None:
        self.arguments, self.inputs = arguments, inputs
        self.outputs: list[torch.Tensor] = []
        self.positions: list[int] = []  # of the outputs that need a gradient
        self.gradients: list[Any] = []
        self.saved: SavedTensors | None = None
        self.split: SplitBackward | None = None


class ModuleStage:
    """Runs `call`, which is made of `modules`. One thread at a time. `run` is set before every pass."""

    splits = True

    def __init__(
        self,
        call: Callable[..., Any],
        modules: Sequence[nn.Module],
        number: int,
        *,
        is_last: bool,
        chained: bool = False,
        loss: LossRule | None = None,
        precision: torch.dtype | None = None,
        threads: int = 1,
        takes_turns: bool = False,
        name: str | None = None,
    ) -> None:
        self.call, self.modules, self.number, self.is_last = call, list(modules), number, is_last
        self.run = StepInput()
        self._chained, self._loss, self._precision, self._threads = chained, loss, precision, threads
        self._takes_turns = takes_turns
        self.draws: bool | None = None  # not known before the first pass
        self._learned = Learned()
        self._units: dict[int, _Unit] = {}
        self.name = name or f"stage {number}"
        self.splits = not any(isinstance(one, torch._dynamo.eval_frame.OptimizedModule) for one in _compiled(modules))

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        for module in self.modules:
            for tensor in (*module.parameters(), *module.buffers()):
                return tensor.device
        return torch.device("cpu")

    # The five methods that the core calls.

    def forward(self, unit: int, recomputes: bool, *given: torch.Tensor | None) -> Tensors:
        with self._pass("F", unit):
            if not self.run.training:
                return self._evaluate(unit, given)
            made = self._entered(unit, given)
            if recomputes:
                with torch.no_grad():
                    value = self._called(unit, made)
                outputs = self._given_on(unit, made, value, keeps=False)
            else:
                outputs = self._given_on(unit, made, self._traced(unit, made), keeps=True)
            self._units[unit] = made
            return outputs

    def recompute(self, unit: int) -> None:
        with self._pass("R", unit), self._same_buffers():
            made = self._units[unit]
            self._given_on(unit, made, self._traced(unit, made), keeps=True)

    def backward(self, unit: int, *gradients: torch.Tensor | None) -> Tensors:
        with self._pass("B", unit):
            made = self._units.pop(unit)
            outputs, given = self._of_outputs(made, gradients)
            if outputs:
                torch.autograd.backward(outputs, given)
            found = iter([one.grad for one in made.inputs])
            return self._for_inputs(made, found)

    def backward_input(self, unit: int, *gradients: torch.Tensor | None) -> Tensors:
        with self._pass("I", unit):
            made = self._units[unit]
            outputs, given = self._of_outputs(made, gradients)
            if not outputs:
                made.outputs = []
                return self._for_inputs(made, iter([None] * len(made.inputs)))
            if not made.inputs:  # of data: there is nothing to give on
                made.outputs, made.gradients = outputs, given
                return self._for_inputs(made, iter(()))
            made.split = SplitBackward(outputs, given, made.inputs, made.saved, self._learned)
            found = iter(made.split.input_gradients)
            made.outputs, result = [], self._for_inputs(made, found)
            made.inputs, made.arguments, made.split.input_gradients = [], (), ()
            return result

    def backward_weight(self, unit: int) -> None:
        with self._pass("W", unit):
            made = self._units.pop(unit)
            if made.split is not None:
                made.split.weight()
            elif made.outputs:
                torch.autograd.backward(made.outputs, made.gradients)

    def abandon(self) -> None:
        """Drops all units of a failed step."""
        self._units.clear()
        self.run.losses.clear()
        self.run.outputs.clear()

    # What they are made of.

    @contextmanager
    def _pass(self, op: str, unit: int) -> Any:
        with ExitStack() as stack:
            if torch.get_num_threads() != self._threads:
                torch.set_num_threads(self._threads)
            device = self.device
            if device.type not in ("cpu", "meta"):
                stack.enter_context(getattr(torch, device.type).device(device))
            if torch.autograd._profiler_enabled():
                stack.enter_context(torch.profiler.record_function(f"{self.number}{op}{unit}"))
            if op in "FR" and self._precision is not None:
                stack.enter_context(torch.autocast(device.type, self._precision, cache_enabled=False))
            yield

    def _entered(self, unit: int, given: tuple[torch.Tensor | None, ...]) -> _Unit:
        """The unit with leaves of a graph of its own."""
        if self.number == 0:
            return _Unit((), [])
        device = self.device
        arguments = tuple(None if one is None else _leaf(one, device) for one in given)
        return _Unit(arguments, [one for one in arguments if one is not None and one.requires_grad])

    def _traced(self, unit: int, made: _Unit) -> Any:
        if not made.inputs or not self.splits:
            return self._called(unit, made)
        made.saved = SavedTensors()
        with made.saved.hooks():
            return self._called(unit, made)

    def _called(self, unit: int, made: _Unit) -> Any:
        """What the module makes of the unit; of the last stage (loss, weight, ...)."""
        with self._seeded(unit):
            value = self._value(unit, made.arguments)
            return self._loss_of(unit, value) if self.is_last else value

    def _value(self, unit: int, arguments: tuple[Any, ...]) -> Any:
        if self.number == 0:
            positional, named = self.run.inputs[unit]
            positional, named = _moved((tuple(positional), dict(named)), self.device)
            return self.call(*positional, **named)
        if self._chained and len(arguments) > 1:
            return self.call(arguments)
        return self.call(*arguments)

    def _loss_of(self, unit: int, value: Any) -> UnitLoss:
        assert self._loss is not None
        return self._loss.of_unit(value, _moved(self.run.targets[unit], self.device), self.run.weights[unit])

    def _given_on(self, unit: int, made: _Unit, value: Any, keeps: bool) -> Tensors:
        """Keeps what the backward pass begins with; the outputs for the next stage, apart from the
        graph. The last stage has a loss."""
        if self.is_last:
            total = value.sum / self.run.weight if self.run.weight > 0 else value.sum * 0.0
            if self.run.loss_scale != 1:
                total = total * self.run.loss_scale
            made.outputs, made.positions = [total] if keeps and total.requires_grad else [], [0]
            self.run.losses[self.run.first_unit + unit] = value.detached()
            return ()
        several = self._tensors_of(value)
        if not keeps:  # what will need a gradient is known when it is computed again
            wants = any(p.requires_grad for module in self.modules for p in module.parameters()) or bool(made.inputs)
            return tuple(None if one is None else
                         one.detach().requires_grad_(wants and one.is_floating_point()) for one in several)
        made.positions = [at for at, one in enumerate(several) if one is not None and one.requires_grad]
        made.outputs = [several[at] for at in made.positions]
        return tuple(None if one is None else one.detach().requires_grad_(one.requires_grad) for one in several)

    def _of_outputs(self, made: _Unit, gradients: tuple[Any, ...]) -> tuple[list[torch.Tensor], list[Any]]:
        """The outputs that were given a gradient, and these."""
        if self.is_last:
            return made.outputs, [None] * len(made.outputs)
        pairs = [(output, gradients[at]) for output, at in zip(made.outputs, made.positions) if gradients[at] is not None]
        return [one for one, _ in pairs], [one.to(output.device) for output, one in pairs]

    def _for_inputs(self, made: _Unit, found: Any) -> Tensors:
        return tuple(next(found) if one is not None and one.requires_grad else None for one in made.arguments)

    def _evaluate(self, unit: int, given: tuple[Any, ...]) -> Tensors:
        with torch.no_grad():
            arguments = tuple(None if one is None else _leaf(one, self.device) for one in given)
            with self._seeded(unit):
                value = self._value(unit, arguments)
            if not self.is_last:
                return self._tensors_of(value)
            if self.run.targets:
                self.run.losses[self.run.first_unit + unit] = self._loss_of(unit, value).detached()
            else:
                self.run.outputs[self.run.first_unit + unit] = value
            return ()

    def _tensors_of(self, value: Any) -> Tensors:
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

    def _seeded(self, unit: int) -> AbstractContextManager[Any]:
        """Stages that draw random numbers take turns where they share a process."""
        if self.draws is False or not self.run.training:
            return nullcontext()
        return self._drawn(unit)

    @contextmanager
    def _drawn(self, unit: int) -> Any:
        with _drawing if self._takes_turns else nullcontext():
            seed(self.run.step, self.run.first_unit + unit, self.number, self.run.seed)
            before = generator_state() if self.draws is None else None
            yield
            if before is not None and all(not parameter.is_meta for m in self.modules for parameter in m.parameters()):
                self.draws = generator_state() != before


def generator_state() -> bytes:
    """Of PyTorch's default generator on the CPU, which GPUs are seeded with."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return b"".join(state.numpy().tobytes() for state in states)


def _leaf(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    moved = tensor.detach() if tensor.device == device or device.type == "meta" else tensor.detach().to(device)
    return moved.requires_grad_(tensor.requires_grad)


def _moved(value: Any, device: torch.device) -> Any:
    """The tensors of a tree on that device."""
    return tree_map_only(torch.Tensor, lambda one: one if one.device == device else one.to(device), value)


def _compiled(modules: Sequence[nn.Module]) -> list[nn.Module]:
    return [one for module in modules for one in module.modules()]


def require_dense(parameters: Sequence[nn.Parameter]) -> None:
    """Raises InvalidArgument for sparse gradients."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise InvalidArgument(f"a gradient of shape {list(parameter.shape)} is sparse: gradients must be dense (sparse=False)")
