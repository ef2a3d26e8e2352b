"""Modules of PyTorch in Python through any schedule.

    >>> import millrace.torch
    >>> pipeline = millrace.torch.Pipeline(model, ranks=4, micro_batches=8, schedule="zb-h1",
    ...                                    optimizer=millrace.AdamW(3e-4), loss=nn.CrossEntropyLoss())
    >>> pipeline.step(inputs, targets).mean_loss

`model` is trained in place: its parameters are what the pipeline's optimizer moves. Needs PyTorch;
`import millrace` alone does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

try:
    import torch
except ImportError as missing:
    raise ImportError(
        "millrace.torch needs PyTorch (Debian: python3-torch); import millrace works without"
    ) from missing
try:
    from . import _millrace_torch
except ImportError as missing:
    raise ImportError(
        "this millrace was built without modules of PyTorch; configure it with "
        '-DMILLRACE_COMPONENTS="torch;python"'
    ) from missing

from . import launch
from ._millrace import Program, Trainer, generate
from .errors import Error, InvalidArgument
from .results import Score, StepReport
from .torch_loss import LossRule, loss_rule
from .torch_stages import Cut, Cutting, ModuleStage
from .training import AdamW, Optimizer

__all__ = ["Dropout", "Pipeline"]

# What decides bits here, and has to be the same in all processes of a launch.
launch.compared.update(_millrace_torch.fields())

Tensors = Any  # a tensor, or a tuple of tensors, a row per sample


class Dropout(torch.nn.Module):
    """Dropout whose mask is a function of (seed, step, sample, layer) alone: the same under every
    schedule and cut, and again in a recompute. `layer` is a number of its own for each.
    torch.nn.Dropout works in a Pipeline, too; its masks depend on the cut."""

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate, self.layer = rate, layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _millrace_torch.dropout(x, self.rate, self.layer) if self.training else x


class _Place:
    """A place of a stage in the program: the trainer asks for those that this process hosts."""

    def __init__(self, make: Callable[[int], Any], number: int) -> None:
        self._make, self._number = make, number

    def __millrace_stage__(self) -> Any:
        return self._make(self._number).__millrace_stage__()


class Pipeline:
    """Trains a model of PyTorch by a schedule: one mini-batch in, one update out.

    - `model`: an nn.Sequential, cut into stages by `cut` ("even", "parameters" or boundaries from 0
      to its length), or a list of modules, one per stage, or a callable model(number) that makes the
      module of a stage. A tuple that a stage returns goes to the next one as it does in a
      Sequential, and as its arguments elsewhere.
    - `tie`: a parameter that modules of two stages share (an embedding and a head) becomes one in
      each, that stay equal: their gradients accumulate apart and are added once. Refused without.
    - `schedule`: a name for `generate`, with `ranks` (4), `micro_batches` (8) and `chunks`; or a
      Program, which has its own.
    - `loss`: called with outputs and targets; returns the sum over the unit's samples, or (sum,
      weight), or (sum, weight, right, judged). A mean is refused: the first unit's loss is compared
      with those of its halves. The gradient of a step is that of the sum of all
      over the weight of all. nn.CrossEntropyLoss and its like are taken with their reduction.
    - `loss_weight`: called with targets, says what their loss will weigh, where that is not the
      number of samples: `lambda targets: targets.numel()` for a loss per token.
    - `precision`: "bf16" runs modules and loss under autocast; parameters stay float32.
    - `recompute`: forwards keep their inputs alone, and run again before their backward.
    - `options` are those of millrace.Trainer: executor, learning_rate, save_folder, ...

    Weights and gradients are those of one thread that runs backward() for the same micro-batches in
    ascending order, bit for bit. A traceback in a module, the loss, a hook or an autograd.Function
    raises millrace.StepError; the next step works.

    Under `millrace launch -n 4 -- python3 train.py` a process is one rank and trains its stages of
    the model; the others' stay as they were made, so state_dict() is refused, the model's own too:
    save() writes a checkpoint of all. All ranks are given the same mini-batches, in the same order,
    or all of them raise millrace.Mismatch.
    """

    def __init__(
        self,
        model: torch.nn.Sequential | Sequence[torch.nn.Module] | Callable[[int], torch.nn.Module],
        *,
        loss: Callable[..., Any],
        ranks: int | None = None,
        micro_batches: int | None = None,
        schedule: str | Program = "1f1b",
        chunks: int | None = None,
        optimizer: str | Optimizer = AdamW(),
        loss_weight: Callable[..., float] | None = None,
        cut: Cut = "even",
        tie: bool = False,
        precision: str = "f32",
        executor: str = "sequential",
        **options: Any,
    ) -> None:
        if isinstance(schedule, str):
            schedule = generate(schedule, 4 if ranks is None else ranks,
                                8 if micro_batches is None else micro_batches, chunks=chunks)
        for name, given in (("ranks", ranks), ("micro_batches", micro_batches), ("chunks", chunks)):
            if given not in (None, getattr(schedule.shape, name)):
                raise InvalidArgument(f"{name} {given}: the program has {getattr(schedule.shape, name)}; "
                                      "leave it out, or generate the program with it")
        if schedule.shape.slices > 1:
            raise InvalidArgument(
                f"the schedule has {schedule.shape.slices} slices per micro-batch; modules of PyTorch take whole sequences"
            )
        self.model, self.program = model, schedule
        self._loss, self._precision = loss_rule(loss, loss_weight), precision
        self._seeds = executor == "sequential" or launch.place().world > 1
        self._cutting = Cutting(model, cut, schedule.shape, tie)
        self._stages: list[ModuleStage] = []  # of this process
        self._behind = 0  # updates of the fit that resume() goes on with
        places = [_Place(self._made, number) for number in range(self._cutting.count)]
        if self._cutting.tied:
            options["tied"] = [*options.get("tied", ()), *self._cutting.tied]
        self._trainer = Trainer(schedule, places, optimizer=optimizer, executor=executor, **options)
        if isinstance(model, torch.nn.Module):
            model._register_state_dict_hook(lambda *_: _refuse_a_part())

    def _made(self, place: int) -> Any:
        stage = self._cutting.stage(place)
        self._stages.append(stage)
        return _millrace_torch.TorchStage(
            forward=stage.forward,
            loss=self._loss.of_unit if stage.is_last else None,
            parameters=stage.parameters(),
            buffers=stage.buffers(),
            number=stage.number,
            precision=self._precision,
            seeds=self._seeds,
        )

    def step(self, inputs: Tensors, targets: Tensors = None, *, weight: float | None = None) -> StepReport:
        """One update by a mini-batch: tensors with a row per sample. `weight`: what the losses will
        weigh in all, unless `loss_weight` says so."""
        wanted = _tensors(targets)
        if weight is None and wanted:
            weight = self._loss.weight(wanted)
        with self._running():
            return self._trainer.step(_arrays(_tensors(inputs)), _arrays(wanted), weight=weight)

    def fit(
        self,
        data: Any,
        *,
        epochs: int = 1,
        batch_size: int = 128,
        seed: int = 1,
        on_step: Callable[[StepReport], object] | None = None,
    ) -> list[float]:
        """Trains over `data`, `epochs` times; the mean loss of each. After resume() it goes on where the
        checkpoint was saved: as many mini-batches as were updates are passed over, and an epoch of which
        nothing is left gives no mean.

        `data`: a pair (inputs, targets) or a torch Dataset, shuffled by `seed` and the epoch's
        number into mini-batches of `batch_size`; or anything that gives mini-batches (inputs,
        targets) when iterated over, a DataLoader, as it gives them."""
        losses = []
        behind, self._behind = self._behind, 0
        for epoch in range(epochs):
            total = weight = 0.0
            ran = False
            for inputs, targets in _mini_batches(data, batch_size, seed + epoch):
                if behind > 0:
                    behind -= 1
                    continue
                ran = True
                report = self.step(inputs, targets)
                total, weight = total + report.loss_sum, weight + report.loss_weight
                if on_step is not None:
                    on_step(report)
            if ran:
                losses.append(total / weight if weight else 0.0)
        return losses

    def evaluate(self, inputs: Tensors, targets: Tensors) -> Score:
        """The loss over tensors, without a change: modules are in eval() meanwhile."""
        with self._running(), self._evaluating():
            return self._trainer.evaluate(_arrays(_tensors(inputs)), _arrays(_tensors(targets)))

    def predict(self, inputs: Tensors) -> Any:
        """What the last stage gives, a row per sample: a tensor or a tuple; bf16 as float32. None where
        that stage lives in another process."""
        with self._running(), self._evaluating():
            predicted = self._trainer.predict(_arrays(_tensors(inputs)))
        if isinstance(predicted, tuple):
            return tuple(torch.from_numpy(one) for one in predicted)
        return predicted if predicted is None else torch.from_numpy(predicted)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model's tensors under the names that its own state_dict() has (a list's: those of
        nn.ModuleList), so that load_state_dict of a plain model takes them. Raises Error in one process
        of several, which has trained its own stages alone: save() has all."""
        _refuse_a_part()
        state: dict[str, torch.Tensor] = {}
        for stage in sorted(self._stages, key=lambda stage: stage.number):
            state.update(stage.state(self._cutting.names))
        return state

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Copies tensors into the model, and its copies where a schedule has them. Of several processes,
        each takes those of its stages."""
        for stage in self._stages:
            stage.load(self._cutting.names, state)

    def save(self) -> str:
        """Saves a checkpoint into `save_folder`; its folder. Trainers in C++ resume it, too."""
        return self._trainer.save()

    def resume(self, path: Any) -> str:
        """Takes the state from a checkpoint; its folder. The next fit() goes on from there."""
        folder = self._trainer.resume(path)
        self._behind = self._trainer.global_step
        return folder

    def weights_hash(self) -> str:
        """xxh3-128 over all parameters: equal bits, equal hash."""
        return self._trainer.weights_hash()

    def warnings(self) -> list[str]:
        """What is right but not as good as the schedule promises."""
        return self._trainer.warnings()

    @property
    def global_step(self) -> int:
        """Updates done."""
        return self._trainer.global_step

    @property
    def timeline(self) -> list[Any]:
        """Start and end of every action of the last step in seconds, an array per rank."""
        return self._trainer.timeline

    @contextmanager
    def _running(self) -> Iterator[None]:
        """PyTorch's generator is afterwards where it was, though units seed it."""
        for stage in self._stages:
            stage.require_same_tensors()
        state = torch.get_rng_state() if self._seeds else None
        try:
            yield
        finally:
            if state is not None:
                torch.set_rng_state(state)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modules = [module for stage in self._stages for one in stage.modules for module in one.modules()]
        before = [module.training for module in modules]
        try:
            for stage in self._stages:
                for module in stage.modules:
                    module.eval()
            yield
        finally:
            for module, training in zip(modules, before):
                module.training = training


def _refuse_a_part() -> None:
    """Of several processes each has trained its own stages of a model."""
    world = launch.place().world
    if world > 1:
        raise Error(
            f"state_dict() in one of {world} processes has only the stages that this rank has trained; call save() (with "
            "save_folder) in all of them, then resume() that checkpoint in one process, whose state_dict() is whole"
        )


def _tensors(given: Tensors) -> tuple[torch.Tensor, ...]:
    """Of a mini-batch; none of None."""
    several = given if isinstance(given, (tuple, list)) else () if given is None else (given,)
    tensors = tuple(torch.as_tensor(one).detach().contiguous() for one in several)
    for tensor in tensors:
        if tensor.dtype in (torch.bfloat16, torch.bool):
            raise InvalidArgument(
                f"a mini-batch has a tensor of {tensor.dtype}; they are float32, float16, float64, int32, int64 or uint8"
            )
    return tensors


def _arrays(tensors: tuple[torch.Tensor, ...]) -> Any:
    """Arrays over their memory."""
    return tuple(tensor.numpy() for tensor in tensors) or None


def _is_pair_of_tensors(data: Any) -> bool:
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and all(hasattr(one[0] if isinstance(one, tuple) else one, "shape") for one in data)
    )


def _mini_batches(data: Any, batch_size: int, seed: int) -> Iterable[tuple[Tensors, Tensors]]:
    """(inputs, targets), shuffled where `data` has single samples."""
    if _is_pair_of_tensors(data):
        columns = [one if isinstance(one, tuple) else (one,) for one in data]
        size, samples = len(columns[0][0]), _Columns(*columns)
    elif isinstance(data, torch.utils.data.Dataset):
        if not hasattr(data, "__len__"):
            raise InvalidArgument("a dataset without a length cannot be shuffled; give a DataLoader of it")
        size, samples = len(data), _Samples(data)
    else:
        return data
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return (samples(rows) for rows in order.split(batch_size))


class _Columns:
    """Mini-batches of tensors that lie whole in memory."""

    def __init__(self, inputs: tuple[Any, ...], targets: tuple[Any, ...]) -> None:
        self._inputs, self._targets = inputs, targets

    def __call__(self, rows: torch.Tensor) -> tuple[Tensors, Tensors]:
        return tuple(one[rows] for one in self._inputs), tuple(one[rows] for one in self._targets)


class _Samples:
    """Mini-batches of a dataset, whose samples are (input, ..., target)."""

    def __init__(self, data: torch.utils.data.Dataset) -> None:
        self._data = data

    def __call__(self, rows: torch.Tensor) -> tuple[Tensors, Tensors]:
        columns = torch.utils.data.default_collate([self._data[row] for row in rows.tolist()])
        return tuple(columns[:-1]), columns[-1]
