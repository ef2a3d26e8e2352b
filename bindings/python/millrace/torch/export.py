"""Stages of one nn.Module by PyTorch's own export splitter, and of the Pipe that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from ..errors import InvalidArgument


def is_pipe(model: Any) -> bool:
    """Whether it is a Pipe of torch.distributed.pipelining."""
    return type(model).__name__ == "Pipe" and hasattr(model, "split_gm")


class _PipeStage(nn.Module):
    """One part of a Pipe: takes the values that are alive before it, returns those after it."""

    def __init__(self, part: nn.Module, takes: Sequence[int], values: int, passes_on: Sequence[int]) -> None:
        super().__init__()
        self.part = part
        self._takes, self._values, self._passes_on = tuple(takes), values, tuple(passes_on)

    def forward(self, *alive: Any) -> Any:
        """`passes_on` counts the values that came first, then those that the part makes."""
        made = self.part(*(alive[at] for at in self._takes))
        values = (*alive[: self._values], *(made if isinstance(made, (tuple, list)) else (made,)))
        return tuple(values[at] for at in self._passes_on) if len(self._passes_on) > 1 else values[self._passes_on[0]]


def pipe_modules(pipe: Any, stages: int) -> list[nn.Module]:
    """The stages of a Pipe. A value that skips stages passes through those between."""
    calls = [node for node in pipe.split_gm.graph.nodes if node.op == "call_module"]
    if len(calls) != stages:
        raise InvalidArgument(f"the Pipe has {len(calls)} stages; the schedule has {stages}")
    inputs = [node for node in pipe.split_gm.graph.nodes if node.op == "placeholder"]
    alive: list[Any] = list(inputs)  # values before the stage: (node, index) or node
    modules: list[nn.Module] = []
    for number, call in enumerate(calls):
        takes = [alive.index(_value(one)) for one in call.args]
        made = _made_by(call)
        known = [*alive, *made]
        wanted = _wanted_after(calls[number + 1 :], pipe.split_gm) if number + 1 < stages else _results(pipe.split_gm)
        passes_on = [at for at, value in enumerate(known) if value in wanted] if number + 1 < stages else [
            known.index(value) for value in wanted]
        part = pipe.get_stage_module(number)
        modules.append(_PipeStage(part, takes, len(alive), passes_on))
        alive = [known[at] for at in passes_on]
    return modules


def _value(node: Any) -> Any:
    """A node, or (call, index) of one that takes an output of several."""
    if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        return node.args[0], node.args[1]
    return node


def _made_by(call: fx.Node) -> list[Any]:
    items = sorted(_value(user)[1] for user in call.users if isinstance(_value(user), tuple))
    if not items:
        return [call]
    return [(call, at) for at in range(items[-1] + 1)]


def _wanted_after(calls: Sequence[fx.Node], whole: Any) -> list[Any]:
    return [_value(one) for call in calls for one in call.args] + _results(whole)


def _results(whole: Any) -> list[Any]:
    returned = next(node for node in whole.graph.nodes if node.op == "output").args[0]
    several = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [_value(one) for one in several if isinstance(one, fx.Node)]


def split_by_export(model: nn.Module, example: Any, split: Any, stages: int) -> list[nn.Module]:
    """`split`: names of the modules that begin a stage, or "even" or "parameters", which choose among
    the children of the module's longest list of blocks. Raises InvalidArgument for what PyTorch cannot
    export, with the line of the model."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    arguments, named = (example if isinstance(example, tuple) else (example,)), {}
    if isinstance(example, dict):
        arguments, named = (), example
    names = _begins(model, split, stages)
    try:
        pipe = pipeline(model, arguments, named or None, split_spec={name: SplitPoint.BEGINNING for name in names})
    except Exception as failure:
        raise InvalidArgument(f"{type(model).__name__} cannot be split: {_line_of(failure)}; give its stages as a list of "
                              "modules") from failure
    return pipe_modules(pipe, stages)


def _begins(model: nn.Module, split: Any, stages: int) -> list[str]:
    from .partition import boundaries

    known = dict(model.named_modules())
    if not isinstance(split, str) and all(isinstance(one, str) for one in split):
        unknown = next((name for name in split if name not in known), None)
        if unknown is not None:
            raise InvalidArgument(f"split '{unknown}': not a module of {type(model).__name__}")
        if len(split) != stages - 1:
            raise InvalidArgument(f"split names {len(split)} modules; {stages} stages need {stages - 1}")
        return list(split)
    lists = [(name, list(one.children())) for name, one in known.items()
             if isinstance(one, (nn.ModuleList, nn.Sequential)) and len(one) >= stages]
    if not lists:
        raise InvalidArgument(f"{type(model).__name__} has no list of {stages} or more blocks: split must name the "
                              f"{stages - 1} modules that begin a stage")
    name, blocks = max(lists, key=lambda one: len(one[1]))
    ends = boundaries(blocks, split, stages)
    return [f"{name}.{at}" for at in ends[1:-1]]


def _line_of(failure: Exception) -> str:
    """The user's line, and what PyTorch said of it."""
    import traceback

    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if "site-packages" not in frame.filename]
    text = next((line for line in str(failure).splitlines() if line.strip()), type(failure).__name__)
    user = [line.strip() for line in str(failure).splitlines() if 'File "' in line and "site-packages" not in line]
    if user:
        return f"{text} ({user[-1]})"
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
