"""The two halves of a backward pass over any autograd graph: I for a stage's inputs, W for its
parameters. Together they give the bits of one `backward()`.

A *fork* is a node on the way from the outputs to an input that also leads to parameters by another
way. I runs the way alone and captures the gradient of each fork; W continues from the forks to their
parameters, in one call per group of forks. Forks are in one group if they share a parameter, so that
its gradient is added once, or if their calls would run the same node. Such a call runs the way between
two of its forks again, and a prehook puts the gradient of the first half in the place of what arrives.

W opens some of the tensors that the graph saved. The first unit of a stage learns which; the others
give the rest back after I. A stage whose rest is parameters, or ended with the nodes above all
forks, has nothing to give back: its later units keep their tensors in the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge

from .._millrace import match_graph

Gradient = Optional[torch.Tensor]
Root = Union[torch.Tensor, GradientEdge]

# Graphs of a CPU run in the thread that calls, which needs no copy of its context.
_run = _engine_run_backward if torch.cuda.is_available() else Variable._execution_engine.run_backward
_PythonNode = torch._C._FunctionBase


def accumulate(roots: Sequence[Root], gradients: Sequence[torch.Tensor], inputs: Sequence[Any] = ()) -> None:
    """autograd.backward(), whose checks of arguments in Python take as long as a small layer."""
    _run(tuple(roots), tuple(gradients), False, False, tuple(inputs), allow_unreachable=True, accumulate_grad=True)


def _captured(roots: Sequence[Root], gradients: Sequence[torch.Tensor], inputs: Sequence[Root]) -> tuple[Gradient, ...]:
    """As autograd.grad(). The graph stays."""
    return _run(tuple(roots), tuple(gradients), True, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False)


def _edge(tensor: torch.Tensor) -> GradientEdge:
    """get_gradient_edge() of what a stage returns: an operation of PyTorch, most often."""
    node = tensor.grad_fn
    if node is None or isinstance(node, _PythonNode):
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
        self._roots, self._inputs = tuple(graph.roots), graph.inputs
        walk: list[Any] = []
        for node in graph.nodes:
            every = [(-1 if child is None else numbers[child], number) for child, number in node.next_functions]
            walk.append((numbers[node], type(node), tuple(every)))
            edges = [edge for edge in every if edge[0] >= 0]
            self._children.append([child for child, _ in edges])
            for child, number in edges:
                used[child].add(number)
        for root, number in graph.roots:
            used[root].add(number)
        self._form = tuple(reversed(walk))  # parents first
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
        below = {child for children in self._children for child in children}
        # Outputs whose gradient is what a call of W begins with: of forks, and of parameters alone.
        given = [place for place, (root, _) in enumerate(graph.roots)
                 if (root in forks and root not in below if root in way else apart[root])]
        self.captured = [(fork, number) for fork in forks if fork in below for number in sorted(used[fork])]
        for place in given:
            root = graph.roots[place][0]
            forks.setdefault(root, apart[root])
        groups = self._grouped([_Group(fork, leaves) for fork, leaves in forks.items()])
        self.clamped = [fork for group in groups for fork in group.forks
                        if fork in way and self._is_reached(fork, group)]
        # By call of W: places among the captured and the outputs, and leaves.
        self.groups = [([place for fork in group.forks for place, (at, _) in enumerate(self.captured) if at == fork],
                        [place for fork in group.forks for place in given if graph.roots[place][0] == fork],
                        [at for at in range(count) if group.leaves >> at & 1]) for group in groups]
        self.opened: Optional[set[int]] = None  # of the saved tensors, by W
        self.gives_back = True  # others than these and parameters, as far as is known

    def matched(self, roots: Sequence[GradientEdge], inputs: Sequence[torch.Tensor]) -> Optional[list[Any]]:
        """The nodes, by number, of a graph of this form; None if that is not certain."""
        nodes = match_graph(self._form, self._roots, roots)
        if nodes is None or len(inputs) != len(self._inputs):
            return None
        for one, at in zip(inputs, self._inputs):
            if at < 0 or nodes[at].variable is not one:
                return None
        return nodes

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


class _Place:
    """Of a saved tensor. It ends with the node that saved it."""

    __slots__ = ("number", "__weakref__")


class SavedTensors:
    """The tensors that the graph of one unit keeps, which it can give back one by one. The graph has to
    be used before this is dropped: it knows this weakly, because the tensors know the graph."""

    def __init__(self) -> None:
        self.tensors: list[Gradient] = []
        self._places: list[Any] = []
        self.opened: set[int] = set()

    def hooks(self) -> Any:
        """Around the forward pass."""
        self_of = weakref.ref(self)

        def put(tensor: torch.Tensor) -> _Place:
            saved, place = self_of(), _Place()
            place.number = len(saved.tensors)
            saved.tensors.append(tensor)
            saved._places.append(weakref.ref(place))
            return place

        def get(place: _Place) -> torch.Tensor:
            saved = self_of()
            assert saved is not None, "the graph of a micro-batch was used after its last pass"
            saved.opened.add(place.number)
            tensor = saved.tensors[place.number]
            assert tensor is not None, "the second half of a backward pass opened another tensor than before"
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(put, get)

    def drop_ended(self) -> None:
        """Gives back what nodes saved that are no more."""
        for number, place in enumerate(self._places):
            if place() is None:
                self.tensors[number] = None

    def keep(self, numbers: set[int]) -> None:
        """Gives the others back."""
        for number in range(len(self.tensors)):
            if number not in numbers:
                self.tensors[number] = None


class Learned:
    """The plans of a stage, by the form of its graphs."""

    def __init__(self, modules: Sequence[torch.nn.Module] = ()) -> None:
        self._modules = modules
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._last: Optional[_Plan] = None
        self.gives_back = True  # whether units need SavedTensors

    def of(self, roots: Sequence[GradientEdge], inputs: Sequence[torch.Tensor]) -> tuple[_Plan, list[Any]]:
        """The plan and the nodes of a graph."""
        nodes = self._last.matched(roots, inputs) if self._last is not None else None
        if nodes is None:
            graph = _Graph(roots, inputs)
            self._last, nodes = self._plans.get(graph.form), graph.nodes
            if self._last is None:
                self._last = self._plans[graph.form] = _Plan(graph)
                self.gives_back = True
        return self._last, nodes

    def opened(self, plan: _Plan, saved: SavedTensors) -> None:
        """What W of a whole unit opened."""
        plan.opened = saved.opened
        stays = {id(one) for module in self._modules for one in (*module.parameters(), *module.buffers())}
        plan.gives_back = any(one is not None and number not in saved.opened and id(one) not in stays
                              and id(one._base) not in stays for number, one in enumerate(saved.tensors))
        self.gives_back = any(one.gives_back for one in self._plans.values())


class SplitBackward:
    """I when it is made, W when it is called; both once."""

    __slots__ = ("_plan", "_saved", "_learned", "_clamps", "_calls", "input_gradients")

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        saved: SavedTensors | None = None,
        learned: Learned | None = None,
    ) -> None:
        roots = list(map(_edge, outputs))
        self._learned = learned or Learned()
        plan, nodes = self._learned.of(roots, inputs)
        self._plan, self._saved = plan, saved
        captured = [GradientEdge(nodes[fork], number) for fork, number in plan.captured]
        self._clamps = [_Clamp(nodes[fork]) for fork in plan.clamped] if plan.clamped else ()
        found = _captured(roots, gradients, [*inputs, *captured])
        count = len(inputs)
        self.input_gradients: tuple[Gradient, ...] = found[:count]
        # Of W: edges, gradients and leaves. Nodes above all edges end here, with what they saved.
        self._calls: list[Any] = []
        for forks, given, leaves in plan.groups:
            edges, taken = [roots[at] for at in given], [gradients[at] for at in given]
            for at in forks:
                if found[count + at] is not None:
                    edges.append(captured[at])
                    taken.append(found[count + at])
            if edges:
                self._calls.append((edges, taken, [nodes[leaf] for leaf in leaves]))
        if saved is not None:
            saved.opened = set()
            if plan.opened is not None:
                saved.keep(plan.opened)

    def captured(self) -> list[torch.Tensor]:
        """What W continues from."""
        return [gradient for _, taken, _ in self._calls for gradient in taken]

    def weight(self) -> None:
        """W: adds to the gradients of the parameters."""
        if self._saved is not None and self._plan.opened is None:
            self._saved.drop_ended()
        while self._calls:
            edges, taken, leaves = self._calls.pop(0)
            accumulate(edges, taken, [leaf.variable for leaf in leaves])
        for clamp in self._clamps:
            clamp.remove()
        if self._saved is not None:
            if self._plan.opened is None:
                self._learned.opened(self._plan, self._saved)
            self._saved.tensors.clear()
        self._clamps = ()


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
