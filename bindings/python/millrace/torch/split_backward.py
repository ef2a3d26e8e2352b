"""The two halves of a backward pass over any autograd graph: I for a stage's inputs, W for its
parameters. Together they give the bits of one `backward()`.

A *fork* is a node on the way from the outputs to an input that also leads to parameters by another
way. I runs the way alone and captures the gradient of each fork; W continues from the forks to their
parameters. Forks that share a parameter run in one call, so that its gradient is added once; one that
another leads to is given its captured gradient again, because the other half arrives there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

Gradient = Optional[torch.Tensor]


class _Walk:
    """What the nodes below the outputs lead to."""

    def __init__(self, roots: Sequence[GradientEdge], inputs: Sequence[GradientEdge]) -> None:
        self.inputs = {edge.node for edge in inputs}
        self.order: list[Any] = []  # children before their parents
        self.entries: dict[Any, list[int]] = {}  # the outputs of a node that something uses
        self._visit(roots)
        self.on_way = set(self.inputs)
        leaves: dict[Any, frozenset[Any]] = {}  # leaves below a node that is not on the way
        self.forks: dict[Any, frozenset[Any]] = {}
        for node in self.order:
            if node in self.inputs:
                continue
            below = [child for child, _ in node.next_functions if child is not None]
            apart = frozenset().union(*(leaves[child] for child in below if child not in self.on_way))
            if any(child in self.on_way for child in below):
                self.on_way.add(node)
                if apart:
                    self.forks[node] = apart
            else:
                leaves[node] = apart or frozenset([node] if hasattr(node, "variable") else [])
        for edge in roots:  # outputs that are made of parameters alone
            if edge.node not in self.on_way and leaves[edge.node]:
                self.forks.setdefault(edge.node, leaves[edge.node])

    def _visit(self, roots: Sequence[GradientEdge]) -> None:
        entries, order = self.entries, self.order
        stack: list[tuple[Any, bool]] = []
        for edge in roots:
            node, number = edge.node, edge.output_nr
            if number not in entries.setdefault(node, []):
                entries[node].append(number)
            stack.append((node, False))
        done = set()
        while stack:
            node, is_left = stack.pop()
            if is_left:
                order.append(node)
                continue
            if node in done:
                continue
            done.add(node)
            stack.append((node, True))
            for child, number in node.next_functions:
                if child is None:
                    continue
                known = entries.setdefault(child, [])
                if number not in known:
                    known.append(number)
                if child not in done:
                    stack.append((child, False))

    def groups(self) -> list[tuple[list[Any], set[Any]]]:
        """Forks that share a leaf, and all leaves of each group."""
        found: list[tuple[list[Any], set[Any]]] = []
        for fork, leaves in self.forks.items():
            forks, every = [fork], set(leaves)
            apart = []
            for group in found:
                if every.isdisjoint(group[1]):
                    apart.append(group)
                else:
                    forks, every = group[0] + forks, every | group[1]
            found = [*apart, (forks, every)]
        return found


class SavedTensors:
    """The tensors that the graph of one unit keeps, which it can give back one by one."""

    def __init__(self) -> None:
        self.tensors: list[Gradient] = []
        self.opened: set[int] = set()

    def hooks(self) -> Any:
        """Around the forward pass."""
        return torch.autograd.graph.saved_tensors_hooks(self._put, self._open)

    def _put(self, tensor: torch.Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _open(self, number: int) -> torch.Tensor:
        self.opened.add(number)
        tensor = self.tensors[number]
        assert tensor is not None, "the second half of a backward pass opened another tensor than before"
        return tensor

    def keep(self, numbers: set[int]) -> None:
        """Gives the others back."""
        for number in range(len(self.tensors)):
            if number not in numbers:
                self.tensors[number] = None


class Learned:
    """The tensors that the second halves of a stage open, by the kinds of the nodes of its graph. The
    first unit of a kind keeps all of its tensors."""

    def __init__(self) -> None:
        self._of: dict[tuple[Any, ...], set[int]] = {}

    def of(self, kinds: tuple[Any, ...]) -> set[int] | None:
        return self._of.get(kinds)

    def add(self, kinds: tuple[Any, ...], opened: set[int]) -> None:
        self._of.setdefault(kinds, opened)


class SplitBackward:
    """I when it is made, W when it is called; both once."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[Gradient],
        inputs: Sequence[torch.Tensor],
        saved: SavedTensors | None = None,
        learned: Learned | None = None,
    ) -> None:
        roots = [get_gradient_edge(output) for output in outputs]
        walk = _Walk(roots, [get_gradient_edge(one) for one in inputs])
        captured = [GradientEdge(fork, number) for fork in walk.forks if fork in walk.on_way
                    for number in walk.entries[fork]]
        found = torch.autograd.grad(outputs, [*inputs, *captured], gradients, retain_graph=True, allow_unused=True)
        self.input_gradients: tuple[Gradient, ...] = found[: len(inputs)]
        self._given: dict[Any, list[tuple[int, Gradient]]] = {}
        for edge, gradient in zip(captured, found[len(inputs) :]):
            self._given.setdefault(edge.node, []).append((edge.output_nr, gradient))
        self._on_way = {fork for fork in walk.forks if fork in walk.on_way}
        for edge, output, gradient in zip(roots, outputs, gradients):
            if edge.node in walk.forks and edge.node not in walk.on_way:
                whole = torch.ones_like(output) if gradient is None else gradient
                self._given.setdefault(edge.node, []).append((edge.output_nr, whole))
        self._groups = walk.groups()
        self._saved, self._learned = saved, learned
        self._kinds = tuple(map(type, walk.order))
        if saved is not None and learned is not None:
            kept = learned.of(self._kinds)
            saved.opened = set()
            if kept is not None:
                saved.keep(kept)
                self._learned = None

    def weight(self) -> None:
        """W: adds to the gradients of the parameters."""
        for forks, leaves in self._groups:
            edges, gradients, clamped = [], [], []
            for fork in forks:
                for number, gradient in self._given[fork]:
                    if gradient is not None:
                        edges.append(GradientEdge(fork, number))
                        gradients.append(gradient)
                if len(forks) > 1 and fork in self._on_way:
                    clamped.append(fork.register_prehook(_restoring(dict(self._given[fork]))))
            if edges:
                torch.autograd.backward(edges, gradients, inputs=[leaf.variable for leaf in leaves])
            for handle in clamped:
                handle.remove()
        if self._saved is not None and self._learned is not None:
            self._learned.add(self._kinds, self._saved.opened)
        self._given.clear()
        self._groups = []


def _restoring(given: dict[int, Gradient]) -> Any:
    """Puts captured gradients in the place of what arrives."""
    return lambda arrived: tuple(given.get(number, one) for number, one in enumerate(arrived))
