#!/usr/bin/env python3
"""What an action of a pipeline costs beyond PyTorch's own work: Linear(16, 16) stages, micro-batches of
4 samples, executor sequential, one thread. Steps of two sizes run in turn with a plain loop over the
same stages; the difference between sizes holds no cost of a step. Times are of the processor, so that a
busy machine disturbs less.

    build/pytorch/bin/python bench/against_pytorch/action_cost.py   (after ./run test-pytorch)
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

import millrace.torch

STAGES, SMALL, LARGE, WIDTH, ROWS = 4, 16, 80, 16, 4
SCHEDULES = {"F + B": "1f1b", "F + I + W": "zb-h1"}


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(STAGES)])


def plain(units: int):
    whole, loss = model(), nn.MSELoss(reduction="sum")

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        for x, wanted in zip(inputs.split(ROWS), targets.split(ROWS)):
            (loss(whole(x), wanted) / len(inputs)).backward()

    return step


def pipeline(schedule: str, units: int):
    whole = model()
    made = millrace.torch.Pipeline(
        whole, loss=nn.MSELoss(reduction="sum"), optimizer=torch.optim.SGD(whole.parameters(), 1e-3), ranks=STAGES,
        micro_batches=units, schedule=schedule, executor="sequential")
    return made.step


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--rounds", type=int, default=60)
    rounds = flags.parse_args().rounds
    torch.set_num_threads(1)
    made = {("plain", units): plain(units) for units in (SMALL, LARGE)}
    made.update({(name, units): pipeline(schedule, units) for name, schedule in SCHEDULES.items() for units in (SMALL, LARGE)})
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in made}
    for _ in range(rounds):
        for (name, units), step in made.items():
            batch = torch.randn(units * ROWS, WIDTH), torch.randn(units * ROWS, WIDTH)
            began = time.process_time()
            step(*batch)
            seconds[name, units].append(time.process_time() - began)

    def cost(name: str) -> float:
        """Microseconds of one stage and one micro-batch."""
        small, large = (statistics.median(seconds[name, units][rounds // 10 :]) for units in (SMALL, LARGE))
        return 1e6 * (large - small) / (LARGE - SMALL) / STAGES

    own = cost("plain")
    print(f"plain forward and backward   {own:6.1f} us")
    for name in SCHEDULES:
        print(f"{name:27}  {cost(name):6.1f} us, {cost(name) - own:5.1f} us more")


if __name__ == "__main__":
    main()
