"""A program's part in `millrace launch -n 4 -- python3 train.py`: its place among the processes, and
how it ends.

A Trainer finds its place by itself, so that a program needs no word of this. One that takes long
before it makes its Trainer says `join_launch()` first, or the others lose their patience. In a launched
program an exception of millrace that nobody catches gives the exit code of its kind
(`Error.exit_code`), by which the launch tells the rank that failed from those that lost it.
"""

from __future__ import annotations

import atexit
import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

import numpy as np

from . import _millrace
from .errors import Error, InvalidArgument, StepError

compared: dict[str, str] = {"python": platform.python_version(), "numpy": np.__version__}
"""What decides bits here: a module that computes adds its own when it is imported."""

action_timeout = 0.0
"""Least seconds that an action may take, for a module whose passes may compile first."""

_here: _millrace.Launched | None = None
_alone: _millrace.Launched | None = None
_failed = False
_told = any(f"MILLRACE_{name}" in os.environ for name in ("LAUNCH", "RENDEZVOUS", "WORLD", "RANK"))


def join_launch(fields: Mapping[str, object] | None = None) -> _millrace.Launched:
    """Meets the other ranks; at every further call, and where nobody launched this program, returns at
    once. `fields`: names and values of the program's own that must be equal on all ranks.

    A program that ends takes leave of the others by itself, unless an exception ended it: then it is
    lost to those that wait for it.
    """
    global _here
    if _here is not None:
        if fields:
            raise InvalidArgument("the ranks have met; call join_launch(fields) before the first Trainer")
        return _here
    all_fields = {**compared, **{name: str(value) for name, value in (fields or {}).items()}}
    with _ended_by_ctrl_c():
        _here = _millrace.meet(list(all_fields.items()), action_timeout)
    if _here.world > 1:
        atexit.register(_leave)
    return _here


def place() -> _millrace.Launched:
    """A Trainer's. Without a word of millrace's in the environment it is alone, though an engine (SLURM,
    torchrun, Kubernetes) may have numbered this process for something else."""
    global _alone
    if _here is not None or _told:
        return join_launch()
    if _alone is None:
        _alone = _millrace.alone()
    return _alone


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """While nothing but the network is heard, Ctrl-C ends the process as it ends any other."""
    ours = (threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    if not ours:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _ending_with_its_code(previous):
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _failed
        _failed = True
        if isinstance(error, StepError):
            error.__cause__ = None  # its traceback is in the sentence
        previous(kind, error, trace)
        if isinstance(error, Error):
            print(f"millrace: {_line_of(error)}", file=sys.stderr, flush=True)
            raise SystemExit(error.exit_code)

    return hook


def _line_of(error: Error) -> str:
    """One line, because a launch shows the end of a rank's log: who failed where, and the last line of a
    traceback."""
    lines = str(error).splitlines()
    return lines[0].replace("Traceback (most recent call last):", lines[-1])


def _leave() -> None:
    """A rank that failed does not leave: it is lost to those that wait for it. One that left ends with
    the code of its program, whatever becomes of the others."""
    if _here is None or _failed:
        return
    try:
        failed = _here.leave()
        if failed:
            print(f"millrace: {failed}", file=sys.stderr, flush=True)
    except Error as error:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(error.exit_code)


if _told:
    sys.excepthook = _ending_with_its_code(sys.excepthook)
