# Models of PyTorch that pipelines train, and the plain loop that they are compared with: autograd in one thread,
# the updates by millrace's own rule.
import contextlib
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the plain loop; a pipeline sets it by itself

import torch
from torch import nn

import millrace

torch.set_num_threads(1)
WORDS, PLACES, WIDTH = 11, 6, 16


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(PLACES, WIDTH))

    def forward(self, tokens):
        return self.words(tokens) + self.places


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.mix(self.before(x)).chunk(3, -1)
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        seen = (q @ k.transpose(-2, -1) / 4).masked_fill(future, -1e9).softmax(-1)
        x = x + self.out(seen @ v)
        return x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))


def small_gpt(blocks=6):
    torch.manual_seed(7)
    return nn.Sequential(Embed(), *[Block() for _ in range(blocks)], nn.Linear(WIDTH, WORDS))


def sentences(count=13):
    tokens = (torch.arange(count * (PLACES + 1)) ** 2 % WORDS).reshape(count, PLACES + 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def next_word_loss(outputs, targets):
    total = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
    return total, targets.numel()


def words_of(targets):
    return targets.numel()


class GivenGradients(millrace.Stage):
    """Lets an optimizer of millrace move the parameters of a module by the gradients that it has."""

    def __init__(self, model):
        self.model = dict(model.named_parameters())
        self.parameters = {name: value.detach().numpy() for name, value in self.model.items()}
        self.no_decay = {name for name, value in self.model.items() if value.dim() < 2}

    def forward(self, unit, x):
        unit.add_loss(0.0, len(x))

    def backward(self, unit):
        for name, value in self.model.items():
            self.gradients[name] += value.grad.numpy()


def train_plainly(model, loss, inputs, targets, *, micro_batches, steps, optimizer, weight, precision="f32"):
    """Micro-batch after micro-batch; mean losses."""
    updates = millrace.Trainer(millrace.generate("1f1b", 1, 1), [GivenGradients(model)], optimizer=optimizer)
    one, losses = torch.zeros(1, 1).numpy(), []
    for _ in range(steps):
        for value in model.parameters():
            value.grad = torch.zeros_like(value)
        total = 0.0
        for x, wanted in zip(inputs.tensor_split(micro_batches), targets.tensor_split(micro_batches)):
            bf16 = torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)
            with bf16 if precision == "bf16" else contextlib.nullcontext():
                said = loss(model(x), wanted)
            summed = said[0] if isinstance(said, tuple) else said
            total += summed.item()
            summed.backward(torch.full_like(summed, 1.0 / weight))
        updates.step(one)
        losses.append(total / weight)
    return losses


def same_bits(one, other):
    """Of two modules; the names that differ."""
    others = other.state_dict()
    return [name for name, value in one.state_dict().items() if not torch.equal(value, others[name])]
