#!/usr/bin/python3
"""Trains the same models by millrace and by PyTorch, from the same weights over the same data, and prints
medians and ratios: `./run bench --against-pytorch [--rounds N] [--steps N] [--only WORD] [--small]`.

PyTorch accumulates gradients over the same micro-batches; 1 and 2 threads are tried, and the
better count is used. Then all run in turns, A B A B, with the matrix products that the step needs called
alone, and the machine's product rates. PyTorch is that of build/pytorch.
Losses of all steps have to agree. Writes bench/results/against_pytorch.json.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from jobs import GPT, SMALL_GPT, TOP, mlp, prepared, train_flags

HERE = pathlib.Path(__file__).resolve().parent
COMMAND = TOP / "build/release/millrace"
PYTHON = TOP / "build/pytorch/bin/python"
PRODUCTS = TOP / "build/release/bench/step_products_bench"
TOLERANCE = {"f32": 1e-4, "bf16": 3e-2}  # of a loss, relative
COMPARED = 20  # steps: later ones show how roundings grow, to 1e-3 in forty steps of the perceptron of 512
THREADS = (1, 2)  # of PyTorch
ONE_STAGE, TWO_STAGES = {"1 stage": ["-p", "1"]}, {"2 stages": ["-p", "2"]}
TWO_PROCESSES = {"launch of 2 processes": ["launch"]}


def ran(words, **environment):
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def baseline(folder, job, threads):
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return json.loads(ran([PYTHON, HERE / "baseline.py", path, str(threads)], OMP_NUM_THREADS=str(threads)))


def ours(folder, job, cut):
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    train = [*train_flags(job), "--log", log]
    ran([COMMAND, "launch", "-n", "2", "--", *train] if cut == ["launch"] else [COMMAND, *train, *cut])
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return {"losses": [r["loss"] for r in records], "seconds": [r["seconds"] for r in records]}


def benched(what):
    """Results of the bench of products, by name."""
    words = [PRODUCTS, f"--benchmark_filter={what}", "--benchmark_format=json", "--benchmark_min_time=1"]
    return {result["name"]: result for result in json.loads(ran(words))["benchmarks"]}


def products_alone(job):
    name = f"products_of_step/{job['precision']}/cores:2/real_time"
    return benched(f"^{name}$")[name]["real_time"] / 1000


def check(name, losses, expected, precision):
    assert len(losses) == len(expected)
    for step, (loss, other) in enumerate(zip(losses[:COMPARED], expected)):
        if abs(loss - other) > TOLERANCE[precision] * other:
            sys.exit(f"{name}: loss {loss} in step {step}, PyTorch has {other}: not the same training")


def compare(folder, job, rounds):
    """Medians of seconds per step, the first step of each run left out."""
    job = prepared(folder, job)
    probe = {threads: statistics.median(baseline(folder, {**job, "steps": job["probed"]}, threads)["seconds"][1:])
             for threads in THREADS}
    best = min(probe, key=probe.get)
    seconds = {"PyTorch": [], **{way: [] for way in job["ways"]}}
    alone = []
    for _ in range(rounds):
        theirs = baseline(folder, job, best)
        seconds["PyTorch"] += theirs["seconds"][1:]
        for way, cut in job["ways"].items():
            mine = ours(folder, job, cut)
            check(way, mine["losses"], theirs["losses"], job["precision"])
            seconds[way] += mine["seconds"][1:]
        if job.get("products"):
            alone.append(products_alone(job))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {"name": job["name"], "precision": job["precision"], "best_threads": best,
              "probed": probe, "median_seconds": medians,
              "ratios": {way: medians["PyTorch"] / medians[way] for way in job["ways"]}, "aim": job["aim"]}
    if alone:
        result["products_alone_seconds"] = statistics.median(alone)
        result["by_products_alone"] = {way: medians[way] / result["products_alone_seconds"] for way in job["ways"]}
    show(result, job)
    return result


def show(result, job):
    unit, count = ("tokens", job["batch"] * job["context"]) if job["kind"] == "gpt" else ("samples", job["batch"])
    print(f"{job['name']} {job['precision']}: PyTorch best with {result['best_threads']} threads; aim {job['aim']}x")
    for name, median in result["median_seconds"].items():
        line = f"  {name:22} {1000 * median:9.2f} ms a step {count / median:9.0f} {unit}/s"
        if name in result["ratios"]:
            line += f" {result['ratios'][name]:6.2f}x"
        if name in result.get("by_products_alone", {}):
            line += f"   {result['by_products_alone'][name]:.2f} of its products alone"
        print(line)
    if "products_alone_seconds" in result:
        print(f"  {'products, two cores':22} {1000 * result['products_alone_seconds']:9.2f} ms a step")
    sys.stdout.flush()


def product_rates(rounds):
    """Operations per second by precision and cores: of the library that is best, medians of the rounds."""
    rounds = [benched("^rate/") for _ in range(rounds)]
    rates = {}
    for name in rounds[0]:
        _, precision, _, cores, _ = name.split("/")
        of_library = statistics.median(results[name]["flops"] for results in rounds)
        key = f"{precision}, {'one core' if cores == 'cores:1' else 'two cores'}"
        rates[key] = max(rates.get(key, 0), of_library)
    for key, rate in rates.items():
        print(f"products in {key}: {rate / 1e9:.0f} GFLOP/s")
    return rates


def jobs_of(flags):
    gpt = {**(SMALL_GPT if flags.small else GPT), "steps": flags.steps, "probed": 3, "products": not flags.small}
    ways = {**ONE_STAGE, **TWO_STAGES, **TWO_PROCESSES}
    mlps = [{**mlp(batch, 4), "ways": ways, "aim": 2.5, "probed": steps // 4, "steps": steps}
            for batch, steps in ((32, 200), (512, 40))]
    return [{**gpt, "precision": "f32", "ways": ways, "aim": 2.5},
            {**gpt, "precision": "bf16", "ways": ways, "aim": 3}, *mlps]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of a transformer, in a round")
    parser.add_argument("--only", default="", help="jobs whose name and precision have this word")
    parser.add_argument("--small", action="store_true", help="a transformer that runs in seconds: does the bench work")
    flags = parser.parse_args()
    rates = product_rates(flags.rounds)
    with tempfile.TemporaryDirectory() as name:
        results = [compare(pathlib.Path(name), job, flags.rounds) for job in jobs_of(flags)
                   if flags.only in f"{job['name']} {job['precision']}"]
    report = {"millrace": ran([COMMAND, "--version"]).strip(), "cpus": os.cpu_count(),
              "operations_per_second": rates, "results": results}
    if not flags.small and not flags.only:
        (TOP / "bench/results/against_pytorch.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
