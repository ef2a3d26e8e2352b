#!/usr/bin/python3
# A small GPT learns to spell like the King James Bible: the same training file as a pipeline.
import gzip
import pathlib

import torch
from torch import nn

import millrace.torch

width, heads, blocks, context = 64, 4, 4, 32
batch_size, micro_batches, steps = 16, 8, 60
torch.manual_seed(1)

text = gzip.open(pathlib.Path(__file__).parents[2] / "data/king_james.txt.gz", "rt").read()
letters = sorted(set(text))
tokens = torch.tensor([letters.index(letter) for letter in text[:100_000]])
train, held_out = tokens[:-10_000], tokens[-10_000:]


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(letters), width), nn.Embedding(context, width)

    def forward(self, tokens):
        return self.letters(tokens) + self.places(torch.arange(tokens.shape[1]))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.mix(x).unflatten(2, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / (width // heads) ** 0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        seen = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
        return self.out(seen.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention())
        self.perceptron = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.perceptron(x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.letters = nn.LayerNorm(width), nn.Linear(width, len(letters))

    def forward(self, x):
        return self.letters(self.norm(x)).transpose(1, 2)  # [samples, letters, places], as the loss has it


model = nn.Sequential(Embedding(), *[Block() for _ in range(blocks)], Head())
criterion = nn.CrossEntropyLoss()
optimizer = millrace.AdamW(3e-3, weight_decay=0.01)
pipeline = millrace.torch.Pipeline(model, loss=criterion, optimizer=optimizer, clip_norm=1.0,
                                   ranks=4, micro_batches=micro_batches, schedule="zb-h1")


def batch(data):
    starts = torch.randint(len(data) - context, (batch_size,)).tolist()
    rows = torch.stack([data[start : start + context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


for step in range(steps):
    inputs, targets = batch(train)
    pipeline.step(inputs, targets)

inputs, targets = batch(held_out)
print(f"held out: {pipeline.evaluate(inputs, targets).mean_loss:.3f}")
