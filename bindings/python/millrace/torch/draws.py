"""What stages draw: PyTorch's default generators, which belong to the process, and their seeds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

turn = threading.RLock()  # of the stage that draws
_MIX = 0x9E3779B97F4A7C15


def seed(step: int, micro_batch: int, stage: int, base: int = 1) -> None:
    """Seeds PyTorch's default generators as a pipeline does before every forward pass of a stage."""
    mixed = base
    for number in (step, micro_batch, stage):
        mixed = ((mixed ^ (number + 1)) * _MIX + (mixed >> 29)) & (2**64 - 1)
        mixed ^= mixed >> 32
    torch.manual_seed(mixed >> 1)


class GeneratorState:
    """Of the default generators of the CPU and the current GPU, to compare: bytes on the host on every device."""

    def __init__(self) -> None:
        self._states = [torch.get_rng_state()]
        if torch.cuda.is_available():
            self._states.append(torch.cuda.get_rng_state())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GeneratorState) and all(map(torch.equal, self._states, other._states))


@contextmanager
def kept() -> Iterator[None]:
    """Puts the generators and the number of threads back."""
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
