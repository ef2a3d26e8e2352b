#!/usr/bin/python3
"""How fast are sums over the processes of one host? `./run bench --all-reduce [--rounds N]`.

all_reduce of 1 and 64 MiB over 2 and 4 processes by ProcessGroup over shared memory, next to Open MPI's
MPI_Allreduce over its own shared memory and Gloo's two algorithms over TCP on the loopback, in turns, round
after round: what else runs on the machine hits all alike. Every program checks its sums first. A baseline whose
library is not there is named and left out. Writes bench/results/all_reduce.json.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
SIZES = (1 << 20, 64 << 20)
PROCESSES = (2, 4)
NAMES = {"millrace": "millrace", "millrace unchecked": "millrace", "open-mpi": "open_mpi",
         "gloo ring": "gloo", "gloo bcube": "gloo"}
PACKAGES = {"open_mpi": "libopenmpi-dev and openmpi-bin", "gloo": "libgloo-dev"}
MPIRUN = ("mpirun.openmpi", "--oversubscribe", "--mca", "btl", "self,vader", "-n")


def present(folder):
    """The names whose program was built."""
    names = []
    for name, program in NAMES.items():
        if (folder / f"all_reduce_{program}").exists():
            names.append(name)
        else:
            print(f"{name} is left out: it needs {PACKAGES[program]}, and a build that finds them")
    return names


def seconds_of(folder, name, processes):
    """By bytes: the median and the best of a program's runs."""
    words = [str(folder / f"all_reduce_{NAMES[name]}"), name, str(processes), *map(str, SIZES)]
    if name == "open-mpi":
        words = [*MPIRUN, str(processes), *words]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    lines = [line.rsplit(" ", 4) for line in done.stdout.splitlines() if line.startswith(name)]
    return {int(size): (float(median), float(best)) for _, _, size, median, best in lines}


def print_case(row, names):
    """GB/s of every name: median of the rounds' medians, and the best run; and both by the better baseline's."""
    size = row["bytes"]
    print(f"{size >> 20} MiB over {row['processes']} processes, GB/s in the median and at best")
    for which, choose in enumerate((statistics.median, min)):
        for name in names:
            row["gigabytes_per_second"].setdefault(name, []).append(
                size / choose(taken[which] for taken in row["seconds"][name]) / 1e9)
    of_baselines = [rates for name, rates in row["gigabytes_per_second"].items() if not name.startswith("millrace")]
    for name, rates in row["gigabytes_per_second"].items():
        line = f"  {name:20}" + "".join(f"{rate:8.2f}" for rate in rates)
        if name.startswith("millrace") and of_baselines:
            ratios = [rate / max(of_baseline) for rate, of_baseline in zip(rates, zip(*of_baselines, strict=True), strict=True)]
            row["by_better_rival"][name] = ratios
            line += f"   {ratios[0]:.2f} and {ratios[1]:.2f} of the better baseline"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--programs", type=pathlib.Path, default=TOP / "build/release/bench", help="where they were built")
    flags = parser.parse_args()
    names = present(flags.programs)
    rows = [{"processes": processes, "bytes": size, "seconds": {name: [] for name in names},
             "gigabytes_per_second": {}, "by_better_rival": {}}
            for processes in PROCESSES for size in SIZES]
    for _ in range(flags.rounds):
        for processes in PROCESSES:
            for name in names:
                taken = seconds_of(flags.programs, name, processes)
                for row in rows:
                    if row["processes"] == processes:
                        row["seconds"][name].append(taken[row["bytes"]])
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {flags.rounds} rounds")
    for row in rows:
        print_case(row, names)
    report = {"cores": cores, "rounds": flags.rounds, "results": rows}
    (TOP / "bench/results/all_reduce.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
