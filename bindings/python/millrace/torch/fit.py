"""The loop of Pipeline.fit: epochs, validation, checkpoints, early stopping, progress."""

from __future__ import annotations

import re
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

import torch

from .._millrace import ValidationRecord, ValidationRules
from ..errors import InvalidArgument
from ..results import EpochReport, FitReport, Score, StepReport, ValidationReport
from .loss import rows, rows_of
from .records import RunFiles

if TYPE_CHECKING:
    from .pipeline import Pipeline

Listener = Optional[Callable[[Any], object]]


def rules(every: int | str, keep_best: str | None, early_stopping: int, min_delta: float) -> ValidationRules:
    """`every`: steps, or epochs as "2ep"."""
    match = re.fullmatch(r"([1-9]\d*)(ep)?", str(every))
    if match is None:
        raise InvalidArgument(f"validate_every {every!r}: must be steps, as 500, or epochs, as '2ep'")
    count = int(match[1])
    return ValidationRules(None if match[2] else count, count if match[2] else 1, keep_best, early_stopping, min_delta)


def require(saves: bool, validates: bool, keep_best: str | None, early_stopping: int, save_every: int | None) -> None:
    """Raises InvalidArgument for an option without what it needs."""
    for name, given, needs, there in (
            ("keep_best", keep_best, "validation", validates), ("early_stopping", early_stopping, "validation", validates),
            ("keep_best", keep_best, "save_folder", saves), ("save_every", save_every, "save_folder", saves)):
        if given and not there:
            raise InvalidArgument(f"{name} {given}: needs {needs}")


def bar(epochs: int, steps: int | None, batches: int | None) -> Any:
    """Of progress, where tqdm is installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=steps if steps is not None else None if batches is None else epochs * batches, unit="step")


@contextmanager
def hearing(pipeline: Pipeline) -> Iterator[None]:
    """The first Ctrl-C waits for the end of a mini-batch, where ranks agree; the second does not."""
    ours = (threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    def on_signal(*_: Any) -> None:
        pipeline.heard = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if ours:
        signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        pipeline.heard = pipeline.interrupted = False
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class Data:
    """Mini-batches by (epoch, number): of a pair of tensors or a Dataset shuffled by seed and epoch, of
    anything else as it yields them."""

    def __init__(self, data: Any, batch_size: int, seed: int) -> None:
        self._data, self._batch_size, self._seed = data, batch_size, seed
        self._size: Optional[int] = None
        if is_pair(data):
            self._size = rows_of(data[0])
        elif isinstance(data, torch.utils.data.Dataset):
            if not hasattr(data, "__len__"):
                raise InvalidArgument("data: a Dataset without a length cannot be shuffled; pass a DataLoader of it")
            self._size = len(data)

    def split(self, share: float) -> tuple[Data, Any]:
        """Without the last share of the samples, and these."""
        if not is_pair(self._data) or not 0 < share < 1:
            raise InvalidArgument(f"validation {share}: must be (inputs, targets), or a share of such data between 0 and 1")
        held = max(1, round(self._size * share))
        parts = [tuple(rows(one, part) for one in self._data) for part in
                 (slice(0, self._size - held), slice(self._size - held, None))]
        return Data(parts[0], self._batch_size, self._seed), parts[1]

    def epoch(self, number: int, skip: int) -> Iterator[tuple[Any, Any]]:
        """Its mini-batches from `skip` on."""
        if self._size is None:
            sampler = getattr(self._data, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(number)
            for at, batch in enumerate(self._data):
                if at >= skip:
                    yield as_pair(batch)
            return
        order = torch.randperm(self._size, generator=torch.Generator().manual_seed(self._seed + number))
        for part in order.split(self._batch_size)[skip:]:
            if is_pair(self._data):
                yield rows(self._data[0], part), rows(self._data[1], part)
            else:
                yield as_pair(torch.utils.data.default_collate([self._data[int(at)] for at in part]))

    def batches(self) -> Optional[int]:
        """In an epoch, where that is known."""
        if self._size is not None:
            return -(-self._size // self._batch_size)
        return len(self._data) if hasattr(self._data, "__len__") else None


def is_pair(data: Any) -> bool:
    """(inputs, targets) with a row per sample."""
    return isinstance(data, tuple) and len(data) == 2 and all(
        hasattr(one, "shape") or isinstance(one, (tuple, dict)) for one in data)


def as_pair(batch: Any) -> tuple[Any, Any]:
    """A mini-batch as it was yielded: two things, or inputs that have their targets among them."""
    return (batch[0], batch[1]) if isinstance(batch, (tuple, list)) and len(batch) == 2 else (batch, None)


class Fit:
    """One call of fit()."""

    def __init__(self, pipeline: Pipeline, data: Data, epochs: int, steps: Optional[int],
                 validation: Any, validates: ValidationRules, batch_size: int) -> None:
        self._of, self._data, self._epochs, self._steps = pipeline, data, epochs, steps
        self._validation, self._rules, self._batch_size = validation, validates, batch_size
        self.validates_first = False  # where Ctrl-C ended a validation
        self._epochs_done: list[EpochReport] = []
        self._validations: list[ValidationReport] = []
        digest = "" if validation is None else f"{_digest(validation):08x}"
        before = pipeline.validation
        fresh = validates.fresh(digest)
        self.record: ValidationRecord = before if (before.metric, before.data) == (fresh.metric, fresh.data) else fresh

    def run(self, on_step: Listener, on_epoch: Listener, on_validation: Listener, save_every: Optional[int],
            progress: Any, files: RunFiles) -> FitReport:
        began, first = time.perf_counter(), self._of.mini_batches
        samples, is_best = 0, False
        if self.validates_first:
            epoch, batch = self._of.position
            is_best = self._validate(epoch if batch else epoch - 1, on_validation)
        while not self._done(first):
            epoch, skip = self._of.position
            sums = _EpochSums(epoch)
            for (inputs, targets), is_last in _with_last(files.fetched(self._data.epoch(epoch, skip))):
                batch = self._of.position[1]
                report = self._of.step(inputs, targets)
                sums.add(report)
                self._of.position = (epoch + 1, 0) if is_last else (epoch, self._of.position[1] + 1)
                _tell(on_step, report)
                if progress is not None:
                    progress.set_postfix(epoch=epoch + 1, loss=f"{report.mean_loss:.4f}", refresh=False)
                    progress.update()
                with files.waits("validation"):
                    is_best = self._validate(epoch, on_validation) or is_best
                files.add(report, epoch, batch, self._validations)
                is_done = self._done(first)
                if is_last or is_done:
                    self._epochs_done.append(sums.report())
                    samples += sums.samples
                    _tell(on_epoch, self._epochs_done[-1])
                if self._of.checkpoints is not None and (is_best or _is_due(save_every, self._of.mini_batches)):
                    with files.waits("save"):
                        self._of.save()
                    is_best = False
                if self._of.interrupted:
                    raise KeyboardInterrupt(f"stopped after step {self._of.mini_batches}" + (
                        f", saved {self._of.save()}" if self._of.checkpoints is not None else ""))
                if is_done:
                    break
            if not sums.samples:
                raise InvalidArgument("data yields no mini-batch")
        if self._of.checkpoints is not None:
            self._of.save()
        return FitReport(tuple(self._epochs_done), samples, time.perf_counter() - began, tuple(self._validations),
                         self._rules.early_stop(self.record))

    def _done(self, first: int) -> bool:
        if self._rules.early_stop(self.record):
            return True
        if self._steps is not None:
            return self._of.mini_batches - first >= self._steps
        return self._of.position[0] >= self._epochs

    def _validate(self, epoch: int, on_validation: Listener) -> bool:
        """Whether it is the best one so far, and will be kept."""
        step = self._of.mini_batches
        if self._validation is None or self.record.step == step or not self._rules.is_due(step, *self._of.position):
            return False
        began = time.perf_counter()
        score = self._score()
        if self._of.interrupted:
            return False
        self.record = self._rules.next(self.record, step, score.mean_loss, score.accuracy)
        self._of.validation = self.record
        is_best = self.record.best_step == step
        report = ValidationReport(step, epoch, score.mean_loss, score.accuracy, score.samples,
                                  time.perf_counter() - began, is_best, self.record.without_improvement)
        self._validations.append(report)
        _tell(on_validation, report)
        return is_best

    def _score(self) -> Score:
        total = weight = right = 0.0
        samples = 0
        batches = self._validation if not is_pair(self._validation) else [
            tuple(rows(one, slice(at, at + self._batch_size)) for one in self._validation)
            for at in range(0, rows_of(self._validation[0]), self._batch_size)]
        for inputs, targets in map(as_pair, batches):
            score = self._of.evaluate(inputs, targets)
            if self._of.interrupted:
                break
            total, weight = total + score.loss_sum, weight + score.loss_weight
            right, samples = right + score.accuracy * score.loss_weight, samples + score.samples
        return Score(total / weight if weight else 0.0, total, weight, right / weight if weight else 0.0, samples)


class _EpochSums:
    """What the steps of an epoch add up to."""

    def __init__(self, epoch: int) -> None:
        self._epoch, self._began = epoch, time.perf_counter()
        self._loss = self._weight = 0.0
        self._updates = self._skipped = self.samples = 0

    def add(self, step: StepReport) -> None:
        self._loss += step.loss_sum
        self._weight += step.loss_weight
        self._skipped += step.skipped
        self._updates += not step.skipped
        self.samples += step.samples

    def report(self) -> EpochReport:
        return EpochReport(self._epoch, self._loss / self._weight if self._weight else 0.0, self._updates, self._skipped,
                           self.samples, time.perf_counter() - self._began)


def _with_last(batches: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Each, and whether it is the last one."""
    previous: list[Any] = []
    for batch in batches:
        if previous:
            yield previous.pop(), False
        previous.append(batch)
    if previous:
        yield previous.pop(), True


def _tell(listener: Listener, report: Any) -> None:
    if listener is not None:
        listener(report)


def _is_due(every: Optional[int], step: int) -> bool:
    return every is not None and step % every == 0


def _digest(data: Any) -> int:
    """Of validation data that lies in tensors: another set begins another comparison."""
    digest = 1
    for leaf in torch.utils._pytree.tree_leaves(data) if is_pair(data) else []:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            digest = zlib.crc32(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy(), digest)
    return digest
