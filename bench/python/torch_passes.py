#!/usr/bin/python3
# What does an action of a PyTorch module cost beyond PyTorch's own pass: steps of small modules in a pipeline, and the
# same micro-batches through the same modules by backward(), in processor time.
# PYTHONPATH=build/release/python OPENBLAS_NUM_THREADS=1 bench/python/torch_passes.py
import json
import statistics
import time

import torch
from torch import nn

import millrace
import millrace.torch

RANKS, MICRO_BATCHES, STEPS, WIDTH = 2, 64, 40, 16
torch.set_num_threads(1)


def modules():
    torch.manual_seed(1)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(RANKS)]


def squares(outputs, targets):
    return (outputs * targets).sum()


def by_pipeline(schedule):
    pipeline = millrace.torch.Pipeline(modules(), loss=squares, ranks=RANKS, micro_batches=MICRO_BATCHES,
                                       schedule=schedule, optimizer="sgd")
    x = torch.randn(MICRO_BATCHES, WIDTH)
    actions = sum(len(actions) for actions in pipeline.program.ranks)
    return lambda: pipeline.step(x, x), actions


def by_hand():
    model = nn.Sequential(*modules())
    parts = torch.randn(MICRO_BATCHES, WIDTH).tensor_split(MICRO_BATCHES)

    def step():
        for x in parts:
            squares(model(x), x).backward()

    return step


def microseconds(step):
    times = []
    for _ in range(STEPS):
        begun = time.process_time()
        step()
        times.append((time.process_time() - begun) * 1e6)
    return statistics.median(times[STEPS // 4:])


def main():
    plain = microseconds(by_hand())
    for schedule in ("1f1b", "zb-h1"):
        step, actions = by_pipeline(schedule)
        ours = microseconds(step)
        print(json.dumps({"schedule": schedule, "actions of a step": actions,
                          "microseconds beyond PyTorch an action": round((ours - plain) / actions, 1),
                          "PyTorch's own": round(plain / actions, 1)}))


if __name__ == "__main__":
    main()
