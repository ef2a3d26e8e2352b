"""Gradients between the passes and the optimizer: sums over replicas and ties, norm, clipping."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import nn

from .._millrace import Group, Label, Launched, Shape, bytes_digest, combine_digests
from ..errors import Mismatch
from . import wire
from .loss import UnitLoss
from .partition import Partition

Named = list[tuple[str, nn.Parameter]]


@dataclass
class Read:
    """What the host knows of a step."""

    loss: float = 0.0
    weight: float = 0.0
    right: float = 0.0
    evaluated: float = 0.0
    norms: Optional[dict[str, float]] = None


class LossScale:
    """A loss scale for f16: halves after an overflow, doubles after 2000 steps without."""

    def __init__(self, value: float | None) -> None:
        self.value, self.good = (65536.0 if value is None else float(value)), 0

    def accept(self, is_finite: bool) -> bool:
        """Whether the step updates the model."""
        self.good = self.good + 1 if is_finite else 0
        if not is_finite:
            self.value /= 2
        elif self.good == 2000:
            self.value, self.good = self.value * 2, 0
        return is_finite


class Sums:
    """The gradients of this process, by (replica, stage) and name. The sum over the micro-batches of a
    replica is in `grad`; those of replicas of a stage and of tied weights are added in ascending
    (replica, stage), then those of data-parallel replicas in ascending order, in the gradients' dtype."""

    def __init__(self, partition: Partition, here: Launched, shape: Shape, copies: int) -> None:
        self._partition, self._here, self._shape, self._copies = partition, here, shape, copies
        self._kept: dict[str, torch.Tensor] = {}  # sums of data-parallel replicas in this process
        world, ranks = here.world, shape.ranks
        self._pipeline = self._column = None
        if world > 1:
            copy, place = divmod(here.rank, ranks)
            if partition.shared:
                self._pipeline = Group(here, list(range(copy * ranks, (copy + 1) * ranks)), 1 + copy)
            if copies > 1:
                self._column = Group(here, list(range(place, world, ranks)), 1 + copies + place)

    def _sites(self) -> list[tuple[tuple[int, int], Any]]:
        return sorted(self._partition.hosted().items())

    def named(self) -> Named:
        """Every parameter of this process once, by name; of a shared one the first."""
        found: dict[str, nn.Parameter] = {}
        for _, stage in self._sites():
            for name, parameter in stage.parameters.items():
                found.setdefault(name, self._partition.original(name, parameter))
        return self._partition.in_order(found)

    def trained(self) -> Named:
        """Those that have gradients."""
        return [(name, parameter) for name, parameter in self.named() if parameter.requires_grad]

    def here(self) -> list[nn.Parameter]:
        return [parameter for _, parameter in self.trained() if parameter.grad is not None]

    def zero(self) -> None:
        """Drops all gradients."""
        self._kept.clear()
        for _, stage in self._sites():
            for parameter in stage.parameters.values():
                parameter.grad = None
        for _, parameter in self.trained():
            parameter.grad = None

    def add_copy(self, copy: int) -> None:
        """After the passes of a data-parallel replica: adds shared weights; in one process, keeps the sum."""
        self._add_shared()
        if self._here.world > 1 or self._copies == 1:
            return
        for name, parameter in self.trained():
            if parameter.grad is None:
                continue
            kept = self._kept.get(name)
            self._kept[name] = parameter.grad if kept is None else kept.add_(parameter.grad)
            parameter.grad = None
        if copy + 1 == self._copies:
            for name, parameter in self.trained():
                parameter.grad = self._kept.pop(name, None)

    def _add_shared(self) -> None:
        shared = self._partition.shared
        if not shared:
            return
        mine = [(name, place, stage.parameters[name]) for place, stage in self._sites()
                for name in stage.parameters if name in shared]
        found = {(name, place): parameter.grad for name, place, parameter in mine if parameter.grad is not None}
        if self._pipeline is not None:
            found = self._exchanged(found)
        for name, places in shared.items():
            terms = [found[name, place] for place in sorted(places) if (name, place) in found]
            if not terms or not any(name == one for one, _, _ in mine):
                continue
            total = terms[0].clone()
            for term in terms[1:]:
                total.add_(term.to(total.device))
            for one, _, parameter in mine:
                if one == name:
                    parameter.grad = None
                    original = self._partition.original(name, parameter)
            original.grad = total

    def _exchanged(self, found: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
        """The terms of all ranks of the pipeline."""
        assert self._pipeline is not None
        keys = [f"{name}\t{replica}\t{stage}" for name, (replica, stage) in found]
        heads = self._pipeline.gather("\n".join(keys), Label.TiedWeights)
        arrived = self._pipeline.all_gather(wire.pack(list(found.values())), Label.TiedWeights)
        every = {}
        for text, arrays in zip(heads, arrived):
            for key, tensor in zip(filter(None, text.split("\n")), wire.unpack(arrays)):
                name, replica, stage = key.split("\t")
                every[name, (int(replica), int(stage))] = tensor
        return every

    def join(self, number: int) -> None:
        """Adds the gradients of the data-parallel replicas in other processes."""
        if self._column is None:
            return
        owned = self.here()
        self._column.begin_step(number)
        arrived = self._column.all_gather(wire.pack([one.grad for one in owned]), Label.Values)
        parts = [wire.unpack(arrays) for arrays in arrived]
        for at, parameter in enumerate(owned):
            total = parts[0][at].clone()
            for part in parts[1:]:
                total.add_(part[at])
            parameter.grad = total.to(parameter.device)

    def norms(self) -> list[tuple[str, torch.Tensor]]:
        """The norm of each gradient that this process counts: of a shared weight, the first that has it."""
        counted = [(name, parameter) for name, parameter in self.trained()
                   if parameter.grad is not None and self._counts(name)]
        made = torch._foreach_norm([parameter.grad for _, parameter in counted]) if counted else []
        return [(name, norm) for (name, _), norm in zip(counted, made)]

    def _counts(self, name: str) -> bool:
        if self._here.world == 1:
            return True
        copy, place = divmod(self._here.rank, self._shape.ranks)
        if copy > 0:
            return False
        places = self._partition.shared.get(name)
        return places is None or self._shape.placement[min(places)[0]][min(places)[1]] == place

    def total(self, read: Read) -> torch.Tensor:
        """The norm of the whole gradient, combined as clip_grad_norm_ does: in the model's order."""
        norms = read.norms or {}
        ordered = [norms[name] for name in self._partition.sorted_names(norms)]
        return torch.linalg.vector_norm(torch.stack(ordered)) if ordered else torch.tensor(0.0)


def read(losses: dict[int, UnitLoss], norms: Sequence[tuple[str, torch.Tensor]], digest: int,
         group: Group | None) -> Read:
    """Losses and norms as numbers, of all ranks. Raises Mismatch where mini-batches differ."""
    units = sorted(losses)
    counts = [one for unit in units for loss in [losses[unit]] for one in (loss.sum, loss.weight, loss.right, loss.evaluated)]
    tensors = [one for one in (*counts, *(norm for _, norm in norms)) if isinstance(one, torch.Tensor)]
    values = iter(host_values(tensors))
    numbers = [float(next(values)) if isinstance(one, torch.Tensor) else float(one) for one in counts]
    mine = {name: next(values) for name, _ in norms}
    rows = {unit: numbers[4 * at : 4 * at + 4] for at, unit in enumerate(units)}
    if group is not None:
        rows, mine = _of_all(rows, mine, digest, group)
    result = Read(norms=mine)
    for unit in sorted(rows):
        total, weight, right, evaluated = rows[unit]
        result.loss += total
        result.weight += weight
        result.right += right
        result.evaluated += evaluated
    return result


def host_values(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The one place where a step reads a device: all of it at once."""
    by_kind: dict[Any, list[int]] = {}
    for at, tensor in enumerate(tensors):
        by_kind.setdefault((tensor.device, tensor.dtype), []).append(at)
    found: dict[int, torch.Tensor] = {}
    for places in by_kind.values():
        found.update(zip(places, torch.stack([tensors[at] for at in places]).cpu().unbind()))
    return [found[at] for at in range(len(tensors))]


def _of_all(rows: dict[int, Any], norms: dict[str, Any], digest: int, group: Group) -> tuple[dict[int, Any], dict[str, Any]]:
    head = "\n".join([str(digest), " ".join(map(str, rows)), *norms])
    heads = group.gather(head, Label.Loss)
    for rank, text in enumerate(heads):
        if text.split("\n")[0] != heads[0].split("\n")[0]:
            raise Mismatch(f"ranks 0 and {rank} were given different mini-batches; a generator that is seeded alike makes "
                           "them equal")
    tensors = [torch.tensor(rows[unit], dtype=torch.float64) for unit in rows] + list(norms.values())
    arrived = group.all_gather(wire.pack(tensors), Label.GradientNorm)
    all_rows: dict[int, Any] = {}
    all_norms: dict[str, Any] = {}
    for text, arrays in zip(heads, arrived):
        _, units, *names = text.split("\n")
        values = wire.unpack(arrays)
        numbers = [int(one) for one in units.split()]
        for at, unit in enumerate(numbers):
            all_rows[unit] = values[at].tolist()
        all_norms.update(zip(names, values[len(numbers) :]))
    return all_rows, all_norms


def divide(owned: Named, scale: float) -> None:
    """Takes the loss scale out of the gradients."""
    gradients = [parameter.grad for _, parameter in owned if parameter.grad is not None]
    if gradients and scale != 1:
        torch._foreach_mul_(gradients, 1 / scale)


def clip(parameters: Sequence[nn.Parameter], most: float, total: torch.Tensor) -> float:
    """As clip_grad_norm_ by a norm that is known; the factor."""
    torch.nn.utils.clip_grads_with_norm_(parameters, most, total)
    return min(1.0, float(most / (total + 1e-6)))


def weights_hash(named: Named, group: Group | None) -> str:
    """xxh3-128 over all ranks' parameters in ascending order of their names."""
    mine = {name: bytes_digest(wire.pack([tensor])[1]) for name, tensor in named}
    texts = [json.dumps(mine)]
    if group is not None:
        texts = group.gather(texts[0], Label.WeightsHash)
    return combine_digests({name: digest for text in texts for name, digest in json.loads(text).items()})
