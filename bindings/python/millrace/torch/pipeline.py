"""Pipeline: trains modules of PyTorch by any schedule, with the bits of a plain loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from .._millrace import Group, Label, Passes, Program, ValidationRecord
from ..errors import InvalidArgument, Mismatch
from ..results import FitReport, Score, StepReport
from . import draws, elastic, gradients, options, wire
from .batch import MiniBatch, joined
from .loss import Sink, sinks_of
from .optimizers import OptimizerOf, made_optimizer, made_scheduler
from .partition import Model, Partition, Split
from .saved_state import SavedState, gathered
from .stage import ModuleStage, StepInput, require_dense
from .version import require_torch


class Pipeline:
    """Trains a model of PyTorch by a schedule: one mini-batch in, one update of the model out.

    - `model`: an nn.Sequential; a list of modules, one per stage; any nn.Module with `example`, the
      arguments of one micro-batch (PyTorch's exporter splits it); a Pipe of
      torch.distributed.pipelining; or a callable that makes the module of a stage.
    - `split`: "even", "parameters", "time" (measured with `example`), boundaries, names of the modules
      that begin a stage, or a callable that makes a list of stages out of their number.
    - `loss`: called with outputs and targets; returns the sum over the micro-batch, or (sum, weight),
      or (sum, weight, right, evaluated). nn.CrossEntropyLoss and its like keep their reduction.
      `loss_weight(targets)`: what a loss weighs, if not the number of samples; without targets, called
      with the inputs. Several stages with a loss: {stage: (loss, factor), ...}, the last stage, whose loss
      is the main one, among them. The sum of factor x mean loss is minimized.
    - `edges`: (from stage, output, to stage, input), ..., where the stages are no chain.
    - `optimizer`: a torch.optim optimizer over the model's parameters, or a callable that makes one
      of [(name, parameter), ...] (needed where a callable makes the stages). `lr_scheduler`, or a
      callable that makes it of the optimizer, steps after every update.
    - `clip_norm`: the largest norm of the whole gradient, as torch.nn.utils.clip_grad_norm_.
    - `precision`: "bf16" or "f16" run modules and loss under autocast; f16 with a loss scale.
    - `tie`: trains a parameter that two stages share as one weight.
    - `data_parallel`: replicas of the pipeline, each with its part of the mini-batch.
    - `recompute`: keeps the inputs of stages alone and runs forward passes again.
    - `save_folder`: where save() and fit() write checkpoints, of which the newest `keep` stay.
    - `executor`: "flow-graph" (default), "ranks" or "sequential", in one process.

    The gradient of a step is that of (sum of losses) / (sum of weights). Weights have the bits of one
    torch thread that calls backward() for the same micro-batches in ascending order, for every schedule
    that verify() calls ascending. Under `millrace launch -n 4 -- python3 train.py` a process is one rank;
    all ranks are given the same mini-batches.
    """

    def __init__(
        self,
        model: Model,
        *,
        loss: Any,
        optimizer: OptimizerOf,
        ranks: int | None = None,
        micro_batches: int | None = None,
        schedule: str | Program = "1f1b",
        chunks: int | None = None,
        split: Split = "even",
        edges: Sequence[tuple[int, int, int, int]] | None = None,
        example: Any = None,
        loss_weight: Callable[[Any], Any] | None = None,
        clip_norm: float | None = None,
        lr_scheduler: Any = None,
        precision: str = "f32",
        loss_scale: float | None = None,
        tie: bool = False,
        accumulate: int = 1,
        data_parallel: int = 1,
        recompute: bool = False,
        executor: str = "flow-graph",
        threads_per_rank: int = 1,
        seed: int = 1,
        deadline: float = 600.0,
        save_folder: str | None = None,
        keep: int = 2,
        **unknown: Any,
    ) -> None:
        require_torch()
        options.refuse(unknown, Pipeline)
        casts_to = options.dtype_of(precision)
        program = options.program_of(schedule, ranks, micro_batches, chunks)
        self._sinks: list[Sink] = sinks_of(loss, loss_weight, program.shape.stages)
        self.model, self.program = model, options.connected(program, edges, self._sinks)
        self.clip_norm, self.seed = clip_norm, seed
        self.accumulate, self.global_step, self.frozen = accumulate, 0, []
        self._here, self._deadline = elastic.place(), deadline
        shape = self.program.shape
        self._copies = self._here.world // shape.ranks if self._here.world > 1 else data_parallel
        if self._here.world > 1 and data_parallel not in (1, self._copies):
            raise InvalidArgument(f"data_parallel {data_parallel}: {self._here.world} processes are {self._copies} replicas "
                                  f"of {shape.ranks} ranks")
        self._scale = gradients.LossScale(loss_scale) if precision == "f16" or loss_scale else None
        self._partition = Partition(model, split, shape, tie, example)
        self._stages: dict[tuple[int, int], ModuleStage] = {}
        takes_turns = self._here.world == 1 and executor != "sequential"
        rules = {sink.stage: sink.rule for sink in self._sinks}

        def made(replica: int, number: int) -> ModuleStage:
            stage = self._partition.stage(replica, number)
            self._stages[replica, number] = ModuleStage(
                stage.call, [stage.module], number, has_loss=number in rules, chained=stage.chained and not shape.edges,
                loss=rules.get(number), uses=options.uses(shape.edges, number), precision=casts_to, threads=threads_per_rank, takes_turns=takes_turns,
                name=f"stage {number}")
            return self._stages[replica, number]

        self._passes = Passes(self.program, made, executor, recompute, wire.pack, wire.unpack)
        self._partition.count_replicas()
        self._group = Group(self._here)
        self._sums = gradients.Sums(self._partition, self._here, shape, self._copies)
        self.optimizer = made_optimizer(optimizer, self._sums.trained(), self._partition.is_made_by_callable)
        self.lr_scheduler = made_scheduler(lr_scheduler, self.optimizer)
        self._evaluations = 0
        self.mini_batches = 0  # run, skipped ones included
        self.position = 0, 0  # epoch and number of the mini-batch that fit() would run next
        self.validation = ValidationRecord()
        self._resumed = False
        self.heard = self.interrupted = False  # Ctrl-C: in this process, and in one of all
        self._agree()
        self.saved = SavedState(self._partition, self._sums, self.optimizer, self.lr_scheduler, self._scale)
        self.checkpoints = None
        if save_folder is not None:
            from .checkpoint import Checkpoints  # needs the package safetensors

            self.checkpoints = Checkpoints(self, str(save_folder), keep)

    # What users call.

    def step(self, inputs: Any, targets: Any = None, *, weight: float | None = None) -> StepReport:
        """One update by a mini-batch: tensors with a row per sample, tuples of them, or a dict of keyword
        arguments. `weight`: what all losses weigh, unless `loss` knows."""
        began = time.perf_counter()
        batch = MiniBatch(inputs, targets, self.micro_batches_of_step(), self._sinks, weight)
        self._partition.require_inputs(batch.inputs, batch.samples)
        number, self.mini_batches = self.mini_batches, self.mini_batches + 1
        with self._running(batch, number, training=True):
            self._sums.zero()
            for copy in self._copies_here():
                for index in range(self.accumulate):
                    self._run(batch, number, copy, index, training=True)
                self._sums.add_copy(copy)
            self._sums.join(number)
            return self._update(batch, number, began)

    def evaluate(self, inputs: Any, targets: Any = None) -> Score:
        """The loss over a mini-batch, without a change: modules are in eval() meanwhile."""
        losses, batch = self._evaluated(inputs, targets)
        report = self._read(losses, [])
        return Score(report.mean, report.loss, report.weight,
                     report.right / (report.evaluated or report.weight or 1.0), batch.samples)

    def predict(self, inputs: Any) -> Any:
        """What the last stage returns, a row per sample; None where it is in another process."""
        outputs, _ = self._evaluated(inputs, None, predicts=True)
        if not outputs:
            return None
        return joined([outputs[unit] for unit in sorted(outputs)])

    def state_dict(self, gather: bool = True) -> dict[str, Any]:
        """The model's own state_dict(). `gather`: of all ranks, the same on each; all must call it."""
        own = {name: tensor for stage in self._hosted() for name, tensor in stage.module_state().items()}
        if gather and self._here.world > 1:
            own = gathered(own, self._group)
        return self._partition.whole_state(own)

    def load_state_dict(self, state: dict[str, Any] | str | os.PathLike[str]) -> None:
        """Copies tensors into the stages of this process, by the names of state_dict(); of a checkpoint's
        folder, which all ranks give, the weights and buffers. Optimizer and position stay as they are."""
        if isinstance(state, (str, os.PathLike)):
            from . import checkpoint

            state = checkpoint.weights(self, os.fspath(state))
        for stage in self._hosted():
            stage.load(state)

    def weights_hash(self) -> str:
        """xxh3-128 over the bytes of all parameters by name: equal bits, equal hash."""
        return gradients.weights_hash(self._sums.named(), self._group if self._here.world > 1 else None)

    def warnings(self) -> list[str]:
        """What is right but not as good as the schedule promises."""
        return self._passes.warnings()

    @property
    def timeline(self) -> list[Any]:
        """Start and end of every action of the last step in seconds, an array per rank."""
        return self._passes.timeline

    def _repr_html_(self) -> str:
        """The last step's actions, in a notebook."""
        return f"<div>{self._passes.svg(self.program.name + ', measured')}</div>"

    def fit(
        self,
        data: Any,
        *,
        epochs: int = 1,
        batch_size: int = 128,
        steps: int | None = None,
        seed: int = 1,
        validation: Any = None,
        validate_every: int | str = "1ep",
        keep_best: str | None = None,
        early_stopping: int = 0,
        min_delta: float = 0.0,
        save_every: int | None = None,
        on_step: Callable[[StepReport], object] | None = None,
        on_epoch: Callable[[Any], object] | None = None,
        on_validation: Callable[[Any], object] | None = None,
        progress: bool = False,
        log: Any = None,
        metrics: Any = None,
        report: Any = None,
    ) -> FitReport:
        """Trains for `epochs`, or `steps` mini-batches. After resume() it continues where the checkpoint was
        saved. Ctrl-C ends it behind a mini-batch, in all ranks and with a checkpoint; the second at once.

        - `data`: (inputs, targets) or a torch Dataset, shuffled by `seed` and the epoch's number into
          mini-batches of `batch_size`; or anything that yields mini-batches, as a DataLoader.
        - `validation`: the same, or the last share of a pair of tensors, as 0.1. It is evaluated every
          `validate_every` steps, or epochs as "2ep".
        - `keep_best`: "loss" or "accuracy": keeps the best checkpoint beside the newest.
        - `early_stopping`: ends after so many validations without an improvement of `min_delta`.
        - `save_every`: steps between checkpoints; the last state is saved too, where there is a save_folder.
        - `progress`: a bar, by the package tqdm.
        - `log`, `metrics`, `report`: files that rank 0 writes, as `millrace train` does: a record of every step
          (FILE.jsonl or FILE.csv; continued after resume()), metrics for Prometheus, the run as a page."""
        from . import fit, records

        validates = fit.rules(validate_every, keep_best, early_stopping, min_delta)
        fit.require(self.checkpoints is not None, validation is not None, keep_best, early_stopping, save_every)
        training = fit.Data(data, batch_size, seed)
        if isinstance(validation, float):
            training, validation = training.split(validation)
        if not self._resumed:
            self.position, self.validation = (0, 0), ValidationRecord()
        loop = fit.Fit(self, training, epochs, steps, validation, validates, batch_size)
        loop.validates_first, self._resumed = self._resumed, False
        bar = fit.bar(epochs, steps, training.batches()) if progress and self.rank == 0 else None
        with self.checkpoints.held() if self.checkpoints is not None else nullcontext(), fit.hearing(self):
            with records.RunFiles(self, self._passes, self._group, (log, metrics, report), validation is not None) as files:
                return loop.run(on_step, on_epoch, on_validation, save_every, bar, files)

    def save(self) -> str:
        """Saves a checkpoint into `save_folder`; its folder. All ranks call it."""
        if self.checkpoints is None:
            raise InvalidArgument("save() needs save_folder: Pipeline(save_folder='runs/name')")
        return self.checkpoints.save(self.validation, self.position)

    def resume(self, path: Any = "auto") -> str:
        """Continues from a checkpoint, the newest whole one of a folder, or "DIR/best"; returns its folder.
        "auto": the newest in `save_folder`, or nothing where there is none yet."""
        from . import checkpoint

        if str(path) == "auto":
            path = self.gather(self.checkpoints.newest() if self.checkpoints is not None else "")[0]
            if not path:
                return ""
        folder, manifest = checkpoint.checkpoint_at(str(path), self)
        self.validation = checkpoint.load(self, folder, manifest)
        if self.checkpoints is not None:
            self.checkpoints.loaded = folder
        self._resumed = True
        return folder

    # A step.

    def micro_batches_of_step(self) -> int:
        return self.program.shape.micro_batches * self.accumulate * self._copies

    def _copies_here(self) -> Sequence[int]:
        if self._here.world == 1:
            return range(self._copies)
        return [self._here.rank // self.program.shape.ranks]

    def _hosted(self) -> list[Any]:
        return [self._partition.stage(replica, number) for replica, number in sorted(self._stages)]

    def _run(self, batch: MiniBatch, number: int, copy: int, index: int, training: bool) -> None:
        count = self.program.shape.micro_batches
        first = (copy * self.accumulate + index) * count
        runs = {}
        for losses in batch.losses:
            runs[losses.sink.stage] = run = StepInput(
                step=number, seed=self.seed, first_unit=first, weight=losses.weight, training=training,
                loss_scale=self.loss_scale * losses.sink.factor if training else 1.0,
                inputs=batch.inputs[first : first + count], targets=batch.targets[first : first + count],
                weights=losses.weights[first : first + count], first_row=batch.first_rows[first : first + count],
                losses=losses.of_unit, outputs=batch.outputs if losses is batch.losses[-1] else {})
        for (_, stage), body in self._stages.items():
            body.run = runs.get(stage, run)
        self._passes.run(number, training, index if training else 0, self.accumulate if training else 1, self._deadline)

    def _update(self, batch: MiniBatch, number: int, began: float) -> StepReport:
        owned = self._sums.trained()
        require_dense([parameter for _, parameter in owned])
        if self._scale is not None:
            gradients.divide(owned, self._scale.value)
        with self._working("NORM", number):
            norms = self._sums.norms()
            read = self._read([one.of_unit for one in batch.losses], norms, batch.digest() if self._here.world > 1 else 0)
            total = self._sums.total(read)
        for losses, found in zip(batch.losses, (*read.others, read)):
            losses.require_weight(found.weight)
        skipped = all(found.weight == 0 for found in (*read.others, read)) or (self._scale is not None and not self._scale.accept(bool(torch.isfinite(total))))
        factor = 1.0
        rate = float(self.optimizer.param_groups[0]["lr"]) if self.optimizer is not None else 0.0
        if not skipped:
            if self.clip_norm is not None:
                factor = gradients.clip(self._sums.here(), self.clip_norm, total)
            with self._working("STEP", number):
                if self.optimizer is not None:
                    self.optimizer.step()
                if self.lr_scheduler is not None:
                    self.lr_scheduler.step()
            self.global_step += 1
        self._sums.zero()
        return StepReport(self.global_step, batch.samples, read.mean, read.loss,
                          read.weight, float(total), factor, rate, bool(skipped), time.perf_counter() - began,
                          {sink.stage: found.mean for sink, found in zip(self._sinks, read.others)})

    def _read(self, losses: Any, norms: list[torch.Tensor], digest: int = 0) -> Any:
        """What the host learns of a step, of all ranks; everything on a device is read here, at once."""
        read = gradients.read(losses, norms, digest, self._group if self._here.world > 1 else None, self.heard)
        self.interrupted = read.interrupted
        return read

    @contextmanager
    def _working(self, what: str, number: int) -> Iterator[None]:
        self._group.working(what, number)
        try:
            yield
        finally:
            self._group.working("", number)

    @contextmanager
    def _running(self, batch: MiniBatch, number: int, training: bool) -> Iterator[None]:
        """Puts back what passes change of PyTorch's state; after an error there are no gradients."""
        for stage in self._hosted():
            stage.require_same_tensors()
        draws_none = all(stage.draws is False for stage in self._stages.values())
        self._group.begin_step(number, training)
        with draws.kept():
            try:
                before = draws.GeneratorState()
                yield
                if training and draws_none and draws.GeneratorState() != before:
                    raise InvalidArgument("a stage drew random numbers, but not in the first step: its masks would depend on the "
                                          "schedule. Draw in every step, or from your own generator.")
            except BaseException as failure:
                if training:
                    self._sums.zero()
                if self._here.world > 1:
                    self._group.cancel(f"{type(failure).__name__}: {failure}".splitlines()[0])
                raise

    def _evaluated(self, inputs: Any, targets: Any, predicts: bool = False) -> tuple[Any, MiniBatch]:
        count = self.program.shape.micro_batches
        batch = MiniBatch(inputs, targets, count, self._sinks, None, predicts)
        self._partition.require_inputs(batch.inputs, batch.samples)
        number, self._evaluations = self._evaluations, self._evaluations + 1
        modules = [one for stage in self._hosted() for one in stage.module.modules()]
        modes = [one.training for one in modules]
        try:
            for stage in self._hosted():
                stage.module.eval()
            with self._running(batch, number, training=False):
                self._run(batch, number, 0, 0, training=False)
        finally:
            for module, mode in zip(modules, modes):
                module.training = mode
        return (batch.outputs if predicts else [one.of_unit for one in batch.losses]), batch

    # What its checkpoints and fit() ask.

    @property
    def rank(self) -> int:
        return self._here.rank

    @property
    def world(self) -> int:
        return self._here.world

    @property
    def copy(self) -> int:
        """Which data-parallel replica this process is of."""
        return self._here.rank // self.program.shape.ranks if self._here.world > 1 else 0

    @property
    def loss_scale(self) -> float:
        return self._scale.value if self._scale is not None else 1.0

    def gather(self, text: str) -> list[str]:
        """Of all ranks."""
        if self._here.world == 1:
            return [text]
        return self._group.gather(text, Label.Checkpoint)

    # What ranks share.

    def _agree(self) -> None:
        """Raises Mismatch unless all ranks have the same plan and settings."""
        if self._here.world == 1:
            return
        factors = [sink.factor for sink in self._sinks]
        mine = repr((self.program.plan_hash, self.accumulate, self.clip_norm, self.seed, sorted(self._partition.shared), factors))
        for rank, theirs in enumerate(self._group.gather(mine, Label.Settings)):
            if theirs != mine:
                raise Mismatch(f"rank {rank} has another plan or setting than rank {self._here.rank}: {theirs} and {mine}")
