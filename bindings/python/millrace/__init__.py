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

try:
    import numpy as _numpy  # noqa: F401  the compiled half cannot say that it is missing
except ImportError as _missing:
    raise ImportError("millrace needs numpy (Debian: python3-numpy; pip install numpy)") from _missing

from . import installation as _installation

_installation.check()

from ._millrace import (
    Costs,
    Launched,
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
from .built import version as __version__
from .errors import DataError, Error, InvalidArgument, Mismatch, PeerHangs, PeerLost, StepError, Stopped
from .keywords import explain_class, explained
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
    ValidationReport,
    Violation,
)
from .training import Adam, AdamW, Momentum, Optimizer, Sgd, Stage

for _name in ("compare", "gallery", "generate", "parameters", "schedules", "search", "sweep"):
    globals()[_name] = explained(globals()[_name], _name)
for _class in (Program, Shape, Trainer, Unit):
    explain_class(_class)

__all__ = [
    "Accumulation",
    "Adam",
    "AdamW",
    "ChannelCapacity",
    "Compared",
    "Costs",
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
    "ValidationReport",
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
