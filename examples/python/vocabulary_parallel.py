#!/usr/bin/python3
# Vocabulary-parallel 1F1B as a plan: the head, cut over all ranks, is p stages with a loss, one per
# rank, fed by the last layer. F and I of such a stage are the pass S of the paper (logits, gradient
# of the input), its W the pass T (arXiv 2411.05288, with one barrier). To train it
# a sum over the shards is needed inside S.
import sys

import millrace


def waits(ranks, forward, backward):
    """By rank: whether S comes before F behind a backward pass, and how many S more warm it up."""
    first, offset, alone = [True] * ranks, 0, False
    for rank in reversed(range(ranks - 1)):
        if alone:  # behind a rank with F before S
            alone = False
        elif offset - forward >= -backward:
            offset -= forward
        else:
            first[rank], alone = False, True
            offset += backward - forward
    more = [0] * ranks
    for rank in reversed(range(ranks - 1)):
        more[rank] = more[rank + 1] + (first[rank + 1] or not first[rank])
    return first, more


def vocabulary_parallel(ranks, micro_batches, forward, backward):
    """Stage r is the trunk's part of rank r, stage p + r its shard of the head."""
    lists = []
    for rank, (shard_first, more) in enumerate(zip(*waits(ranks, forward, backward))):
        actions, done = [], {"F": 0, "S": 0}

        def add(kind):
            number = done[kind]
            if number == micro_batches:
                return
            done[kind] += 1
            if kind == "F":
                actions.append(f"{rank}F{number}")
                return
            actions.extend([f"{ranks + rank}F{number}", f"{ranks + rank}I{number}"])
            if number:
                actions.append(f"{ranks + rank}W{number - 1}")

        for kind in ["F"] * (ranks - rank) + ["S", "F"] + ["S"] * more:
            add(kind)
        for number in range(micro_batches):
            actions.append(f"{rank}B{number}")
            for kind in "SF" if shard_first else "FS":
                add(kind)
        lists.append([*actions, f"{ranks + rank}W{micro_batches - 1}"])
    shape = millrace.Shape(ranks, micro_batches, placement=[*range(ranks), *range(ranks)])
    trunk = [(rank, 0, rank + 1, 0) for rank in range(ranks - 1)]
    shards = range(ranks, 2 * ranks)
    return millrace.Program(lists, shape, name=f"vocabulary-parallel p={ranks} m={micro_batches}").connected(
        [*trunk, *((ranks - 1, 0, shard, 0) for shard in shards)], list(shards))


def costs_of(ranks, forward, backward, shard, weight):
    """F and B of a rank's part of the trunk; S and T of its shard, which stashes nothing here."""
    return millrace.Costs(chunk_costs=True,
                          forward=[forward] * ranks + [shard / 2] * ranks,
                          input=[backward / 2] * ranks + [shard / 2] * ranks,
                          weight=[backward / 2] * ranks + [weight] * ranks,
                          memory_forward=[1] * ranks + [0] * ranks)


def main(picture):
    for ranks, micro_batches, forward, backward in [(4, 8, 4, 8), (4, 8, 4, 4), (6, 13, 4, 12), (9, 9, 4, 8), (16, 40, 4, 10)]:
        program = vocabulary_parallel(ranks, micro_batches, forward, backward)
        assert program.verify(transport="unbounded") == []
        costs = costs_of(ranks, forward, backward, shard=1, weight=1)
        report = program.simulate(costs)
        bubble = report.makespan - micro_batches * (forward + backward + 2)
        assert bubble == (ranks - 1) * (forward + backward), (ranks, micro_batches, bubble)
        held = [rank.peak_bytes for rank in report.ranks]
        assert held == [min(ranks + 1 - rank, micro_batches) for rank in range(ranks)], held
        print(f"p={ranks} m={micro_batches} F={forward} B={backward}: makespan {report.makespan:g}, bubble {bubble:g}, "
              f"holds {max(held):g}")
    with open(picture, "w") as file:
        file.write(vocabulary_parallel(4, 8, 4, 8).svg(costs_of(4, 4, 8, 1, 1)))
    print("drawn")


if __name__ == "__main__":
    main(sys.argv[1])
