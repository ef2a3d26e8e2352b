"""Types of the compiled half of millrace."""

from os import PathLike
from typing import Any, Callable, Literal, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .results import (
    Accumulation,
    ChannelCapacity,
    Compared,
    EpochReport,
    FitReport,
    Iterations,
    Parameter,
    Report,
    Schedule,
    Score,
    SearchProgress,
    SearchResult,
    Spread,
    StepReport,
    SweepTable,
    Violation,
    ValidationReport,
)
from .training import Optimizer, Stage

Numbers = float | Sequence[float] | npt.NDArray[np.floating[Any]]
Path = str | PathLike[str]
Actions = str | Sequence[str] | npt.NDArray[np.void]

action_dtype: np.dtype[np.void]
"""An action: op, with_next, replica, edge, stage, micro_batch, slice; 16 bytes."""

class Costs:
    def __init__(
        self,
        *,
        forward: Numbers | None = None,
        input: Numbers | None = None,
        weight: Numbers | None = None,
        recompute: Numbers | None = None,
        slice_costs: Numbers | None = None,
        chunk_costs: bool | None = None,
        memory_forward: Numbers | None = None,
        memory_input: Numbers | None = None,
        memory_weight: Numbers | None = None,
        memory_boundary: Numbers | None = None,
        latency: Numbers | None = None,
        bandwidth: Numbers | None = None,
        message_bytes: float | None = None,
        contention: bool | None = None,
        rank_speed: Numbers | None = None,
        cores: int | None = None,
        data_parallel: int | None = None,
        accumulate: int | None = None,
        gradient_bytes: Numbers | None = None,
        tree_of_sums: bool | None = None,
        atomic_pairs: bool | None = None,
        pair_cost: float | None = None,
        file: Path | None = None,
    ) -> None: ...
    @property
    def forward(self) -> list[float] | None: ...
    @property
    def input(self) -> list[float] | None: ...
    @property
    def weight(self) -> list[float] | None: ...
    @property
    def recompute(self) -> list[float] | None: ...
    @property
    def slice_costs(self) -> list[float] | None: ...
    @property
    def chunk_costs(self) -> bool: ...
    @property
    def memory_forward(self) -> list[float] | None: ...
    @property
    def memory_input(self) -> list[float] | None: ...
    @property
    def memory_weight(self) -> list[float] | None: ...
    @property
    def memory_boundary(self) -> list[float] | None: ...
    @property
    def latency(self) -> list[float] | None: ...
    @property
    def bandwidth(self) -> list[float] | None: ...
    @property
    def message_bytes(self) -> float | None: ...
    @property
    def contention(self) -> bool: ...
    @property
    def rank_speed(self) -> list[float] | None: ...
    @property
    def cores(self) -> int | None: ...
    @property
    def data_parallel(self) -> int: ...
    @property
    def accumulate(self) -> int: ...
    @property
    def gradient_bytes(self) -> list[float] | None: ...
    @property
    def tree_of_sums(self) -> bool: ...
    @property
    def atomic_pairs(self) -> bool: ...
    @property
    def pair_cost(self) -> float | None: ...
    @property
    def file(self) -> str | None: ...

CostsLike = Costs | Mapping[str, Any] | Path | None

class Shape:
    def __init__(
        self,
        ranks: int,
        micro_batches: int,
        placement: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        slices: int = 1,
        replica_of: Sequence[int] | None = None,
        forward_only: bool = False,
    ) -> None: ...
    @property
    def ranks(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def slices(self) -> int: ...
    @property
    def forward_only(self) -> bool: ...
    @property
    def stages(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def placement(self) -> list[list[int]]: ...
    @property
    def replica_of(self) -> list[int]: ...

class Program:
    def __init__(
        self, ranks: Sequence[Actions], shape: Shape | None = None, name: str = "program"
    ) -> None: ...
    @staticmethod
    def from_csv(
        text: str, *, old_letters: bool = False, skip_sharding: bool = False
    ) -> Program: ...
    @staticmethod
    def from_plan(text: str) -> Program: ...
    @staticmethod
    def read(path: Path, *, old_letters: bool = False, skip_sharding: bool = False) -> Program: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> list[npt.NDArray[np.void]]: ...
    @property
    def plan_hash(self) -> str: ...
    @property
    def recomputed_stages(self) -> str: ...
    def __len__(self) -> int: ...
    def texts(self) -> list[list[str]]: ...
    def to_csv(self) -> str: ...
    def to_pytorch_csv(
        self, *, for_: Literal["torch", "torchtitan", "automodel"] = "torch"
    ) -> str: ...
    def to_plan(self, *, boundaries: Sequence[int] | None = None) -> str: ...
    @property
    def boundaries(self) -> list[int]: ...
    def insert_messages(self) -> Program: ...
    def insert_messages_before_use(self) -> Program: ...
    def receive_before_use(self) -> Program: ...
    def insert_reductions(self, copies: int = 1) -> Program: ...
    def insert_recompute(self, stages: str = "all") -> Program: ...
    def split_backward(self) -> Program: ...
    def merge_backward(self) -> Program: ...
    def decouple_pairs(self) -> Program: ...
    def compute_only(self) -> Program: ...
    def verify(
        self,
        *,
        transport: Literal["unbounded", "rendezvous", "fifo"] | int = "unbounded",
        memory_limit: Numbers | None = None,
        costs: CostsLike = None,
        loss_weights: Sequence[float] | None = None,
    ) -> list[Violation]: ...
    def simulate(self, costs: CostsLike = None) -> Report: ...
    def simulate_iterations(
        self, costs: CostsLike = None, *, steps: int, barrier: bool = False
    ) -> Iterations: ...
    def simulate_jitter(
        self, costs: CostsLike = None, *, amount: float = 0.1, runs: int = 100, seed: int = 1
    ) -> Spread: ...
    def accumulation(self) -> Accumulation: ...
    def channel_capacities(self) -> list[ChannelCapacity]: ...
    def svg(self, costs: CostsLike = None, *, title: str | None = None) -> str: ...
    def _repr_svg_(self) -> str: ...
    def html(
        self, costs: CostsLike = None, *, title: str | None = None, others: Sequence[Program] = ...
    ) -> str: ...
    def ascii(self, costs: CostsLike = None, *, columns: int = 0, colour: bool = False) -> str: ...
    def trace(self, costs: CostsLike = None) -> str: ...
    def search(
        self,
        costs: CostsLike = None,
        *,
        progress: Callable[[SearchProgress], object] | None = None,
        objective: Literal["makespan", "span"] = "makespan",
        memory_limit: float | None = None,
        budget: int = ...,
        seed: int = 1,
        recompute: bool = False,
        bidirectional: bool = True,
        time_cap_seconds: float | None = None,
    ) -> SearchResult: ...

def schedules() -> list[Schedule]: ...
def parameters() -> list[Parameter]: ...
def generate(
    name: str,
    ranks: int = 4,
    micro_batches: int = 8,
    *,
    costs: CostsLike = None,
    chunks: int | None = None,
    slices: int | None = None,
    group: int | None = None,
    waves: int | None = None,
    order: Literal["fifo", "lifo"] | None = None,
    memory_limit: float | None = None,
) -> Program: ...
def gallery(ranks: int = 4, micro_batches: int = 8) -> str: ...
def search(
    ranks: int = 4,
    micro_batches: int = 8,
    *,
    costs: CostsLike = None,
    progress: Callable[[SearchProgress], object] | None = None,
    chunks: int | None = None,
    slices: int | None = None,
    objective: Literal["makespan", "span"] = "makespan",
    memory_limit: float | None = None,
    budget: int = ...,
    seed: int = 1,
    recompute: bool = False,
    bidirectional: bool = True,
    time_cap_seconds: float | None = None,
) -> SearchResult: ...
def compare(
    schedules: Sequence[str | Program],
    ranks: int = 4,
    micro_batches: int = 8,
    *,
    costs: CostsLike = None,
    chunks: int | None = None,
    slices: int | None = None,
    group: int | None = None,
    waves: int | None = None,
    order: Literal["fifo", "lifo"] | None = None,
    memory_limit: float | None = None,
) -> list[Compared]: ...
def sweep(
    schedules: str | Sequence[str],
    ranks: int | Sequence[int] = 4,
    micro_batches: int | Sequence[int] = 8,
    *,
    chunks: int | Sequence[int] | None = None,
    slices: int | Sequence[int] | None = None,
    data_parallel: int | Sequence[int] = 1,
    costs: CostsLike | tuple[float, float, float] | list[CostsLike | tuple[float, float, float]] = None,
    memory_limits: float | str | None | Sequence[float | str | None] = None,
    threads: int | None = None,
) -> SweepTable: ...

class Unit:
    kept: Any
    @property
    def micro_batch(self) -> int: ...
    @property
    def slice(self) -> int: ...
    @property
    def slices(self) -> int: ...
    @property
    def first_sample(self) -> int: ...
    @property
    def first_position(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def training(self) -> bool: ...
    @property
    def loss_scale(self) -> float: ...
    @property
    def targets(self) -> tuple[Any, ...] | None: ...
    @property
    def key(self) -> tuple[int, int, int]: ...
    def add_loss(self, sum: float, weight: float, correct: int = 0, evaluated: int = 0) -> None: ...

class Tensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    def __dlpack__(self, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Launched:
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def log_directory(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    def leave(self, seconds: float = 30.0) -> str: ...

def alone() -> Launched: ...
def meet(fields: Sequence[tuple[str, str]]) -> Launched: ...

Arrays = npt.NDArray[Any] | Sequence[npt.NDArray[Any]]

class Trainer:
    def __init__(
        self,
        program: Program,
        stages: Sequence[Stage | Any] | Callable[[int], Stage | Any],
        *,
        accumulate: int | None = None,
        accumulate_order: Literal["ascending", "tree"] | None = None,
        optimizer: str | Optimizer = "adamw",
        shard_optimizer: bool | None = None,
        learning_rate: str | None = None,
        warm_up: int | None = None,
        total_updates: int | None = None,
        clip_norm: float | None = None,
        loss_scale: str | None = None,
        max_skipped: int | None = None,
        parameters: Sequence[str] | None = None,
        frozen: Sequence[str] | None = None,
        tied: Sequence[Sequence[str]] | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        last_batch: Literal["update", "drop"] | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        recompute: bool | None = None,
        executor: Literal["sequential", "flow-graph", "ranks"] | None = None,
        threads_per_rank: int | None = None,
        save_folder: str | None = None,
        save_every: int | str | None = None,
        save_errors: Literal["stop", "continue"] | None = None,
        keep: int | None = None,
        keep_every: int | None = None,
        validate_every: int | str | None = None,
        keep_best: Literal["loss", "accuracy", "none"] | None = None,
        early_stopping: int | None = None,
        min_delta: float | None = None,
    ) -> None: ...
    def step(
        self, inputs: Arrays, targets: Arrays | None = None, *, weight: float | None = None
    ) -> StepReport: ...
    def fit(
        self,
        inputs: Arrays,
        targets: Arrays | None = None,
        *,
        validation: tuple[Arrays, Arrays] | float | None = None,
        on_step: Callable[[StepReport], object] | None = None,
        on_epoch: Callable[[EpochReport], object] | None = None,
        on_validation: Callable[[ValidationReport], object] | None = None,
    ) -> FitReport: ...
    def evaluate(self, inputs: Arrays, targets: Arrays) -> Score: ...
    def predict(self, inputs: Arrays) -> Any: ...
    def weights_hash(self) -> str: ...
    def save(self) -> str: ...
    def resume(self, path: Path) -> str: ...
    def warnings(self) -> list[str]: ...
    @property
    def global_step(self) -> int: ...
    @property
    def timeline(self) -> list[npt.NDArray[np.float64]]: ...
