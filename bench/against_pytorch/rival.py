#!/usr/bin/python3
"""The PyTorch side of against_pytorch.py: trains the same transformer on the same windows, says how long.

One process per setting, because thread counts are read when libraries start. Prints one JSON object:
losses and seconds of every step.
"""

import json
import math
import struct
import sys
import time

import torch
from torch.nn import functional as F

WINDOW_PURPOSE = 8  # of the random numbers that draw windows, see include/millrace/core/random.hpp
MASK = 0xFFFFFFFF


def philox(counter, key):
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(second >> 32) ^ counter[1] ^ key[0], second & MASK,
                   (first >> 32) ^ counter[3] ^ key[1], first & MASK]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


def drawn_windows(count, size, seed, number):
    """What drawn_windows of the library draws, from the same stream."""
    stream = philox([number & MASK, number >> 32, WINDOW_PURPOSE, 0], [seed & MASK, seed >> 32])
    words = [philox([i // 4, 0, stream[0], stream[1]], stream[2:])[i % 4] for i in range(count)]
    return [(word * size) >> 32 for word in words]


def read_weights(path):
    with open(path, "rb") as file:
        raw = file.read()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    data = bytearray(raw[8 + length:])
    return {name: torch.frombuffer(data, dtype=torch.float32, offset=entry["data_offsets"][0],
                                   count=math.prod(entry["shape"])).view(entry["shape"]).clone()
            for name, entry in header.items() if name != "__metadata__"}


class Gpt(torch.nn.Module):
    """The layers of gpt: in the usual modules; weights come from the file that millrace reads too."""

    class Block(torch.nn.Module):
        def __init__(self, d, heads, context):
            super().__init__()
            self.heads = heads
            self.norm, self.norm2 = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d)
            self.rows, self.out = torch.nn.Linear(d, 3 * d), torch.nn.Linear(d, d)
            self.up, self.down = torch.nn.Linear(d, 4 * d), torch.nn.Linear(4 * d, d)
            self.register_buffer("seen", torch.ones(context, context).tril().bool(), persistent=False)

        def forward(self, x):
            samples, positions, d = x.shape
            q, k, v = self.rows(self.norm(x)).view(
                samples, positions, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            scores = (q @ k.transpose(2, 3)) / math.sqrt(d // self.heads)
            shares = scores.masked_fill(~self.seen, -math.inf).softmax(-1)
            x = x + self.out((shares @ v).transpose(1, 2).reshape(samples, positions, d))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def __init__(self, job, weights):
        super().__init__()
        d, layers = job["d"], job["layers"]
        self.embedding = torch.nn.Embedding(job["vocabulary"], d)
        self.positions = torch.nn.Embedding(job["context"], d)
        self.blocks = torch.nn.ModuleList(
            self.Block(d, job["heads"], job["context"]) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(d)
        self.head = torch.nn.Linear(d, job["vocabulary"], bias=False)
        self.take(weights, layers)

    def take(self, weights, layers):
        def fill(module, layer, turned=False):
            for name, parameter in module.named_parameters():
                value = weights[f"layers.{layer}.{name}"]
                parameter.data.copy_(value.T if turned and name == "weight" else value)

        fill(self.embedding, 0)
        fill(self.positions, 1)
        for i, block in enumerate(self.blocks):
            first = 2 + 9 * i
            for module, offset in ((block.norm, 0), (block.norm2, 5)):
                fill(module, first + offset)
            for module, offset in ((block.rows, 1), (block.out, 3), (block.up, 6), (block.down, 7)):
                fill(module, first + offset, turned=True)
        fill(self.norm, 2 + 9 * layers)
        fill(self.head, 3 + 9 * layers)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def groups_of(model, decay):
    """Biases and norms do not decay."""
    whole = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": whole, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def main():
    job = json.load(open(sys.argv[1], encoding="utf-8"))
    torch.set_num_threads(int(sys.argv[2]))
    text = open(job["text"], "rb").read()
    ids = {byte: i for i, byte in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[byte] for byte in text[:len(text) * 9 // 10]])
    context, samples, parts = job["context"], job["batch"], job["micro_batches"]
    model = Gpt(job, read_weights(job["weights"]))
    optimizer = torch.optim.AdamW(groups_of(model, job["decay"]), lr=job["lr"])
    losses, seconds = [], []
    for step in range(job["steps"]):
        rows = drawn_windows(samples, len(tokens) - 1 - context + 1, job["seed"], step)
        whole = torch.stack([tokens[row:row + context + 1] for row in rows])
        began = time.perf_counter()
        optimizer.zero_grad()
        total = 0.0
        for part in whole.split(samples // parts):
            with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
                scores = model(part[:, :-1])
            loss = F.cross_entropy(scores.float().flatten(0, 1), part[:, 1:].flatten()) / parts
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        losses.append(total)
    print(json.dumps({"losses": losses, "seconds": seconds}))


if __name__ == "__main__":
    main()
