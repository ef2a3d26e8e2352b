#!/usr/bin/python3
"""Does a step take what its simulation says? `./run bench --truth [--rounds N] [--small]`.

For every schedule, in turns: `train --profile` of a transformer, `simulate --costs` of what it wrote, then
the same training again, whose median step is what was predicted. Two ranks on two cores, and four ranks on
the cores there are, with that number given to the simulator (`--cores`). And two stages next to one: the speed-up by the
one that the simulation has. Writes bench/results/truth.json.
"""

import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEDULES = ("1f1b", "zb-h1", "interleaved", "zb-v", "gpipe")
PROFILED = 4  # steps; the first one pays for memory and is not counted
MEASURED = 7  # steps after the first one


def ran(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


class Job:
    """One way to train: a schedule, ranks and micro-batches."""

    def __init__(self, command, folder, model, schedule, ranks, micro_batches):
        self.command, self.folder = command, folder
        self.schedule, self.ranks, self.micro_batches = schedule, ranks, micro_batches
        self.shape = ["-p", ranks, "-m", micro_batches]
        self.train = [command, "train", "--model", model["name"], "--data", f"text:{folder / 'text'}",
                      "--schedule", schedule, *self.shape, "--batch-size", model["batch"],
                      "--optimizer", "adamw", "--lr", "3e-4", "--clip-norm", "1"]

    def profile(self):
        """Writes the costs of a short training."""
        ran(*self.train, "--steps", PROFILED, "--profile", self.folder / "costs.json")

    def with_costs(self, cores):
        return ["--json", "--costs", self.folder / "costs.json", *(["--cores", cores] if cores < self.ranks else [])]

    def predicted(self, cores):
        return json.loads(ran(self.command, "simulate", self.schedule, *self.shape, *self.with_costs(cores)))

    def measured(self):
        """Seconds of the steps after the first one."""
        log = self.folder / "log.jsonl"
        log.unlink(missing_ok=True)
        ran(*self.train, "--steps", 1 + MEASURED, "--log", log, "--trace", self.folder / "trace.json")
        records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        return [record["seconds"] for record in records][1:]

    def residual(self, cores):
        """Of the last measured step: measured less simulated by cause, in percent of the measured makespan."""
        plan = self.folder / "plan.json"
        ran(self.command, "show", self.schedule, *self.shape, "--plan", plan)
        found = json.loads(ran(self.command, "compare", plan, self.folder / "trace.json", *self.with_costs(cores)))
        return {cause: 100 * seconds / found["makespan"]["measured"] for cause, seconds in found["residual"].items()}


def percent(value, of):
    return 100 * (value / of - 1)


class Case:
    """Predictions and measurements of one job, round after round."""

    def __init__(self, job, cores):
        self.job, self.cores = job, cores
        self.predictions, self.makespans, self.medians, self.residuals = [], [], [], []

    def run(self):
        self.job.profile()
        prediction = self.job.predicted(self.cores)
        self.predictions.append(prediction["step"])
        self.makespans.append(prediction["makespan"])
        self.medians.append(statistics.median(self.job.measured()))
        self.residuals.append(self.job.residual(self.cores))

    def result(self):
        predicted, measured = statistics.median(self.predictions), statistics.median(self.medians)
        return {"schedule": self.job.schedule, "ranks": self.job.ranks, "micro_batches": self.job.micro_batches,
                "predicted": predicted, "makespan": statistics.median(self.makespans), "measured": measured,
                "percent": percent(predicted, measured),
                "residual_percent": {cause: statistics.median(each[cause] for each in self.residuals)
                                     for cause in self.residuals[0]},
                "percent_of_each_round": [percent(p, m) for p, m in zip(self.predictions, self.medians, strict=True)]}


def print_case(result):
    rounds = " ".join(f"{value:+.1f}" for value in result["percent_of_each_round"])
    print(f"  {result['schedule']:12} p={result['ranks']} {result['predicted']:8.4f} s {result['measured']:8.4f} s "
          f"{result['percent']:+6.1f} %   ({rounds})   "
          + ", ".join(f"{cause} {value:+.1f}" for cause, value in result["residual_percent"].items()), flush=True)


def speed_up(one, two):
    """Two stages over one, next to the ratio of their simulations."""
    measured = one["measured"] / two["measured"]
    ideal = one["predicted"] / two["predicted"]
    print(f"two stages by one, m={one['micro_batches']}: {measured:.3f}x, simulated {ideal:.3f}x: "
          f"{100 * measured / ideal:.1f} %")
    return {"micro_batches": one["micro_batches"], "measured": measured, "simulated": ideal,
            "share": measured / ideal}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--small", action="store_true", help="a model that runs in seconds: does the bench work")
    parser.add_argument("--command", default=TOP / "build/release/millrace", help="the millrace to judge")
    flags = parser.parse_args()
    model = {"name": "gpt:layers=8,d=256,heads=8,context=128", "batch": 32}
    if flags.small:
        model = {"name": "gpt:layers=4,d=64,heads=4,context=32", "batch": 32}
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = gzip.decompress((TOP / "data/king_james.txt.gz").read_bytes())
        (folder / "text").write_bytes(text[:60_000])  # a tenth of it is evaluated at the end of a run
        cases = [Case(Job(flags.command, folder, model, schedule, ranks, 8), cores)
                 for ranks in (2, 4) for schedule in flags.schedules.split(",")]
        pair = [Case(Job(flags.command, folder, model, "1f1b", ranks, 16), cores) for ranks in (1, 2)]
        for _ in range(flags.rounds):
            for case in cases + pair:
                case.run()
    print(f"{cores} cores: a step, predicted, measured, difference (of each round), residual of the last step in %")
    results = [case.result() for case in cases]
    for result in results:
        print_case(result)
    one, two = (case.result() for case in pair)
    report = {"millrace": ran(flags.command, "--version").strip(), "cores": cores, "model": model,
              "rounds": flags.rounds, "results": results, "one_stage": one, "two_stages": two,
              "speed_up": speed_up(one, two)}
    if not flags.small:
        (TOP / "bench/results/truth.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
