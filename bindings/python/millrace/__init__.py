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
    action_dtype,
    compare,
    gallery,
    generate,
    parameters,
    schedules,
    search,
    sweep,
)
from .errors import DataError, Error, InvalidArgument, Stopped
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
    SearchProgress,
    SearchResult,
    Spread,
    SweepRow,
    SweepTable,
    Violation,
)

__all__ = [
    "Accumulation",
    "ChannelCapacity",
    "Compared",
    "DataError",
    "Error",
    "Found",
    "Idle",
    "InvalidArgument",
    "Iterations",
    "ModelCosts",
    "Op",
    "Parameter",
    "Program",
    "RankReport",
    "Report",
    "Rule",
    "Schedule",
    "SearchProgress",
    "SearchResult",
    "Shape",
    "Spread",
    "Stopped",
    "SweepRow",
    "SweepTable",
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
