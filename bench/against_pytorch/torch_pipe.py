#!/usr/bin/python3
"""A GPT of PyTorch's layers in two stages: through millrace's stages of LibTorch and through PyTorch's own
Pipe, in turns. `./run bench --torch-pipe [--rounds N]`.

The same sizes, cut, 32 micro-batches, AdamW and clipping, one thread for each product, windows of the same text.
Prints the median of seconds per step and the ratio. A round in which others take more than a twentieth of the
processors does not count, since two threads lose more by neighbours than one.
"""

import argparse
import gzip
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile

from jobs import GPT, TOP, prepared

HERE = pathlib.Path(__file__).resolve().parent
TEXT = gzip.decompress((TOP / "data/king_james.txt.gz").read_bytes())
JOB = {**GPT, "layers": 4, "d": 128, "heads": 4, "context": 64, "batch": 128, "micro_batches": 32, "partitions": 2,
       "vocabulary": len(set(TEXT)), "precision": "f32"}
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SCHEDULES = {"0": "1f1b", "1": "zb-h1"}
MOST_OF_OTHERS = 0.05


def pipe_seconds(job):
    """Of its steps, without the first."""
    done = subprocess.run(["/usr/bin/python3", HERE / "baseline.py", job, "1"], env=ONE_THREAD, check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout)["seconds"][1:]


def our_steps(schedule, steps):
    """Mean seconds of N steps, and their share of the simulator's ideal."""
    done = subprocess.run([TOP / "build/release/bench/torch_bench", f"--benchmark_filter=gpt_step/{schedule}/",
                           "--benchmark_format=json", f"--benchmark_min_time={steps / 10}"],
                          env=ONE_THREAD, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)["benchmarks"][0]
    return found["real_time"] / 1000, found["of the ideal"]


def busy():
    """Seconds that all processors worked and had, since the machine started."""
    ticks = [int(word) for word in pathlib.Path("/proc/stat").read_text(encoding="ascii").split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / hertz, sum(ticks) / hertz


def own():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def one_round(job, steps):
    """Seconds of the Pipe and, by schedule, ours with the share of the ideal; and what share others took."""
    (worked, had), mine = busy(), own()
    theirs = statistics.median(pipe_seconds(job))
    ours = {schedule: our_steps(schedule, steps) for schedule in SCHEDULES}
    (worked_then, had_then), mine_then = busy(), own()
    return theirs, ours, (worked_then - worked - mine_then + mine) / (had_then - had)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    counted = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        job = folder / "job.json"
        job.write_text(json.dumps({**prepared(folder, JOB), "steps": options.steps + 1}), encoding="utf-8")
        for _ in range(options.rounds):
            theirs, ours, others = one_round(job, options.steps)
            if others <= MOST_OF_OTHERS:
                counted.append((theirs, ours))
    print(f"{len(counted)} of {options.rounds} rounds count: in the others the machine was busy with something else")
    if not counted:
        return
    pipe = statistics.median(theirs for theirs, _ in counted)
    print(f"PyTorch's Pipe: {pipe:.3f} s a step")
    for schedule, title in SCHEDULES.items():
        seconds = statistics.median(ours[schedule][0] for _, ours in counted)
        share = statistics.median(ours[schedule][1] for _, ours in counted)
        print(f"millrace, {title}: {seconds:.3f} s a step, {pipe / seconds:.2f}x, {100 * share:.1f} % of the "
              "simulator's ideal")


if __name__ == "__main__":
    main()
