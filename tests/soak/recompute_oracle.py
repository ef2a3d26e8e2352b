"""What choosing recompute by (stage, micro-batch) can give for fixed orders, by integer programs.

Prints tests/golden/recompute_by_micro_batch.json without `by_stage`: seeded pipelines of unequal
stages with a memory limit below 1F1B's peak, and for each the best makespan of 1f1b, eager-1f1b and
zb-h1 if HiGHS decides which forward passes run again. `by_stage` is what `search -v 1` found while
it still chose by stage. Needs SciPy: recompute_oracle.py build/release/millrace
"""

import json
import random
import re
import subprocess
import sys

import numpy
from scipy.optimize import LinearConstraint, Bounds, milp
from scipy.sparse import coo_array

ORDERS = ("1f1b", "eager-1f1b", "zb-h1")
CASES = 20
SECONDS = 20  # for one program; its best choice by then counts


def drawn(number):
    """Costs, micro-batches and limit of one case."""
    chance = random.Random(3700 + number)
    p, m = chance.randint(2, 4), chance.randint(4, 12)
    draw = lambda low, high: [chance.randint(low, high) for _ in range(p)]
    costs = {"millrace_costs": 1, "unit": "ms", "ranks": p, "chunks": 1, "slices": 1}
    costs |= {"forward": draw(4, 12), "input": draw(4, 12), "weight": draw(2, 9)}
    memory = draw(6, 14)
    costs |= {"memory_forward": memory, "memory_boundary": draw(0, 2)}
    costs |= {"memory_input": [0] * p, "memory_weight": [-held for held in memory]}
    peak = max(min(p - rank, m) * memory[rank] for rank in range(p))
    return {"costs": costs, "micro_batches": m, "limit": round(peak * chance.uniform(0.4, 0.85))}


def order(millrace, name, case):
    """Per rank: (op, stage, micro-batch)."""
    p, m = case["costs"]["ranks"], case["micro_batches"]
    plan = subprocess.run([millrace, "show", name, "-p", str(p), "-m", str(m), "--plan"],
                          check=True, capture_output=True, text=True).stdout
    action = re.compile(r"(\d+)([FBIW])(\d+)")
    return [[(op, int(stage), int(unit)) for stage, op, unit in action.findall(line)]
            for line in json.loads(plan)["program"]]


class IntegerProgram:
    """Columns: the makespan, whether each unit recomputes, the end of each pass."""

    def __init__(self, ranks, case):
        self.costs, self.limit = case["costs"], case["limit"]
        m = case["micro_batches"]
        self.again = {(s, i): 1 + s * m + i for s in range(len(ranks)) for i in range(m)}
        self.end = {}
        for actions in ranks:
            for action in actions:
                self.end[action] = 1 + len(self.again) + len(self.end)
        self.rows, self.least = [], []
        for actions in ranks:
            self.times(actions)
            self.memory(actions)

    def at_least(self, row, least):
        self.rows.append(row)
        self.least.append(least)

    def producer(self, op, stage, unit):
        """The pass on another rank that this one waits for."""
        if op == "F":
            return self.end.get(("F", stage - 1, unit))
        if op == "W":
            return None
        return self.end.get(("B", stage + 1, unit), self.end.get(("I", stage + 1, unit)))

    def ticks(self, op, stage):
        c = self.costs
        return {"F": c["forward"], "I": c["input"], "W": c["weight"],
                "B": [a + b for a, b in zip(c["input"], c["weight"])]}[op][stage]

    def times(self, actions):
        before = None
        for op, stage, unit in actions:
            end, ticks = self.end[op, stage, unit], self.ticks(op, stage)
            row = {end: 1}
            if before is not None:
                row[before] = -1
            if op in "BI":
                row[self.again[stage, unit]] = -self.costs["forward"][stage]
            self.at_least(row, ticks)
            producer = self.producer(op, stage, unit)
            if producer is not None:
                self.at_least({end: 1, producer: -1}, ticks)
            before = end
        self.at_least({0: 1, before: -1}, 0)

    def memory(self, actions):
        held, saved = 0, {}
        for op, stage, unit in actions:
            whole = self.costs["memory_forward"][stage]
            column = self.again[stage, unit]
            if op == "F":
                held += whole
                saved[column] = whole - self.costs["memory_boundary"][stage]
            elif op in "BI":
                del saved[column]
            if op in "FBI":
                self.at_least(dict(saved), held - self.limit)
            if op in "BW":
                held -= whole

    def solve(self):
        columns = 1 + len(self.again) + len(self.end)
        entries = [(value, i, j) for i, row in enumerate(self.rows) for j, value in row.items()]
        values, i, j = zip(*entries)
        binary = numpy.zeros(columns)
        binary[1:1 + len(self.again)] = 1
        most = numpy.where(binary == 1, 1, numpy.inf)
        objective = numpy.zeros(columns)
        objective[0] = 1
        matrix = coo_array((values, (i, j)), shape=(len(self.rows), columns)).tocsr()
        rows = LinearConstraint(matrix, numpy.array(self.least), numpy.inf)
        found = milp(objective, constraints=rows, integrality=binary, bounds=Bounds(0, most),
                     options={"time_limit": SECONDS})
        return None if found.x is None else round(found.fun, 6)


def main(millrace):
    cases, number = [], 0
    while len(cases) < CASES:
        case = drawn(number)
        number += 1
        values = {}
        for name in ORDERS:
            values[name] = IntegerProgram(order(millrace, name, case), case).solve()
        print(number - 1, values, file=sys.stderr, flush=True)
        fitting = [value for value in values.values() if value is not None]
        if fitting:
            cases.append(case | {"best": min(fitting)})
    print("[" + ",\n".join(json.dumps(case) for case in cases) + "]")


main(sys.argv[1])
