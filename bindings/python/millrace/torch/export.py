"""Stages of one nn.Module by PyTorch's own export splitter, and of the Pipe that it makes."""

from __future__ import annotations

import linecache
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_structure, tree_unflatten

from ..errors import InvalidArgument

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_of(given: Any) -> Arguments:
    """Of a call of the first stage: a dict has its keywords, a tuple or list its positions."""
    if hasattr(given, "keys"):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, (tuple, list)) else ((given,), {})


def is_pipe(model: Any) -> bool:
    """Whether it is a Pipe of torch.distributed.pipelining."""
    return type(model).__name__ == "Pipe" and hasattr(model, "split_gm")


@dataclass
class _Part:
    """A part of a Pipe. `passes_on` counts the values that are alive before it, then those that it makes."""

    module: nn.Module
    takes: list[int]
    passes_on: list[Any]  # of the last part, (constant,) stands for a constant result


class ExportedStage(nn.Module):
    """One part of an exported model: takes the values that are alive before it, returns those after it.
    `evaluated` is the part that was exported in eval(): a graph has the mode of its export for ever."""

    def __init__(self, trained: _Part, evaluated: Optional[_Part], example: Optional[Example],
                 result: Optional[TreeSpec]) -> None:
        super().__init__()
        self.part, self.evaluated = trained.module, None if evaluated is None else evaluated.module
        self._wiring = trained, evaluated or trained
        self.example, self._result = example, result
        self._changes_with_mode = evaluated is None and _depends_on_mode(trained.module)

    def forward(self, *given: Any, **named: Any) -> Any:
        """Of the first stage, the model's arguments; of the others, the values that are alive."""
        alive = tuple(given) if self.example is None else self.example.flat(given, named)
        wiring = self._wiring[0 if self.training else 1]
        if self._changes_with_mode and not self.training:
            raise InvalidArgument("this Pipe was exported with dropout or batch norm in one mode, and cannot evaluate; give "
                                  "the model itself with example=, or export it in eval()")
        part = self.part if self.training or self.evaluated is None else self.evaluated
        made = part(*(alive[at] for at in wiring.takes))
        values = (*alive, *(made if isinstance(made, (tuple, list)) else (made,)))
        kept = [at[0] if isinstance(at, tuple) else values[at] for at in wiring.passes_on]
        if self._result is not None:
            return tree_unflatten(kept, self._result)
        return tuple(kept) if len(kept) > 1 else kept[0]


class Example:
    """The arguments that a model was exported with. Whatever is not in a tensor is part of the graph, and
    so are all shapes."""

    def __init__(self, given: Any, placeholders: Sequence[str]) -> None:
        self._placeholders = list(placeholders)
        self._arguments = None if given is None else arguments_of(given)
        self.rows = next((len(leaf) for leaf in tree_leaves(given) if _has_rows(leaf)), 0)

    def flat(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """One value per placeholder of the graph, in its order."""
        order = list(self._arguments[1]) if self._arguments else [name for name in self._placeholders if name in named]
        if sorted(order) != sorted(named):
            raise InvalidArgument(f"the mini-batch has {sorted(named)}; the model was exported with {sorted(order)}")
        leaves = tree_leaves((given, {name: named[name] for name in order}))
        if len(leaves) != len(self._placeholders):
            raise InvalidArgument(f"the mini-batch has {len(leaves)} values; the model was exported with "
                                  f"{len(self._placeholders)}: {', '.join(self._placeholders)}")
        return tuple(leaves)

    def require(self, parts: Sequence[Arguments], samples: int) -> None:
        """Raises InvalidArgument for micro-batches that are not like the example."""
        if self._arguments is None:
            return
        want = self.flat(*self._arguments)
        if samples != len(parts) * self.rows:
            raise InvalidArgument(f"a mini-batch of {samples} samples: the model was exported for micro-batches of "
                                  f"{self.rows}, so it must have {len(parts)} x {self.rows} = {len(parts) * self.rows}; "
                                  "drop the last incomplete one (drop_last=True)")
        for name, wanted, one in zip(self._placeholders, want, self.flat(*parts[0]) if parts else ()):
            if not isinstance(wanted, torch.Tensor):
                if isinstance(one, torch.Tensor) or one != wanted:
                    raise InvalidArgument(f"{name} is {one!r:.40}; the model was exported with {wanted!r:.40}, part of "
                                          "the graph")
            elif not isinstance(one, torch.Tensor) or (one.shape, one.dtype) != (wanted.shape, wanted.dtype):
                raise InvalidArgument(f"{name} is {_in_words(one)} in a micro-batch; the model was exported for "
                                      f"{_in_words(wanted)}: use the shapes of example=, or give the stages as a list")


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _in_words(one: Any) -> str:
    return f"{str(one.dtype)[6:]}{list(one.shape)}" if isinstance(one, torch.Tensor) else f"{one!r:.40}"


def _depends_on_mode(module: nn.Module) -> bool:
    """Whether a graph has a node that eval() would change."""
    graphs = [one.graph for one in module.modules() if isinstance(getattr(one, "graph", None), fx.Graph)]
    return any(word in str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"
               for word in ("dropout", "batch_norm", "rrelu"))


def pipe_stages(pipe: Any, stages: int) -> list[nn.Module]:
    """The stages of a user's Pipe."""
    parts = _parts(pipe, stages)
    owners: dict[str, tuple[int, int]] = {}
    for number, part in enumerate(parts):
        for name, tensor in part.module.named_parameters():
            before = owners.setdefault(name, (number, id(tensor)))
            if before[1] != id(tensor):
                raise InvalidArgument(f"stages {before[0]} and {number} of the Pipe have a '{name}' each, that the "
                                      "exporter copied; give the model itself with example= and tie=True")
    return [ExportedStage(part, None, Example(None, _placeholders(pipe)) if number == 0 else None, None)
            for number, part in enumerate(parts)]


def _placeholders(pipe: Any) -> list[str]:
    return [node.target for node in pipe.split_gm.graph.nodes if node.op == "placeholder"]


def _parts(pipe: Any, stages: int) -> list[_Part]:
    """A value that skips stages passes through those between."""
    calls = [node for node in pipe.split_gm.graph.nodes if node.op == "call_module"]
    if len(calls) != stages:
        raise InvalidArgument(f"the Pipe has {len(calls)} stages; the schedule has {stages}")
    alive: list[Any] = [node for node in pipe.split_gm.graph.nodes if node.op == "placeholder"]  # before the stage
    returned = next(node for node in pipe.split_gm.graph.nodes if node.op == "output").args[0]
    results = [_value(one) for one in (returned if isinstance(returned, (tuple, list)) else (returned,))]
    parts = []
    for number, call in enumerate(calls):
        takes = [alive.index(_value(one)) for one in call.args]
        known = [*alive, *_made_by(call)]
        later = [_value(one) for after in calls[number + 1 :] for one in after.args] + results
        if number + 1 < stages:
            passes_on: list[Any] = [at for at, value in enumerate(known) if value in later]
        else:
            passes_on = [known.index(value) if value in known else (value,) for value in results]
        parts.append(_Part(pipe.split_gm.get_submodule(call.target), takes, passes_on))
        alive = [known[at] for at in passes_on] if number + 1 < stages else []
    return parts


def _value(node: Any) -> Any:
    """A node, or (call, index) of one that is an output of several."""
    if isinstance(node, fx.Node) and node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        return node.args[0], node.args[1]
    return node


def _made_by(call: fx.Node) -> list[Any]:
    items = sorted(value[1] for value in map(_value, call.users) if isinstance(value, tuple) and value[0] is call)
    return [(call, at) for at in range(items[-1] + 1)] if items else [call]


def split_by_export(model: nn.Module, given: Any, split: Any, stages: int) -> list[nn.Module]:
    """`split`: names of the modules that begin a stage, or "even", "parameters" or "time", which choose
    among the blocks of the model. Raises InvalidArgument for a model that PyTorch cannot export, with the
    line of the model. Parameters and buffers stay the model's own."""
    names = _begins(model, given, split, stages)
    parts, placeholders, result = _exported(model, given, names, stages)
    evaluated: Sequence[Optional[_Part]] = [None] * stages
    if any(one.training for one in model.modules()):
        modes = [(one, one.training) for one in model.modules()]
        model.eval()
        try:
            evaluated, _, _ = _exported(model, given, names, stages)
        finally:
            for one, mode in modes:
                one.training = mode
    else:
        evaluated = parts
    example = Example(given, placeholders)
    return [ExportedStage(part, other, example if number == 0 else None, result if number + 1 == stages else None)
            for number, (part, other) in enumerate(zip(parts, evaluated))]


def _exported(model: nn.Module, given: Any, names: Sequence[str], stages: int) -> tuple[list[_Part], list[str], Any]:
    """The parts, the names of the model's inputs, and the form of its result."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    positional, named = arguments_of(given)
    forms: list[TreeSpec] = []
    hook = model.register_forward_hook(lambda module, arguments, output: forms.append(tree_structure(output)))
    try:
        with _forward_methods_kept(model, names), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch about itself
            pipe = pipeline(model, positional, named or None, split_spec={name: SplitPoint.BEGINNING for name in names})
    except Exception as failure:
        raise InvalidArgument(f"{type(model).__name__} cannot be split: {_line_of(failure)}; give its stages as a list of "
                              "modules") from failure
    finally:
        hook.remove()
    parts = _parts(pipe, stages)
    for part in parts:
        _rebind(part.module, model)
    return parts, _placeholders(pipe), forms[-1] if forms else None


@contextmanager
def _forward_methods_kept(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """The splitter wraps the forward method of the modules that it begins a stage with, and leaves it so."""
    before = [(one, one.__dict__.get("forward")) for one in map(model.get_submodule, names)]
    try:
        yield
    finally:
        for one, method in before:
            one.__dict__.pop("_orig_forward", None)
            one.__dict__.pop("forward", None)
            if method is not None:
                one.forward = method


def _rebind(part: nn.Module, model: nn.Module) -> None:
    """The exporter copies a parameter that has two names: puts the model's own back."""
    for path, owner in part.named_modules():
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(owner, kind).items():
                try:
                    source = model.get_submodule(path)
                except AttributeError:
                    continue
                own = getattr(source, kind).get(key)
                if own is not None and own is not tensor:
                    getattr(owner, kind)[key] = own


def _begins(model: nn.Module, given: Any, split: Any, stages: int) -> list[str]:
    """The names of the modules that begin a stage, but the first."""
    from .partition import boundaries

    known = dict(model.named_modules())
    if not isinstance(split, str) and all(isinstance(one, str) for one in split):
        unknown = next((name for name in split if name not in known), None)
        if unknown is not None:
            raise InvalidArgument(f"split '{unknown}': not a module of {type(model).__name__}{_nearest(unknown, known)}")
        if len(split) != stages - 1:
            raise InvalidArgument(f"split names {len(split)} modules; {stages} stages need {stages - 1}")
        return list(split)
    lists = [(name, list(one.children())) for name, one in known.items()
             if isinstance(one, (nn.ModuleList, nn.Sequential)) and len(one) >= stages]
    if not lists:
        raise InvalidArgument(f"{type(model).__name__} has no list of {stages} or more blocks: split must name the "
                              f"{stages - 1} modules that begin a stage")
    name, blocks = max(lists, key=lambda one: sum(p.numel() for block in one[1] for p in block.parameters()))
    ends = boundaries(blocks, split, stages, lambda: measured(model, blocks, given))
    return [f"{name}.{at}" for at in ends[1:-1]]


def _nearest(name: str, known: Any) -> str:
    import difflib

    found = difflib.get_close_matches(name, [one for one in known if one], 1, 0.5)
    return f"; did you mean '{found[0]}'?" if found else ""


def measured(model: nn.Module, blocks: Sequence[nn.Module], given: Any) -> list[float]:
    """Seconds of each block in a forward pass of the model, the best of three; what comes before the
    first counts to it, what comes after the last to that."""
    begun: list[float] = []
    ended: list[float] = []
    hooks = [one.register_forward_pre_hook(lambda *_: begun.append(time.perf_counter())) for one in blocks[1:]]
    best = [float("inf")] * len(blocks)
    positional, named = arguments_of(given)
    buffers = [(one, one.clone()) for one in model.buffers()]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            for _ in range(4):
                begun[:], ended[:] = [time.perf_counter()], []
                model(*positional, **named)
                ended.append(time.perf_counter())
                times = [after - before for before, after in zip(begun, [*begun[1:], ended[0]])]
                if len(times) != len(blocks):
                    raise InvalidArgument("split 'time': every block must run once in a forward pass; use \"even\"")
                best = [min(pair) for pair in zip(best, times)]
    finally:
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    return best


def _line_of(failure: BaseException) -> str:
    """PyTorch's first line, and the line of the user's code that it came from."""
    chain = [failure]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = next((line for line in str(chain[-1]).splitlines() if line.strip()), type(chain[-1]).__name__)
    here = __file__.rsplit("/", 1)[0]
    for one in reversed(chain):
        for frame in reversed(traceback.extract_tb(one.__traceback__)):
            if not any(word in frame.filename for word in ("site-packages", "<", here, "/lib/python")):
                code = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
                return f"{type(chain[-1]).__name__}: {text} ({frame.filename}:{frame.lineno}: {code})"
    return f"{type(chain[-1]).__name__}: {text}"
