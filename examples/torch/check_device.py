#!/usr/bin/env python3
"""Checks millrace.torch on a device of yours: `python3 check_device.py cuda`. A perceptron and a GPT are
trained in 2 and 4 stages by several schedules and by a plain loop on the same device. It says whether
the weights have the same bits, how much memory each took, and the time of a step."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import millrace.torch

SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v")
MICRO_BATCHES, ROWS, WORDS, CLIP = 8, 4, 96, 1.0


class Embed(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.words(tokens) + self.places


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.mix(self.before(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


def perceptron(size: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    width, rows = 64 * size, MICRO_BATCHES * ROWS * 16
    layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, WORDS)), torch.randn(rows, width), torch.randint(WORDS, (rows,))


def gpt(size: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    width, context, rows = 64 * size, 64 * size, MICRO_BATCHES * ROWS
    model = nn.Sequential(Embed(width, context), *[Block(width) for _ in range(8)], nn.LayerNorm(width),
                          nn.Linear(width, WORDS))
    return model, torch.randint(WORDS, (rows, context)), torch.randint(WORDS, (rows, context))


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="sum")


class Device:
    """Its clock and memory."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self._part = getattr(torch, self.device.type, None) if self.device.type != "cpu" else None

    def wait(self) -> None:
        if self._part is not None:
            self._part.synchronize()

    def forget_peak(self) -> None:
        if hasattr(self._part, "reset_peak_memory_stats"):
            self._part.reset_peak_memory_stats()

    def peak(self) -> str:
        """In MiB; "-" where the device does not say."""
        if hasattr(self._part, "max_memory_allocated"):
            return f"{self._part.max_memory_allocated() / 2**20:.0f}"
        return "-"

    def says(self) -> str:
        name = self._part.get_device_name() if hasattr(self._part, "get_device_name") else "the host"
        return f"{self.device} ({name}), PyTorch {torch.__version__}"


def plain(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, precision: str) -> Callable[[], Any]:
    """backward() per micro-batch, one clip, one step."""
    optimizer, device = torch.optim.AdamW(model.parameters(), 3e-3), next(model.parameters()).device

    def step() -> None:
        for some, wanted in zip(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
                total = loss(model(some.to(device)), wanted.to(device))
            (total / targets.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def train(make: Callable[[int], Any], size: int, place: Device, steps: int,
          step_of: Callable[..., Callable[[], Any]]) -> tuple[dict[str, torch.Tensor], str, float]:
    """The weights, the peak of memory, the median time of a step in milliseconds."""
    torch.manual_seed(1)
    model, inputs, targets = make(size)
    model.to(place.device)
    place.forget_peak()
    step, times = step_of(model, inputs, targets), []
    for _ in range(steps):
        place.wait()
        began = time.perf_counter()
        step()
        place.wait()
        times.append(1e3 * (time.perf_counter() - began))
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    return state, place.peak(), statistics.median(times[1:])


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.split(":")[0])
    flags.add_argument("device", nargs="?", default="cpu")
    flags.add_argument("--size", type=int, default=1, help="width and context of the models, by 64")
    flags.add_argument("--steps", type=int, default=4)
    flags.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    flags = flags.parse_args()
    if flags.steps < 2:
        raise SystemExit(f"--steps {flags.steps}: must be 2 or more")
    torch.set_num_threads(1)
    place, wrong, ran = Device(flags.device), [], 0
    print(f"millrace.torch on {place.says()}")
    print(f"{'':40}{'bits':>10}{'MiB':>8}{'ms':>9}")
    for name, make in (("perceptron", perceptron), ("gpt", gpt)):
        wanted, peak, time_of = train(make, flags.size, place, flags.steps,
                                      lambda *given: plain(*given, precision=flags.precision))
        again, _, _ = train(make, flags.size, place, flags.steps, lambda *given: plain(*given, precision=flags.precision))
        if any(not torch.equal(again[key], wanted[key]) for key in wanted):
            print(f"{name}: the plain loop itself has other bits each time on this device; see "
                  "torch.use_deterministic_algorithms")
        print(f"{name + ', plain loop':40}{'':>10}{peak:>8}{time_of:>9.1f}")
        for stages in (2, 4):
            for schedule in SCHEDULES:
                ranks = stages // 2 if schedule in ("interleaved", "zb-v") else stages

                def pipeline(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Callable[[], Any]:
                    made = millrace.torch.Pipeline(
                        model, loss=loss, loss_weight=torch.Tensor.numel, clip_norm=CLIP, schedule=schedule, ranks=ranks,
                        optimizer=torch.optim.AdamW(model.parameters(), 3e-3), micro_batches=MICRO_BATCHES,
                        precision=flags.precision)
                    return lambda: made.step(inputs, targets)

                found, peak, time_of = train(make, flags.size, place, flags.steps, pipeline)
                differ = [key for key in wanted if not torch.equal(found[key], wanted[key])]
                ran += 1
                wrong += [f"{name}, {stages} stages, {schedule}: {', '.join(differ[:3])}"] if differ else []
                print(f"{f'{name}, {stages} stages, {schedule}':40}{'differ' if differ else 'equal':>10}{peak:>8}{time_of:>9.1f}")
    for line in wrong:
        print(f"other bits than the plain loop: {line}")
    print(f"{ran - len(wrong)} of {ran} trainings have the bits of the plain loop on {flags.device}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
