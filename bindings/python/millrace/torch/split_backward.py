"""The two halves of a backward pass over any autograd graph: I for a stage's inputs, W for its
parameters. Together they give the bits of one `backward()`.

A *fork* is a node on the way from the outputs to an input that also leads to parameters by another
way. I runs the way alone and captures the gradient of each fork; W continues from the forks to their
parameters, in one call per group of forks. Forks are in one group if they share a parameter, so that
its gradient is added once, or if their calls would run the same node. Such a call runs the way between
two of its forks again, and a prehook puts the gradient of the first half in the place of what arrives.

W opens some of the tensors that the graph saved. The first unit of a stage learns which; the others
give the rest back after I.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge

Gradient = Optional[torch.Tensor]
Root = Union[torch.Tensor, GradientEdge]

# Graphs of a CPU run in the thread that calls, which needs no copy of its context.
_run = _engine_run_backward if torch.cuda.is_available() else Variable._execution_engine.run_backward


def accumulate(roots: Sequence[Root], gradients: Sequence[torch.Tensor], inputs: Sequence[Any] = ()) -> None:
    """autograd.backward(), whose checks of arguments in Python take as long as a small layer."""
    _run(tuple(roots), tuple(gradients), False, False, tuple(inputs), allow_unreachable=True, accumulate_grad=True)


def _captured(roots: Sequence[Root], gradients: Sequence[torch.Tensor], inputs: Sequence[Root]) -> tuple[Gradient, ...]:
    """As autograd.grad(). The graph stays."""
    return _run(tuple(roots), tuple(gradients), True, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False)


def _edge(tensor: torch.Tensor) -> GradientEdge:
    """get_gradient_edge() of what a stage returns: an operation of PyTorch, most often."""
    node = tensor.grad_fn
    if node is None or isinstance(node, torch._C._FunctionBase):
        return get_gradient_edge(tensor)
    return GradientEdge(node, tensor.output_nr)


class _Graph:
    """The nodes below the outputs, numbered with children before their parents. Inputs are leaves."""

    def __init__(self, roots: Sequence[GradientEdge], inputs: Sequence[torch.Tensor]) -> None:
        self.nodes: list[Any] = []
        at: dict[Any, int] = {}
        form: list[Any] = []
        below: dict[Any, Any] = {}
        places = {id(one): place for place, one in enumerate(inputs)}
        self.inputs = [-1] * len(places)
        stack = [edge.node for edge in roots]
        while stack:
            node = stack[-1]
            if node not in below:
                below[node] = edges = node.next_functions
                more = [child for child, _ in edges if child is not None and child not in below]
                if more:
                    stack += more
                    continue
            stack.pop()
            if node in at:
                continue
            at[node] = number = len(at)
            self.nodes.append(node)
            form.append(type(node))
            edges = below[node]
            for child, output in edges:
                form.append(None if child is None else (at[child], output) if output else at[child])
            if not edges and (place := places.get(id(getattr(node, "variable", None)))) is not None:
                self.inputs[place] = number
        self.roots = [(at[edge.node], edge.output_nr) for edge in roots]
        # Equal forms, equal graphs: nodes, edges, and where inputs and outputs are.
        self.form = (*form, *self.inputs, *self.roots)


class _Group:
    """Forks whose parameters get their gradients in one call."""

    __slots__ = ("forks", "leaves", "runs")

    def __init__(self, fork: int, leaves: int) -> None:
        self.forks, self.leaves = [fork], leaves
        self.runs = 0  # the nodes that the call runs


class _Plan:
    """What the two halves do with graphs of one form. Sets of nodes and leaves are bits of a number."""

    def __init__(self, graph: _Graph) -> None:
        count = len(graph.nodes)
        numbers = {node: at for at, node in enumerate(graph.nodes)}
        self._children: list[list[int]] = []
        used: list[set[int]] = [set() for _ in range(count)]  # outputs of each node
        for node in graph.nodes:
            edges = [(numbers[child], number) for child, number in node.next_functions if child is not None]
            self._children.append([child for child, _ in edges])
            for child, number in edges:
                used[child].add(number)
        for root, number in graph.roots:
            used[root].add(number)
        way, forks = set(graph.inputs), {}
        apart = [0] * count  # the leaves below a node that is not on the way
        self._reached = [0] * count  # all leaves below a node
        for at, children in enumerate(self._children):
            if at in way:
                continue
            if not children and hasattr(graph.nodes[at], "variable"):
                apart[at] = 1 << at
            for child in children:
                apart[at] |= apart[child]
                self._reached[at] |= self._reached[child]
            self._reached[at] |= apart[at]
            if any(child in way for child in children):
                way.add(at)
                if apart[at]:
                    forks[at] = apart[at]
                apart[at] = 0
        self.captured = [(fork, number) for fork in forks for number in sorted(used[fork])]
        self.given = [place for place, (root, _) in enumerate(graph.roots) if root not in way and apart[root]]
        for place in self.given:  # outputs that are made of parameters alone
            root = graph.roots[place][0]
            forks.setdefault(root, apart[root])
        groups = self._grouped([_Group(fork, leaves) for fork, leaves in forks.items()])
        self.clamped = [fork for group in groups for fork in group.forks
                        if fork in way and self._is_reached(fork, group)]
        self.groups = [(group.forks, [at for at in range(count) if group.leaves >> at & 1]) for group in groups]
        self.opened: Optional[set[int]] = None  # of the saved tensors, by W

    def _grouped(self, left: list[_Group]) -> list[_Group]:
        """Merges groups until no two run the same node."""
        done: list[_Group] = []
        for group in left:
            self._set_runs(group)
        while left:
            group = left.pop(0)
            other = next((one for one in done + left if one.runs & group.runs), None)
            if other is None:
                done.append(group)
                continue
            (done if other in done else left).remove(other)
            other.forks = sorted({*other.forks, *group.forks})
            other.leaves |= group.leaves
            self._set_runs(other)
            left.insert(0, other)
        return sorted(done, key=lambda group: -max(group.forks))

    def _set_runs(self, group: _Group) -> None:
        runs, stack = 0, list(group.forks)
        while stack:
            node = stack.pop()
            if runs >> node & 1 or not self._reached[node] & group.leaves:
                continue
            runs |= 1 << node
            stack += self._children[node]
        group.runs = runs

    def _is_reached(self, fork: int, group: _Group) -> bool:
        """Whether the group's call arrives at the fork from another node."""
        return any(fork in self._children[at] for at in range(fork + 1, len(self._children)) if group.runs >> at & 1)


class SavedTensors:
    """The tensors that the graph of one unit keeps, which it can give back one by one. The graph has to
    be used before this is dropped: it knows this weakly, because the tensors know the graph."""

    def __init__(self) -> None:
        self.tensors: list[Gradient] = []
        self.opened: set[int] = set()

    def hooks(self) -> Any:
        """Around the forward pass."""
        self_of = weakref.ref(self)

        def put(tensor: torch.Tensor) -> int:
            tensors = self_of().tensors
            tensors.append(tensor)
            return len(tensors) - 1

        def get(number: int) -> torch.Tensor:
            saved = self_of()
            assert saved is not None, "the graph of a micro-batch was used after its last pass"
            saved.opened.add(number)
            tensor = saved.tensors[number]
            assert tensor is not None, "the second half of a backward pass opened another tensor than before"
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(put, get)

    def keep(self, numbers: set[int]) -> None:
        """Gives the others back."""
        for number in range(len(self.tensors)):
            if number not in numbers:
                self.tensors[number] = None


class Learned:
    """The plans of a stage, by the form of its graphs."""

    def __init__(self) -> None:
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def of(self, graph: _Graph) -> _Plan:
        plan = self._plans.get(graph.form)
        if plan is None:
            plan = self._plans[graph.form] = _Plan(graph)
        return plan


class SplitBackward:
    """I when it is made, W when it is called; both once."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        saved: SavedTensors | None = None,
        learned: Learned | None = None,
    ) -> None:
        roots = [_edge(output) for output in outputs]
        graph = _Graph(roots, inputs)
        self._plan = plan = (learned or Learned()).of(graph)
        self._nodes, self._saved = graph.nodes, saved
        captured = [GradientEdge(graph.nodes[fork], number) for fork, number in plan.captured]
        self._clamps = {fork: _Clamp(graph.nodes[fork]) for fork in plan.clamped}
        found = _captured(roots, gradients, [*inputs, *captured])
        self.input_gradients: tuple[Gradient, ...] = found[: len(inputs)]
        self._given: dict[int, list[tuple[GradientEdge, torch.Tensor]]] = {}
        for (fork, _), edge, gradient in zip(plan.captured, captured, found[len(inputs) :]):
            if gradient is not None:
                self._given.setdefault(fork, []).append((edge, gradient))
        for place in plan.given:
            self._given.setdefault(graph.roots[place][0], []).append((roots[place], gradients[place]))
        if saved is not None:
            saved.opened = set()
            if plan.opened is not None:
                saved.keep(plan.opened)

    def captured(self) -> list[torch.Tensor]:
        """What W continues from."""
        return [gradient for pairs in self._given.values() for _, gradient in pairs]

    def weight(self) -> None:
        """W: adds to the gradients of the parameters."""
        for forks, leaves in self._plan.groups:
            given = [pair for fork in forks for pair in self._given.pop(fork, ())]
            if given:
                edges, gradients = zip(*given)
                accumulate(edges, gradients, [self._nodes[leaf].variable for leaf in leaves])
        for clamp in self._clamps.values():
            clamp.remove()
        if self._saved is not None:
            if self._plan.opened is None:
                self._plan.opened = self._saved.opened
            self._saved.tensors.clear()
        self._nodes, self._clamps = [], {}


class _Clamp:
    """Keeps what a node receives at first, after the hooks of its tensors, and gives it that again."""

    def __init__(self, node: Any) -> None:
        self._kept: Optional[tuple[Gradient, ...]] = None
        self.remove = node.register_prehook(self._meet).remove

    def _meet(self, arrived: tuple[Gradient, ...]) -> Optional[tuple[Gradient, ...]]:
        if self._kept is None:
            self._kept = arrived
            return None
        return self._kept
