#!/usr/bin/python3
# What does an action of a Python stage cost beyond its own pass: steps of stages that give back what they
# are given, and the same calls without a trainer.
# build/pytorch/bin/python bench/python/passes.py   (after ./run test-pytorch)
import json
import statistics
import time

import numpy as np

import millrace

RANKS, MICRO_BATCHES, STEPS = 2, 64, 60


class Nothing(millrace.Stage):
    def __init__(self, last):
        self.last = last

    def forward(self, unit, x):
        if self.last and unit.targets is not None:
            unit.add_loss(0.0, len(x))
        unit.kept = x
        return x

    def backward_input(self, unit, *gradients):
        return gradients[0] if gradients else unit.kept

    def backward_weight(self, unit):
        pass


class PlainUnit:
    targets, kept = None, None


def by_trainer():
    trainer = millrace.Trainer(millrace.generate("zb-h1", RANKS, MICRO_BATCHES),
                               [Nothing(rank == RANKS - 1) for rank in range(RANKS)], optimizer="sgd")
    x = np.zeros((MICRO_BATCHES, 16), np.float32)
    return lambda: trainer.step(x, x)


def by_hand():
    stages = [Nothing(rank == RANKS - 1) for rank in range(RANKS)]
    parts = np.split(np.zeros((MICRO_BATCHES, 16), np.float32), MICRO_BATCHES)

    def step():
        for x in parts:
            units = [PlainUnit() for _ in stages]
            for stage, unit in zip(stages, units):
                x = stage.forward(unit, x)
            gradients = ()
            for stage, unit in zip(reversed(stages), reversed(units)):
                gradients = (stage.backward_input(unit, *gradients),)
                stage.backward_weight(unit)

    return step


def microseconds(step):
    times = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        step()
        times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times) / (3 * RANKS * MICRO_BATCHES)


def main():
    ours, plain = microseconds(by_trainer()), microseconds(by_hand())
    print(json.dumps({"actions of a step": 3 * RANKS * MICRO_BATCHES, "microseconds an action": round(ours, 2),
                      "by hand": round(plain, 2), "beyond": round(ours - plain, 2)}))


if __name__ == "__main__":
    main()
