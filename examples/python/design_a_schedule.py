#!/usr/bin/python3
# A schedule of one's own in Python: a generator of thirty lines, proved, timed, drawn, and compared
# with the catalogue.
import sys

import millrace


def staircase(ranks, micro_batches, ahead):
    """Rank r runs `ahead` forwards more than the ranks behind it need, then one forward and one
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


def main(picture):
    costs = millrace.ModelCosts(forward=1, input=1, weight=1, latency=0.25)
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


if __name__ == "__main__":
    main(sys.argv[1])
