"""What fit() writes of a run: a record of every step, metrics for Prometheus, a page. The contents are those of
`millrace train`; all ranks take part, and rank 0 writes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Optional

from .._millrace import Group, Passes, RunTotals, StepRecord
from ..errors import DataError, Error, InvalidArgument
from ..results import StepReport, ValidationReport
from . import elastic

if TYPE_CHECKING:
    from .pipeline import Pipeline

_METRICS_AGE = 1.0  # seconds: Prometheus reads every few


class RunFiles:
    """Of one call of fit(). A Pipeline that has trained, or resumed, continues its log; what lies after its step
    is dropped."""

    def __init__(self, pipeline: Pipeline, passes: Passes, group: Group, paths: Sequence[Any], validates: bool) -> None:
        """`paths`: of log, metrics and page; None: not written."""
        self._of, self._passes, self._validates = pipeline, passes, validates
        self._log, self._metrics, self._report = ("" if one is None else os.fspath(one) for one in paths)
        self._file: Optional[BinaryIO] = None
        self._totals, self._last, self._first, self._written = RunTotals(), StepRecord(0, 0, validates), 0, 0.0
        self._restarts, self._began = elastic.place().attempt, float(os.environ.get("MILLRACE_BEGAN", 0))
        self._ended = self._began  # of the last step that counts
        self._waits = dict.fromkeys(("data", "save", "validation"), 0.0)
        self._is_used = any((self._log, self._metrics, self._report))
        if not self._is_used:
            return
        fault = ""
        if pipeline.rank == 0:
            try:
                self._open()
            except (OSError, Error) as failure:
                fault = str(failure)
        fault = pipeline.gather(fault)[0]
        if fault:
            raise InvalidArgument(fault)
        passes.watch(group)

    def _open(self) -> None:
        for path in filter(None, (self._metrics, self._report)):
            open(path, "ab").close()
        if not self._log:
            return
        shape = self._of.program.shape
        form = StepRecord(shape.ranks, max(1, self._of.world // shape.ranks), self._validates)
        columns = form.columns() if self._log.endswith(".csv") else ""
        kept = self._kept(columns) if self._of.mini_batches else []
        lines = [columns, *kept] if columns else kept
        self._file = open(self._log, "ab", buffering=0)
        self._file.truncate(0)
        self._file.write("".join(f"{line}\n" for line in lines).encode())

    def _kept(self, columns: str) -> list[str]:
        """The log's records up to the Pipeline's step."""
        if not os.path.exists(self._log):
            return []
        with open(self._log, encoding="utf-8", errors="replace") as file:
            lines = [line[:-1] for line in file if line.endswith("\n")]
        if columns and lines:
            if lines.pop(0) != columns:
                raise InvalidArgument(f"log {self._log}: has the columns of another number of ranks, or of another version; "
                                      "give another file, or one that ends in .jsonl")
        kept = []
        for number, line in enumerate(lines, 2 if columns else 1):
            try:
                record = StepRecord.read(line, columns)
            except DataError:
                raise InvalidArgument(f"log {self._log}: line {number} is not a whole record of a step") from None
            if record.step > self._of.mini_batches:
                break
            kept.append(line)
            self._count(record)
            if record.ended >= self._ended:  # of this job
                self._ended, self._restarts = record.ended, self._restarts - record.restarts
        return kept

    def _count(self, record: StepRecord) -> None:
        self._first = self._first or record.step
        self._totals.add(record)

    def fetched(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same, while the clock of data runs."""
        iterator, end = iter(batches), object()
        while True:
            with self.waits("data"):
                batch = next(iterator, end)
            if batch is end:
                return
            yield batch

    @contextmanager
    def waits(self, what: str) -> Iterator[None]:
        """Of the time until the next record."""
        began = time.perf_counter()
        yield
        self._waits[what] += time.perf_counter() - began

    def add(self, report: StepReport, epoch: int, batch: int, validations: Sequence[ValidationReport]) -> None:
        """The step that ended. A collective."""
        if not self._is_used:
            return
        record = self._passes.record(self._of.mini_batches, report, epoch, batch, self._of.loss_scale, **self._waits)
        self._waits = dict.fromkeys(self._waits, 0.0)
        if record is None:
            return
        record.validates, record.ended = self._validates, time.time()
        if validations:
            record.validation_loss, record.validation_accuracy = validations[-1].mean_loss, validations[-1].accuracy
        if self._restarts > 0 and self._began > 0:
            record.downtime = max(0.0, record.ended - record.seconds - self._ended)
        record.restarts, self._restarts = max(0, self._restarts), 0
        self._last = record
        self._count(record)
        if self._file is not None:
            self._file.write((record.csv() if self._log.endswith(".csv") else record.json()).encode() + b"\n")
        if self._metrics and time.monotonic() - self._written >= _METRICS_AGE:
            self._written = time.monotonic()
            _replace(self._metrics, self._totals.metrics(record))

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(self, *failure: object) -> None:
        """Writes metrics and page, of a run that failed too."""
        if self._file is not None:
            self._file.close()
        if not self._totals.steps or self._of.rank > 0:
            return
        if self._metrics:
            _replace(self._metrics, self._totals.metrics(self._last))
        if self._report:
            _replace(self._report, self._totals.page(*self._titles(), self._passes.program, self._last))

    def _titles(self) -> tuple[str, str]:
        program, late = self._of.program, ""
        if self._first > 1:
            late = f"; begins at step {self._first}, the steps before it are in no log"
        return (f"millrace.torch: {program.name}",
                f"model {type(self._of.model).__name__}, {program.shape.ranks} ranks, {program.shape.micro_batches} "
                f"micro-batches, optimizer {type(self._of.optimizer).__name__}, seed {self._of.seed}{late}")


def _replace(path: str, text: str) -> None:
    """Readers see the old file or the new one."""
    aside = f"{path}.new"
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(aside, path)
