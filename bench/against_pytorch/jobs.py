"""What is trained by both sides: models with their first weights, data, settings, and the flags by which
millrace trains them.
"""

import gzip
import json
import pathlib
import random
import struct

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
RULE = {"lr": 3e-4, "decay": 0.1, "clip": 1.0, "seed": 1}  # of AdamW
GPT = {"kind": "gpt", "name": "GPT layers=8 d=256", "layers": 8, "d": 256, "heads": 8, "context": 128,
       "vocabulary": 96, "batch": 32, "micro_batches": 8, **RULE}
SMALL_GPT = {**GPT, "name": "GPT layers=4 d=32", "layers": 4, "d": 32, "heads": 2, "context": 32, "batch": 16}
WIDTHS = [784, 512, 512, 10]


def mlp(batch, micro_batches):
    return {"kind": "mlp", "name": f"784-512-512-10, {batch} in {micro_batches}", "widths": WIDTHS, "batch": batch,
            "micro_batches": micro_batches, "precision": "f32", **RULE}


def gpt_shapes(job):
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


def mlp_shapes(job):
    shapes = {}
    for layer, (rows, columns) in enumerate(zip(job["widths"], job["widths"][1:])):
        shapes |= {f"layers.{layer}.weight": [rows, columns], f"layers.{layer}.bias": [columns]}
    return shapes


def write_weights(path, job):
    """Matrices drawn around 0, gains 1, biases 0."""
    draw = random.Random(1)
    header, data, at = {}, [], 0
    for name, shape in sorted((gpt_shapes if job["kind"] == "gpt" else mlp_shapes)(job).items()):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        spread = 0.02 if job["kind"] == "gpt" else shape[0] ** -0.5
        if len(shape) > 1:
            values = [draw.gauss(0, spread) for _ in range(count)]
        else:
            values = [0.0 if name.endswith("bias") else 1.0] * count
        data.append(struct.pack(f"<{count}f", *values))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def write_images(folder, job):
    """As many images as a mini-batch has, so that the order in which an epoch takes them is all the same."""
    draw = random.Random(2)
    folder.mkdir()
    count = job["batch"]
    images = struct.pack(">4i", 0x803, count, 28, 28) + draw.randbytes(784 * count)
    labels = struct.pack(">2i", 0x801, count) + bytes(draw.randrange(10) for _ in range(count))
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def prepared(folder, job):
    """The job with its weights and data as files."""
    weights, data = folder / f"{job['kind']}.safetensors", folder / f"data-{job['kind']}-{job['batch']}"
    write_weights(weights, job)
    if job["kind"] == "gpt":
        data.write_bytes(gzip.decompress((TOP / "data/king_james.txt.gz").read_bytes()))
    elif not data.exists():
        write_images(data, job)
    return {**job, "weights": str(weights), "data": str(data)}


def train_flags(job):
    """Of `millrace train`, but for the cut."""
    if job["kind"] == "gpt":
        sizes = ",".join(f"{name}={job[name]}" for name in ("layers", "d", "heads", "context", "vocabulary"))
        model, data = f"gpt:{sizes}", f"text:{job['data']}"
    else:
        model, data = f"mlp:{'-'.join(map(str, job['widths']))}", f"idx:{job['data']}"
    return ["train", "--model", model, "--data", data, "--weights", job["weights"],
            "--batch-size", str(job["batch"]), "-m", str(job["micro_batches"]), "--steps", str(job["steps"]),
            "--optimizer", "adamw", "--lr", str(job["lr"]), "--lr-schedule", "constant", "--warmup", "0",
            "--weight-decay", str(job["decay"]), "--clip-norm", str(job["clip"]), "--seed", str(job["seed"]),
            "--precision", job["precision"]]
