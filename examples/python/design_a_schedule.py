#!/usr/bin/python3
# A custom schedule in Python: a generator of thirty lines, verified, simulated, drawn, compared with
# the catalogue, and trained with.
import sys

import numpy as np

import millrace


def staircase(ranks, micro_batches, ahead):
    """Rank r runs `ahead` forwards more than the ranks after it need, then one forward and one
    backward in turns, weight gradients where it would wait otherwise, and at last what is left."""
    lists = []
    for rank in range(ranks):
        warm_up = min(ranks - rank + ahead, micro_batches)
        actions = [f"{rank}F{m}" for m in range(warm_up)]
        forwards, inputs, weights = warm_up, 0, 0
        while inputs < micro_batches:
            actions.append(f"{rank}I{inputs}")
            inputs += 1
            if forwards < micro_batches:
                if inputs - weights > rank:
                    actions.append(f"{rank}W{weights}")
                    weights += 1
                actions.append(f"{rank}F{forwards}")
                forwards += 1
            elif weights < inputs - 1:
                actions.append(f"{rank}W{weights}")
                weights += 1
        actions += [f"{rank}W{m}" for m in range(weights, micro_batches)]
        lists.append(actions)
    return millrace.Program(lists, name=f"staircase ahead={ahead}")


class Layer(millrace.Stage):
    """y = tanh(x w), in numpy; the last one has half the squared distance to the targets as its loss."""

    def __init__(self, number):
        self.name = f"layers.{number}.weight"
        self.parameters = {self.name: np.random.default_rng(number).normal(0, 0.4, (8, 8)).astype(np.float32)}

    def forward(self, unit, x):
        y = np.tanh(x @ self.parameters[self.name])
        unit.kept = [x, y]
        if unit.targets is not None:
            unit.kept.append(y - unit.targets[0])
            unit.add_loss(0.5 * float(np.square(unit.kept[2]).sum()), len(x))
        return y

    def backward_input(self, unit, *gradients):
        x, y = unit.kept[:2]
        gradient = gradients[0] if gradients else unit.kept[2] * np.float32(unit.loss_scale)
        unit.kept = [x, gradient * (1 - y * y)]
        return unit.kept[1] @ self.parameters[self.name].T

    def backward_weight(self, unit):
        x, gradient = unit.kept
        self.gradients[self.name] += x.T @ gradient


def trained(program):
    """The losses of thirty steps, and a hash of the weights after them."""
    x = np.random.default_rng(0).normal(0, 1, (64, 8)).astype(np.float32)
    trainer = millrace.Trainer(program, [Layer(number) for number in range(4)], optimizer=millrace.AdamW(0.02))
    losses = [trainer.step(x, np.tanh(x[:, ::-1])).mean_loss for _ in range(30)]
    return losses, trainer.weights_hash()


def main(picture):
    costs = millrace.Costs(forward=1, input=1, weight=1, latency=0.25)
    mine = [staircase(ranks=4, micro_batches=8, ahead=ahead) for ahead in (0, 1, 2)]
    for program in mine:
        assert program.verify(transport="unbounded") == []
    print(mine[0])
    for row in millrace.compare([*mine, "1f1b", "zb-h1", "zb-h2"], ranks=4, micro_batches=8, costs=costs):
        memory = max(rank.peak_activation for rank in row.report.ranks)
        print(f"{row.name:20} makespan {row.report.makespan:6.2f}  bubble {row.report.bubble_makespan_ratio:6.1%}"
              f"  holds {memory:g} micro-batches")
    with open(picture, "w") as file:
        file.write(mine[0].svg(costs))
    print("drawn")
    losses, weights = trained(mine[0])
    print("trained" if losses[-1] < losses[0] / 2 else "not trained")
    print("the weights of 1f1b" if trained(millrace.generate("1f1b", 4, 8))[1] == weights else "other weights")


if __name__ == "__main__":
    main(sys.argv[1])
