#!/usr/bin/python3
"""Trains one transformer by millrace and by PyTorch, from the same weights over the same windows, and
prints medians and ratios: `./run bench --against-pytorch [--rounds N] [--steps N] [--small]`.

PyTorch accumulates gradients over the same micro-batches; every setting of 1 and 2 threads and of 1 and 2
threads of OpenBLAS is tried, and the best one counts. Then both run in turns, A B A B. Losses of all steps
have to agree. Writes bench/results/against_pytorch.json.
"""

import argparse
import gzip
import itertools
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
TOLERANCE = {"f32": 1e-4, "bf16": 3e-2}  # of a loss, relative


def shapes_of(job):
    """Names and shapes of all parameters of the model, as its layers are numbered."""
    d, words = job["d"], job["vocabulary"]
    shapes = {"layers.0.weight": [words, d], "layers.1.weight": [job["context"], d]}

    def linear(layer, rows, columns):
        shapes[f"layers.{layer}.weight"] = [rows, columns]
        shapes[f"layers.{layer}.bias"] = [columns]

    def norm(layer):
        shapes[f"layers.{layer}.weight"] = [d]
        shapes[f"layers.{layer}.bias"] = [d]

    for first in range(2, 2 + 9 * job["layers"], 9):
        norm(first)
        linear(first + 1, d, 3 * d)
        linear(first + 3, d, d)
        norm(first + 5)
        linear(first + 6, d, 4 * d)
        linear(first + 7, 4 * d, d)
    norm(2 + 9 * job["layers"])
    shapes[f"layers.{3 + 9 * job['layers']}.weight"] = [words, d]
    return shapes


def write_weights(path, job):
    """Matrices drawn around 0, gains 1, biases 0."""
    draw = random.Random(1)
    header, data, at = {}, [], 0
    for name, shape in sorted(shapes_of(job).items()):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        if len(shape) > 1:
            values = [draw.gauss(0, 0.02) for _ in range(count)]
        else:
            values = [0.0 if name.endswith("bias") else 1.0] * count
        data.append(struct.pack(f"<{count}f", *values))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def ran(words, **environment):
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def rival(folder, job, threads, blas):
    path = folder / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return json.loads(ran(["/usr/bin/python3", HERE / "rival.py", path, str(threads)],
                          OPENBLAS_NUM_THREADS=str(blas), OMP_NUM_THREADS=str(threads)))


def ours(folder, job, way):
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    model = ",".join(f"{name}={job[name]}" for name in ("layers", "d", "heads", "context", "vocabulary"))
    train = ["train", "--model", f"gpt:{model}", "--data", f"text:{job['text']}", "--weights", job["weights"],
             "--batch-size", str(job["batch"]), "-m", str(job["micro_batches"]), "--steps", str(job["steps"]),
             "--optimizer", "adamw", "--lr", str(job["lr"]), "--lr-schedule", "constant", "--warmup", "0",
             "--weight-decay", str(job["decay"]), "--clip-norm", str(job["clip"]), "--seed", str(job["seed"]),
             "--precision", job["precision"], "--log", log]
    command = TOP / "build/release/millrace"
    if way.startswith("launch"):
        ran([command, "launch", "-n", "2", "--", *train])
    else:
        ran([command, *train, "-p", way.split()[0]])
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return {"losses": [r["loss"] for r in records], "seconds": [r["seconds"] for r in records]}


def check(name, losses, expected, precision):
    for step, (loss, other) in enumerate(zip(losses, expected, strict=True)):
        if abs(loss - other) > TOLERANCE[precision] * other:
            sys.exit(f"{name}: loss {loss} in step {step}, PyTorch has {other}: not the same training")


WAYS = ("1 stage", "2 stages", "launch of 2 processes")


def compare(folder, job, rounds):
    """Medians of seconds per step, the first step of each run left out."""
    settings = list(itertools.product((1, 2), (1, 2)))
    probe = {s: statistics.median(rival(folder, {**job, "steps": 3}, *s)["seconds"][1:]) for s in settings}
    best = min(probe, key=probe.get)
    seconds = {"PyTorch": [], **{way: [] for way in WAYS}}
    for _ in range(rounds):
        theirs = rival(folder, job, *best)
        seconds["PyTorch"] += theirs["seconds"][1:]
        for way in WAYS:
            mine = ours(folder, job, way)
            check(way, mine["losses"], theirs["losses"], job["precision"])
            seconds[way] += mine["seconds"][1:]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    tokens = job["batch"] * job["context"]
    print(f"{job['name']} {job['precision']}: PyTorch best with {best[0]} threads, OpenBLAS {best[1]}")
    for name, median in medians.items():
        print(f"  {name:22} {median:7.3f} s a step {tokens / median:9.0f} tokens/s"
              f"{medians['PyTorch'] / median:7.2f}x")
    return {"job": {k: v for k, v in job.items() if k not in ("text", "weights")}, "best_setting": best,
            "probed": {f"{t} x {b}": v for (t, b), v in probe.items()}, "median_seconds": medians}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="a model that runs in seconds: does the bench work")
    flags = parser.parse_args()
    blas = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    if "libopenblas" not in blas:
        sys.exit("PyTorch without OpenBLAS falls back to a slow BLAS: install libopenblas0-pthread")
    gpt = {"name": "GPT layers=8 d=256", "layers": 8, "d": 256, "heads": 8, "context": 128, "batch": 32}
    if flags.small:
        gpt = {"name": "GPT layers=1 d=32", "layers": 1, "d": 32, "heads": 2, "context": 32, "batch": 16}
    gpt |= {"vocabulary": 96, "micro_batches": 8, "steps": flags.steps, "lr": 3e-4, "decay": 0.1, "clip": 1.0,
            "seed": 1}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        gpt |= {"text": str(folder / "text"), "weights": str(folder / "weights.safetensors")}
        pathlib.Path(gpt["text"]).write_bytes(gzip.decompress((TOP / "data/king_james.txt.gz").read_bytes()))
        write_weights(pathlib.Path(gpt["weights"]), gpt)
        results = [compare(folder, {**gpt, "precision": p}, flags.rounds) for p in ("f32", "bf16")]
    version = ran([TOP / "build/release/millrace", "--version"]).strip()
    report = {"millrace": version, "cpus": os.cpu_count(), "results": results}
    if not flags.small:
        (TOP / "bench/results/against_pytorch.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
