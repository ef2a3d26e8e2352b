# How much faster are two processes of a pipeline than PyTorch in one: a GPT of 32 micro-batches a step, alone by backward()
# and under `millrace launch -n 2`. Run without arguments it measures both, in turns.
# build/pytorch/bin/python bench/python/torch_ranks.py [MILLRACE]   (after ./run test-pytorch)
import json
import os
import statistics
import subprocess
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch
from torch import nn

import millrace.torch

MICRO_BATCHES, SAMPLES, WIDTH, HEADS, PLACES, WORDS, STEPS, ROUNDS = 32, 2, 128, 4, 64, 256, 4, 3
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.mix(self.before(x)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        future = torch.ones(PLACES, PLACES, dtype=torch.bool).triu(1)
        seen = (q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5).masked_fill(future, -1e9).softmax(-1) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.between(x))


class Places(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *[Block() for _ in range(8)], nn.Linear(WIDTH, WORDS), Places())


def seconds_of(step):
    tokens = torch.arange(MICRO_BATCHES * SAMPLES * PLACES).reshape(-1, PLACES) * 7 % WORDS
    step(tokens)
    times = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        step(tokens)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def plain():
    trained, loss = model(), nn.CrossEntropyLoss(reduction="sum")
    optimizer = torch.optim.AdamW(trained.parameters())

    def step(tokens):
        for part in tokens.split(SAMPLES):
            (loss(trained(part), part) / tokens.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def in_ranks(schedule):
    trained = model()
    pipeline = millrace.torch.Pipeline(trained, loss=nn.CrossEntropyLoss(), ranks=2, micro_batches=MICRO_BATCHES,
                                       schedule=schedule, split=[0, 5, 11],
                                       optimizer=torch.optim.AdamW(trained.parameters()))
    return lambda tokens: pipeline.step(tokens, tokens)


def said(*words):
    # glibc keeps the memory of a unit for the next one.
    kept = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}
    ran = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **kept})
    return float(ran.stdout)


def main():
    if sys.argv[1:2] == ["plain"]:
        print(seconds_of(plain()))
    elif sys.argv[1:2] == ["ranks"]:
        print(seconds_of(in_ranks(sys.argv[2])))
    else:
        command = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(sys.executable), "millrace")
        itself = (sys.executable, __file__)
        times = {kind: [] for kind in ("plain", "1f1b", "zb-h1")}
        for _ in range(ROUNDS):
            for kind in times:
                launch = () if kind == "plain" else (command, "launch", "-n", "2", "--")
                times[kind].append(said(*launch, *itself, *(("plain",) if kind == "plain" else ("ranks", kind))))
        middle = {kind: statistics.median(all_of) for kind, all_of in times.items()}
        print(json.dumps({"seconds a step": middle,
                          "times as fast": {kind: round(middle["plain"] / middle[kind], 2) for kind in middle}}))


if __name__ == "__main__":
    main()
