"""Pipeline schedules as data: generate, verify, simulate, search, draw them.

    >>> import millrace
    >>> plan = millrace.generate("zb-v", ranks=4, micro_batches=8)
    >>> plan.verify()
    []
    >>> print(plan)

A `Program` is one ordered list of actions per rank; everything here makes one, asks one, or makes
one of another. Errors are `ValueError`s or `RuntimeError`s of `millrace.errors` that say what was
given and what is allowed. Long calls release the interpreter's lock and end with Ctrl-C.
"""

from ._millrace import (
    Launched,
    ModelCosts,
    Program,
    Shape,
    Tensor,
    Trainer,
    Unit,
    action_dtype,
    compare,
    gallery,
    generate,
    parameters,
    schedules,
    search,
    sweep,
)
from .errors import DataError, Error, InvalidArgument, Mismatch, PeerHangs, PeerLost, StepError, Stopped
from .launch import join_launch
from .results import (
    Accumulation,
    ChannelCapacity,
    Compared,
    EpochReport,
    FitReport,
    Found,
    Idle,
    Iterations,
    Op,
    Parameter,
    RankReport,
    Report,
    Rule,
    Schedule,
    Score,
    SearchProgress,
    SearchResult,
    Spread,
    StepReport,
    Sums,
    SweepRow,
    SweepTable,
    Violation,
)
from .training import Adam, AdamW, Momentum, Optimizer, Sgd, Stage

__all__ = [
    "Accumulation",
    "Adam",
    "AdamW",
    "ChannelCapacity",
    "Compared",
    "DataError",
    "EpochReport",
    "Error",
    "FitReport",
    "Found",
    "Idle",
    "InvalidArgument",
    "Iterations",
    "Launched",
    "Mismatch",
    "ModelCosts",
    "Momentum",
    "Op",
    "Optimizer",
    "Parameter",
    "PeerHangs",
    "PeerLost",
    "Program",
    "RankReport",
    "Report",
    "Rule",
    "Schedule",
    "Score",
    "SearchProgress",
    "SearchResult",
    "Sgd",
    "Shape",
    "Spread",
    "Stage",
    "StepError",
    "StepReport",
    "Stopped",
    "Sums",
    "SweepRow",
    "SweepTable",
    "Tensor",
    "Trainer",
    "Unit",
    "Violation",
    "action_dtype",
    "compare",
    "gallery",
    "generate",
    "join_launch",
    "parameters",
    "schedules",
    "search",
    "sweep",
]
