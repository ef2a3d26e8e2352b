"""What a checkpoint and state_dict() hold of a Pipeline: weights and buffers of its stages by global name, the
optimizer's tensors by parameter name, and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from .._millrace import Group, Label
from ..errors import Mismatch
from . import wire
from .gradients import LossScale, Sums
from .partition import Partition


class SavedState:
    """Of the stages of this process."""

    def __init__(self, partition: Partition, sums: Sums, optimizer: Optional[torch.optim.Optimizer], lr_scheduler: Any,
                 scale: Optional[LossScale]) -> None:
        self._partition, self._sums, self._scale = partition, sums, scale
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler

    def stages(self) -> list[tuple[tuple[int, int], Any]]:
        """By (replica, number)."""
        return sorted(self._partition.hosted().items())

    def of_stage(self, stage: Any) -> dict[str, torch.Tensor]:
        """Weights and buffers; a shared weight is its first stage's."""
        shared = self._partition.shared
        return {name: tensor for name, tensor in stage.module_state().items() if isinstance(tensor, torch.Tensor)
                and (name not in shared or min(shared[name])[1] == stage.number or name in stage.buffers)}

    def bytes(self) -> int:
        """Of what is saved here, without the optimizer."""
        tensors = {name: tensor for _, stage in self.stages() for name, tensor in self.of_stage(stage).items()}
        return sum(tensor.nbytes for tensor in tensors.values())

    def parameter_names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self._sums.named()}

    def optimizer_tensors(self, stage: Any) -> dict[str, torch.Tensor]:
        """What the optimizer keeps of a stage's parameters, as "name/part"."""
        if self.optimizer is None:
            return {}
        own = self.of_stage(stage)
        return {f"{name}/{part}": value for name, parameter in self._sums.named() if name in own
                for part, value in self.optimizer.state.get(parameter, {}).items() if isinstance(value, torch.Tensor)}

    def loss_scale(self) -> list[float]:
        return [] if self._scale is None else [self._scale.value, self._scale.good]

    def restore_loss_scale(self, saved: Sequence[float]) -> None:
        if self._scale is not None and saved:
            self._scale.value, self._scale.good = saved[0], int(saved[1])

    def restore_optimizer(self, state: Any, parts_of: Callable[[str], dict[str, torch.Tensor]]) -> None:
        """Tensors by parameter name, settings of groups in their order."""
        if self.optimizer is None or state is None:
            return
        groups = self.optimizer.param_groups
        if len(groups) != len(state["groups"]):
            raise Mismatch(f"the checkpoint's optimizer has {len(state['groups'])} parameter groups, this one {len(groups)}")
        for group, saved in zip(groups, state["groups"]):
            group.update({key: value for key, value in saved.items() if key != "params" and key in group})
        for name, parameter in self._sums.named():
            parts = parts_of(name)
            if parts:
                self.optimizer.state[parameter] = {
                    part: value.to(parameter.device) if value.shape == parameter.shape else value for part, value in parts.items()}
        if self.lr_scheduler is not None and state["scheduler"] is not None:
            self.lr_scheduler.load_state_dict(state["scheduler"])


def gathered(own: dict[str, Any], group: Group) -> dict[str, Any]:
    """The tensors of all ranks by name."""
    names = [name for name, tensor in own.items() if isinstance(tensor, torch.Tensor)]
    everyone = group.all_gather(wire.pack([own[name] for name in names]), Label.Checkpoint)
    texts = group.gather("\n".join(names), Label.Checkpoint)
    return {name: tensor for text, arrived in zip(texts, everyone)
            for name, tensor in zip(text.split("\n"), wire.unpack(arrived)) if name}
