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
    ModelCosts,
    Program,
    Shape,
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
from .errors import DataError, Error, InvalidArgument, StepError, Stopped
from .results import (
    Accumulation,
    ChannelCapacity,
    Compared,
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
    "Error",
    "Found",
    "Idle",
    "InvalidArgument",
    "Iterations",
    "ModelCosts",
    "Momentum",
    "Op",
    "Optimizer",
    "Parameter",
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
    "SweepRow",
    "SweepTable",
    "Trainer",
    "Unit",
    "Violation",
    "action_dtype",
    "compare",
    "gallery",
    "generate",
    "parameters",
    "schedules",
    "search",
    "sweep",
]
