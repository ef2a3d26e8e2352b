"""The PyTorch side of against_pytorch.py: trains the same model on the same data, says how long.

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

    class Front(torch.nn.Module):
        def __init__(self, job):
            super().__init__()
            self.words = torch.nn.Embedding(job["vocabulary"], job["d"])
            self.positions = torch.nn.Embedding(job["context"], job["d"])

        def forward(self, tokens):
            return self.words(tokens) + self.positions.weight[:tokens.shape[1]]

    def __init__(self, job):
        super().__init__()
        d = job["d"]
        self.front = self.Front(job)
        self.blocks = torch.nn.ModuleList(
            self.Block(d, job["heads"], job["context"]) for _ in range(job["layers"]))
        self.norm = torch.nn.LayerNorm(d)
        self.head = torch.nn.Linear(d, job["vocabulary"], bias=False)
        take(read_weights(job["weights"]), self.numbered())

    def numbered(self):
        """(module, its layer's number) as millrace numbers layers."""
        yield from ((self.front.words, 0), (self.front.positions, 1))
        for i, block in enumerate(self.blocks):
            first = 2 + 9 * i
            yield from ((block.norm, first), (block.rows, first + 1), (block.out, first + 3),
                        (block.norm2, first + 5), (block.up, first + 6), (block.down, first + 7))
        yield from ((self.norm, 2 + 9 * len(self.blocks)), (self.head, 3 + 9 * len(self.blocks)))

    def forward(self, tokens):
        x = self.front(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Mlp(torch.nn.Sequential):
    def __init__(self, job):
        layers = []
        for columns, rows in zip(job["widths"], job["widths"][1:]):
            layers += [torch.nn.Linear(columns, rows), torch.nn.ReLU()]
        super().__init__(*layers[:-1])
        take(read_weights(job["weights"]), ((self[2 * i], i) for i in range(len(job["widths"]) - 1)))


def take(weights, numbered):
    """Weights of linear layers lie the other way round there; a head's do not."""
    for module, layer in numbered:
        for name, parameter in module.named_parameters():
            value = weights[f"layers.{layer}.{name}"]
            turned = isinstance(module, torch.nn.Linear) and module.bias is not None and name == "weight"
            parameter.data.copy_(value.T if turned else value)


def windows(job):
    """Inputs and targets of every step."""
    text = open(job["data"], "rb").read()
    ids = {byte: i for i, byte in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[byte] for byte in text[:len(text) * 9 // 10]])
    context = job["context"]
    for step in range(job["steps"]):
        rows = drawn_windows(job["batch"], len(tokens) - 1 - context + 1, job["seed"], step)
        whole = torch.stack([tokens[row:row + context + 1] for row in rows])
        yield whole[:, :-1], whole[:, 1:]


def images(job):
    """The mini-batch of all images, in every step."""
    def read(name, header):
        raw = bytearray(open(f"{job['data']}/train-{name}-ubyte", "rb").read())
        return torch.frombuffer(raw, dtype=torch.uint8, offset=header)

    inputs = read("images-idx3", 16).view(job["batch"], -1).float() / 255
    classes = read("labels-idx1", 8).long()
    for _ in range(job["steps"]):
        yield inputs, classes


def groups_of(model, decay):
    """Biases and norms do not decay."""
    whole = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": whole, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def mean_loss(scores, targets):
    return F.cross_entropy(scores.float().flatten(0, -2), targets.flatten())


def accumulated(job, model, inputs, targets):
    """Gradients of all micro-batches, one after the other; the loss."""
    parts, total = job["micro_batches"], 0.0
    size = len(inputs) // parts
    for part, wanted in zip(inputs.split(size), targets.split(size)):
        with torch.autocast("cpu", torch.bfloat16, enabled=job["precision"] == "bf16"):
            scores = model(part)
        loss = mean_loss(scores, wanted) / parts
        loss.backward()
        total += loss.item()
    return total


def trained(job):
    """Losses and seconds of all steps."""
    model = (Gpt if job["kind"] == "gpt" else Mlp)(job)
    optimizer = torch.optim.AdamW(groups_of(model, job["decay"]), lr=job["lr"])
    losses, seconds = [], []
    for inputs, targets in (windows if job["kind"] == "gpt" else images)(job):
        began = time.perf_counter()
        optimizer.zero_grad()
        losses.append(accumulated(job, model, inputs, targets))
        torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return {"losses": losses, "seconds": seconds}


def main():
    job = json.load(open(sys.argv[1], encoding="utf-8"))
    torch.set_num_threads(int(sys.argv[2]))
    print(json.dumps(trained(job)))


if __name__ == "__main__":
    main()
