"""Checkpoints of a Pipeline: safetensors shards by stage, the optimizer's tensors by parameter name,
and the manifest that `millrace checkpoint ls` reads. They load into any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save

from .._millrace import (CheckpointFolder, Label, Manifest, ValidationRecord, bytes_digest, find_checkpoints,
                         read_checkpoint, resolve_best)
from ..errors import DataError, Error, InvalidArgument, Mismatch

if TYPE_CHECKING:
    from .pipeline import Pipeline

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64",
           torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8"}
_FORMAT = "millrace.torch"


class Checkpoints:
    """The checkpoints of one Pipeline in one folder. Collective: all ranks call alike."""

    def __init__(self, pipeline: Pipeline, root: str, keep: int) -> None:
        self._of, self._keep = pipeline, keep
        self._folder = CheckpointFolder(root)
        self._held = False
        self.loaded = ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder for this job, clears what an earlier one left, and tries to write there."""
        if self._held:
            yield
            return
        self._together(self._hold)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._folder.unlock()

    def _hold(self) -> None:
        if self._of.rank == 0:
            holder = self._folder.lock("of millrace.torch", 5.0)
            if holder:
                raise Error(holder)
            self._folder.prepare()
        self._of.gather("")
        self._folder.probe(self._of.rank, self._of.saved.bytes())

    def save(self, record: ValidationRecord, position: tuple[int, int]) -> str:
        """Writes the state between two steps; the folder, durable and complete."""
        step = self._of.mini_batches
        with self.held():
            found: list[Any] = []

            def write() -> None:
                found.append(self._written(step))

            self._together(write)
            shards = [shard for text in self._of.gather(json.dumps(found[0])) for shard in json.loads(text)]
            groups = self._of.gather(json.dumps(self._groups()))
            folder = [""]

            def commit() -> None:
                if self._of.rank == 0:
                    folder[0] = self._commit(step, shards, groups, record, position)

            self._together(commit)
            return self._of.gather(folder[0])[0]

    def _together(self, work: Any) -> None:
        """Runs `work` in every rank; what one of them raises all raise."""
        said = ""
        try:
            work()
        except Exception as failure:
            said = f"{failure}" or type(failure).__name__
            if self._of.world == 1:
                raise
        for rank, text in enumerate(self._of.gather(said)):
            if text:
                self._folder.abandon(self._of.mini_batches)
                raise Error(f"rank {rank}: {text}")

    def _written(self, step: int) -> list[Any]:
        """This rank's shards."""
        shards = []
        aside = self._folder.begin(step)
        for file, tensors in self._shards().items():
            content = save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
            self._folder.write(f"{aside}/{file}", content)
            described = [
                (*_split(key), _DTYPES[tensor.dtype], list(tensor.shape), bytes_digest(_bytes(tensor)))
                for key, tensor in tensors.items() if tensor.dtype in _DTYPES and tensor.dim() <= 6]
            shards.append((file, len(content), bytes_digest(np.frombuffer(content, np.uint8)), described))
        return shards

    def _shards(self) -> dict[str, dict[str, torch.Tensor]]:
        """Files by name: weights and buffers of each stage, and what the optimizer keeps of them."""
        files: dict[str, dict[str, torch.Tensor]] = {}
        for (replica, number), stage in self._of.saved.stages():
            if replica > 0 or self._of.copy > 0:
                continue
            files[f"stage-{number}.safetensors"] = self._of.saved.of_stage(stage)
            kept = self._of.saved.optimizer_tensors(stage)
            if kept:
                files[f"stage-{number}.optimizer.safetensors"] = kept
        return {file: tensors for file, tensors in files.items() if tensors}

    def _groups(self) -> Optional[dict[str, Any]]:
        """What the optimizer and its scheduler keep that is no tensor of a parameter."""
        if self._of.optimizer is None:
            return None
        names = self._of.saved.parameter_names()
        groups = [{**{key: value for key, value in group.items() if key != "params" and _is_plain(value)},
                   "params": [names.get(id(one), "") for one in group["params"]]}
                  for group in self._of.optimizer.param_groups]
        scheduler = self._of.lr_scheduler.state_dict() if self._of.lr_scheduler is not None else None
        return {"groups": groups, "scheduler": scheduler if _is_plain(scheduler) else None}

    def _commit(self, step: int, shards: list[Any], groups: list[str], record: ValidationRecord,
                position: tuple[int, int]) -> str:
        manifest = Manifest()
        manifest.precision = "f32"
        manifest.optimizer = type(self._of.optimizer).__name__.lower()
        manifest.counters = (self._of.global_step, step, *position)
        manifest.validation = record
        manifest.settings = {
            "format": _FORMAT, "optimizer_state": next((one for one in groups if one != "null"), "null"),
            "loss_scale": json.dumps(self._of.saved.loss_scale()), "micro_batches": str(self._of.micro_batches_of_step())}
        manifest.shards = [(file, size, digest, [tuple(one) for one in tensors]) for file, size, digest, tensors in shards]
        folder = self._folder.commit(step, manifest.text(), self._of.program, self._of.world, {})
        self._folder.retire(self._keep, self.loaded, True)
        return folder

    def newest(self) -> str:
        """Empty where there is none."""
        return next(iter(find_checkpoints(self._folder.root)), "")


def checkpoint_at(path: str, pipeline: Pipeline) -> tuple[str, Manifest]:
    """The newest whole checkpoint at `path`, which is one or a folder of them, and DIR/best."""
    chosen: list[str] = ["", ""]
    manifest = None
    if pipeline.rank == 0:
        try:
            chosen[0], manifest = _whole(resolve_best(path))
        except Error as failure:
            chosen[1] = str(failure)
    folder, fault = (pipeline.gather(text)[0] for text in chosen)
    if fault:
        raise DataError(fault)
    return folder, manifest if manifest is not None else read_checkpoint(folder)


def _whole(path: str) -> tuple[str, Manifest]:
    candidates = find_checkpoints(path) or [path]
    faults = []
    for folder in candidates:
        try:
            return folder, read_checkpoint(folder)
        except DataError as failure:
            faults.append(str(failure))
    raise DataError(faults[0])


def load(pipeline: Pipeline, folder: str, manifest: Manifest) -> ValidationRecord:
    """Takes the state from a checkpoint. Of one that the Trainer wrote, weights alone cannot be taken:
    it names its parameters by layer."""
    where = {(name, part): file for file, _, _, tensors in manifest.shards for name, part, *_ in tensors}
    files: dict[str, Any] = {}

    def tensor(name: str, part: str) -> Optional[torch.Tensor]:
        key = name if part == "value" else f"{name}/{part}"
        file = where.get((name, part)) or next(
            (one for one, *_ in manifest.shards if key in _opened(files, folder, one).keys()), None)
        return None if file is None else _opened(files, folder, file).get_tensor(key)

    if manifest.settings.get("format") != _FORMAT:
        raise Mismatch(f"{folder}: was not saved by millrace.torch; load its weights by millrace.torch's load_state_dict")
    for _, stage in pipeline.saved.stages():
        with torch.no_grad():
            for name, own in stage.module_state().items():
                if not isinstance(own, torch.Tensor):
                    continue
                kept = tensor(name, "value")
                if kept is None or kept.shape != own.shape:
                    what = "is missing" if kept is None else f"has shape {list(kept.shape)}, the model's {list(own.shape)}"
                    raise Mismatch(f"{folder}: '{name}' {what}")
                own.copy_(kept)
    parts = {}
    for (name, part) in where:
        parts.setdefault(name, []).append(part)
    state = json.loads(manifest.settings["optimizer_state"])
    pipeline.saved.restore_optimizer(state, lambda name: {
        part: tensor(name, part) for part in parts.get(name, []) if part != "value"})
    pipeline.saved.restore_loss_scale(json.loads(manifest.settings["loss_scale"]))
    pipeline.global_step, pipeline.mini_batches, *position = manifest.counters
    pipeline.position = tuple(position)
    return manifest.validation


def _opened(files: dict[str, Any], folder: str, file: str) -> Any:
    if file not in files:
        files[file] = safe_open(f"{folder}/{file}", "pt")
    return files[file]


def _split(key: str) -> tuple[str, str]:
    name, _, part = key.partition("/")
    return name, part or "value"


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def require_folder(folder: Optional[str]) -> str:
    """Raises InvalidArgument where no folder is set."""
    if not folder:
        raise InvalidArgument("save_folder is not set: Pipeline(save_folder='runs/name')")
    return folder
