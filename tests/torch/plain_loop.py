"""Models, mini-batches and the plain loop that tests of what users bring compare a Pipeline with: in one thread,
backward() of each micro-batch's summed loss divided by the weight of the mini-batch, then the user's optimizer."""

import time

import torch
from millrace.torch import Pipeline
from torch import nn

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(nn.Module):
    """An embedding, blocks, and a mask that skips them."""

    def __init__(self, blocks=4, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.register_buffer("unsaved", torch.ones(8), persistent=False)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(dropout)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens, mask):
        x = self.embed(tokens) * self.scale * self.unsaved
        for block in self.blocks:
            x = block(x)
        return self.head(self.dropout(self.norm((x * mask.unsqueeze(-1)).sum(1))))


def made(kind, *arguments, **named):
    torch.manual_seed(5)
    return kind(*arguments, **named)


def layers():
    return made(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Block(), Block(), nn.Linear(8, 3)))


def sgd(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), lr=rate)


def words(rows=16):
    generator = torch.Generator().manual_seed(9)
    tokens = torch.randint(11, (rows, 5), generator=generator)
    return tokens, torch.rand(rows, 5, generator=generator) > 0.3, torch.randint(11, (rows,), generator=generator)


def points(rows=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(rows, 6, generator=generator).to(dtype), torch.randint(3, (rows,), generator=generator)


def summed(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def plain_step(model, optimizer, inputs, targets, count=4, clip=None, loss=summed):
    """`inputs`: a tuple of tensors."""
    optimizer.zero_grad()
    for part, y in zip(zip(*(one.chunk(count) for one in inputs)), targets.chunk(count)):
        (loss(model(*part), y) / len(targets)).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def same(left, right):
    assert list(left) == list(right)
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert different == []


def pipeline_of(model, optimizer=None, **options):
    options = {"ranks": 2, "micro_batches": 4, "loss": nn.CrossEntropyLoss(), **options}
    return Pipeline(model, optimizer=sgd(model) if optimizer is None else optimizer, **options)


class Slow(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.linear = seconds, nn.Linear(6, 6)

    def forward(self, x):
        time.sleep(self.seconds)
        return self.linear(x)


class Many(nn.Module):
    """Tensors of many dtypes between stages."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)

    def forward(self, x, flags, numbers, half, brain):
        hidden = self.linear(x)
        return hidden, flags, numbers, half, brain * hidden[:, :1].to(torch.bfloat16), hidden.to(torch.float16)


class Joins(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, hidden, flags, numbers, half, brain, hidden_half):
        dtypes = [one.dtype for one in (flags, numbers, half, brain)]
        assert dtypes == [torch.bool, torch.int64, torch.float16, torch.bfloat16]
        return self.out(hidden * flags + numbers + half.float() + brain.float() + hidden_half.float())


def many(rows=16):
    x, y = points(rows)
    generator = torch.Generator().manual_seed(6)
    return (x, x[:, :1] > 0, torch.randint(3, (rows, 1), generator=generator), x[:, 1:2].half(), x[:, 2:3].bfloat16()), y


def plain_replicas(model, optimizer, x, y, copies, clip):
    """The sum of each replica's gradients, added in order of the replicas."""
    sums = None
    for part, targets in zip(x.chunk(copies), y.chunk(copies)):
        model.zero_grad()
        for a, b in zip(part.chunk(4), targets.chunk(4)):
            (summed(model(a), b) / len(y)).backward()
        own = [one.grad for one in model.parameters()]
        sums = own if sums is None else [total + one for total, one in zip(sums, own)]
    for one, total in zip(model.parameters(), sums):
        one.grad = total
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
