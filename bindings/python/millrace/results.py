"""What millrace's functions return: plain records, filled by the compiled module.

Times and memory are in the units of the costs; arrays are numpy's.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._millrace import Program


class Op(IntEnum):
    """What an action does: the numbers of `op` in arrays of actions."""

    FORWARD = 0
    BACKWARD = 1
    BACKWARD_INPUT = 2
    BACKWARD_WEIGHT = 3
    RECOMPUTE = 4
    SEND_FORWARD = 5
    RECV_FORWARD = 6
    SEND_BACKWARD = 7
    RECV_BACKWARD = 8
    REDUCE_GRAD = 9
    OPTIMIZER_STEP = 10


class Rule(IntEnum):
    """The rules of a correct schedule, numbered as in scheduler/README.md."""

    PLACEMENT = 1
    COMPLETENESS = 2
    WEIGHT_AFTER_INPUT = 3
    PAIRS = 4
    ORDER = 5
    MESSAGES = 6
    DEADLOCK = 7
    CAPACITY = 8
    MEMORY = 9
    ACCUMULATION = 10
    LOSS_WEIGHT = 11


def _table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """For a notebook."""
    lines = [columns, *[tuple(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows]]
    cells = ["".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in line)
             for kind, line in zip(["th"] + ["td"] * len(rows), lines)]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in cells) + "</table>"


@dataclass(frozen=True)
class Schedule:
    """One row of the catalogue (`millrace list`)."""

    name: str
    title: str
    parameters: tuple[str, ...]
    needs: str
    bubble: str
    peak: str
    source: str


@dataclass(frozen=True)
class Parameter:
    """A keyword of `generate` and what it may be."""

    name: str
    symbol: str
    allowed: str
    default: str
    help: str


@dataclass(frozen=True)
class Violation:
    """A rule that a program breaks, and where."""

    rule: Rule
    rank: int
    position: int
    action: str
    message: str
    others: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Accumulation:
    """Whether weight gradients add up in ascending order, as one thread would."""

    ascending: bool
    broken: int | None
    message: str


@dataclass(frozen=True)
class ChannelCapacity:
    """How many messages a channel has to hold."""

    source: int
    destination: int
    direction: str
    minimal: int
    sufficient: int


@dataclass(frozen=True)
class Idle:
    """Idle time of one rank by cause."""

    warm_up: float
    drain: float
    transfer: float
    imbalance: float
    processor: float
    dependency: float


@dataclass(frozen=True)
class RankReport:
    """Figures of one rank."""

    busy: float
    idle: Idle
    idle_overlapped: Idle
    peak_activation: float
    peak_bytes: float


@dataclass(frozen=True)
class Sums:
    """Sums over copies of the pipeline: the longest of a rank, what of it runs beside passes, what makes the step longer."""

    longest: float
    hidden: float
    exposed: float


@dataclass(frozen=True)
class Report:
    """A simulated run: its figures, its timeline, its memory.

    `timeline[r]` has a row (start, end) per action of rank r, `memory[r]` a row (time, memory) per
    change, `critical_chain` the (rank, position) of the actions that determine the makespan.
    """

    makespan: float
    step: float
    span: float
    span_asap: float
    bubble_makespan: float
    bubble_makespan_ratio: float
    bubble_span: float
    bubble_span_ratio: float
    critical_path: float
    sums: Sums
    ranks: tuple[RankReport, ...]
    timeline: list[np.ndarray] = field(repr=False, compare=False)
    memory: list[np.ndarray] = field(repr=False, compare=False)
    critical_chain: tuple[tuple[int, int], ...] = field(repr=False)

    def _repr_html_(self) -> str:
        """The timeline and the figures of the ranks, in a notebook."""
        wide, bars = self.makespan or 1.0, []
        for rank, actions in enumerate(self.timeline):
            bars += [f'<rect x="{960 * start / wide:.2f}" y="{20 * rank}" width="{960 * (end - start) / wide:.2f}" height="18" '
                     f'fill="#2e7d32" stroke="white"/>' for start, end in actions]
        picture = f'<svg viewBox="0 0 960 {20 * len(self.timeline)}" width="960">{"".join(bars)}</svg>'
        rows = [(number, rank.busy, self.makespan - rank.busy, rank.peak_activation, rank.peak_bytes)
                for number, rank in enumerate(self.ranks)]
        return (f"<div>makespan {self.makespan:.4g}, bubble {self.bubble_makespan_ratio:.2%}<br>{picture}"
                + _table(("rank", "busy", "idle", "peak activations", "peak bytes"), rows) + "</div>")


@dataclass(frozen=True)
class Iterations:
    """Several steps of one program in a row."""

    ends: tuple[float, ...]
    per_step: float


@dataclass(frozen=True)
class Spread:
    """Makespans of jittered runs."""

    mean: float
    least: float
    p05: float
    median: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True)
class StepReport:
    """One step of a Trainer."""

    global_step: int
    samples: int
    mean_loss: float
    loss_sum: float
    loss_weight: float
    gradient_norm: float
    clip_factor: float
    learning_rate: float
    skipped: bool
    seconds: float


@dataclass(frozen=True)
class EpochReport:
    """One epoch of Trainer.fit; its loss is that of every mini-batch before its update."""

    epoch: int
    mean_loss: float
    updates: int
    skipped: int
    samples: int
    seconds: float


@dataclass(frozen=True)
class ValidationReport:
    """One validation of Trainer.fit, after `step` mini-batches."""

    step: int
    epoch: int
    mean_loss: float
    accuracy: float
    samples: int
    seconds: float
    is_best: bool
    without_improvement: int


@dataclass(frozen=True)
class FitReport:
    """What Trainer.fit did; `early_stop` is why it ended before its last step, else empty."""

    epochs: tuple[EpochReport, ...]
    samples: int
    seconds: float
    validations: tuple[ValidationReport, ...] = ()
    early_stop: str = ""

    def _repr_html_(self) -> str:
        """Epochs and validations, in a notebook."""
        epochs = [(one.epoch, one.mean_loss, one.updates, one.samples, one.seconds) for one in self.epochs]
        scores = [(one.step, one.mean_loss, one.accuracy, "best" if one.is_best else "") for one in self.validations]
        return (f"<div>{self.samples} samples in {self.seconds:.4g} s {html.escape(self.early_stop)}"
                + _table(("epoch", "loss", "updates", "samples", "seconds"), epochs)
                + (_table(("step", "validation loss", "accuracy", ""), scores) if scores else "") + "</div>")


@dataclass(frozen=True)
class Score:
    """What Trainer.evaluate found."""

    mean_loss: float
    loss_sum: float
    loss_weight: float
    accuracy: float
    samples: int


@dataclass(frozen=True)
class Found:
    """A schedule that a search found; `parameters` are keywords of `generate`."""

    program: Program
    generator: str
    parameters: dict[str, Any]
    refinement: str
    recomputed_stages: str
    makespan: float
    span: float
    peak_memory: float
    step: float


@dataclass(frozen=True)
class SearchResult:
    """The best schedule, what is not beaten, and how far the best can be from the optimum.

    With recompute, `lower_bound` and `proven` cover recompute by stage: all micro-batches or none.
    """

    best: Found | None
    front: tuple[Found, ...]
    lower_bound: float
    gap: float
    proven: bool
    evaluations: int
    cut_by_time: bool


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is."""

    at: str
    candidates: int
    timed: int
    best: float


@dataclass(frozen=True)
class Compared:
    """One schedule of a comparison; without a program, `refused` says why there is none."""

    name: str
    program: Program | None
    report: Report | None
    violations: tuple[Violation, ...]
    accumulation: Accumulation | None
    left_out: tuple[str, ...]
    refused: str


@dataclass(frozen=True)
class SweepRow:
    """One combination of a sweep; without figures, `reason` says why it has no meaning."""

    schedule: str
    ranks: int
    micro_batches: int
    chunks: int
    slices: int
    data_parallel: int
    accumulate: int
    forward: float
    input: float
    weight: float
    latency: float
    bandwidth: float
    gradient_bytes: float
    costs: str
    memory_limit: float | None
    makespan: float | None
    bubble_makespan_ratio: float | None
    step: float | None
    span: float | None
    bubble_span_ratio: float | None
    sums_exposed: float | None
    peak_activation: float | None
    peak_memory: float | None
    same_bits: bool | None
    valid: bool | None
    reason: str


class SweepTable(list):
    """The rows of a sweep, in the order of its points. `csv` is the table that
    `millrace sweep` prints."""

    def __init__(self, rows: list[SweepRow], csv: str) -> None:
        super().__init__(rows)
        self.csv = csv

    def column(self, name: str) -> np.ndarray:
        """One field of all rows; NaN where a row has no figure."""
        values = [getattr(row, name) for row in self]
        return np.array([np.nan if value is None else value for value in values])
