#!/usr/bin/python3
# What does it cost to bring a program to Python and back: 131,072 actions as arrays, and as texts.
# build/pytorch/bin/python bench/python/actions.py   (after ./run test-pytorch)
import json
import statistics
import time

import millrace

REPEATS = 15


def milliseconds(call):
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1e3)
    return {"median": round(statistics.median(times), 3), "most": round(max(times), 3)}


def main():
    program = millrace.generate("1f1b", ranks=8, micro_batches=8192)
    arrays, texts = program.ranks, [" ".join(rank) for rank in program.texts()]
    results = {
        "actions": len(program),
        "to arrays": milliseconds(lambda: program.ranks),
        "from arrays": milliseconds(lambda: millrace.Program(arrays)),
        "from arrays, shape given": milliseconds(lambda: millrace.Program(arrays, program.shape)),
        "to texts": milliseconds(program.texts),
        "from texts": milliseconds(lambda: millrace.Program(texts)),
    }
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
