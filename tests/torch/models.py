"""Small models of the kinds that people train, each with a mini-batch and a loss, and the plain loop that
a Pipeline has to equal to the bit."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import nn
from torch.nn import functional

import millrace
import millrace.torch
from millrace.torch.partition import boundaries

SAMPLES, STEPS, CLIP = 18, 2, 0.5
WORDS, PLACES, WIDTH = 11, 6, 16


class Residual(nn.Module):
    """A block of a residual network, with batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.last(self.two(torch.relu(self.norm(self.one(x))))))


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(PLACES, WIDTH))

    def forward(self, tokens):
        return self.words(tokens) + self.places


class Block(nn.Module):
    """Attention and a perceptron, as in GPT."""

    def __init__(self, width: int = WIDTH, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mix(self.before(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Begin(nn.Module):
    """Takes a tuple, as all modules of an nn.Sequential; makes what the stages pass on: two hidden states
    and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, WIDTH), nn.Linear(7, WIDTH)

    def forward(self, given):
        x, y = given
        return torch.tanh(self.left(x)), self.right(y), x[:, :1] > 0


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, given):
        a, b, mask = given
        return a + torch.tanh(self.one(b)).masked_fill(mask, 0.0), b * torch.sigmoid(self.two(a)), mask


class End(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(2 * WIDTH, 3)

    def forward(self, given):
        return self.last(torch.cat(given[:2], -1))


def gpt() -> nn.Sequential:
    model = nn.Sequential(Embed(), *[Block() for _ in range(6)], nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False))
    model[-1].weight = model[0].words.weight
    return model


def next_words(outputs, targets):
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()


@dataclass
class Case:
    """A model, its mini-batch, and how it is trained."""

    make: Callable[[], nn.Sequential]
    inputs: Callable[[], Any]
    targets: Callable[[], torch.Tensor]
    loss: Any
    summed: Callable[..., torch.Tensor]  # the sum that the plain loop divides by `weight`
    weight: int
    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss_weight: Optional[Callable[[Any], Any]] = None
    tie: bool = False

    def model(self) -> nn.Sequential:
        torch.manual_seed(7)
        return self.make()

    def batch(self) -> tuple[Any, torch.Tensor]:
        torch.manual_seed(8)
        return self.inputs(), self.targets()


def _class_sum(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="sum")


def _square_sum(outputs, targets):
    return functional.mse_loss(outputs, targets, reduction="sum")


CASES = {
    "mlp": Case(
        lambda: nn.Sequential(*itertools.chain(*[(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(5)])),
        lambda: torch.randn(SAMPLES, WIDTH), lambda: torch.randn(SAMPLES, WIDTH), nn.MSELoss(), _square_sum,
        SAMPLES * WIDTH, lambda given: torch.optim.SGD(given, 0.5, momentum=0.9)),
    "cnn": Case(
        lambda: nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
                              *[Residual(4) for _ in range(6)],
                              nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))),
        lambda: torch.randn(SAMPLES, 3, 6, 6), lambda: torch.randint(3, (SAMPLES,)), nn.CrossEntropyLoss(), _class_sum,
        SAMPLES, lambda given: torch.optim.SGD(given, 0.1, momentum=0.9, weight_decay=1e-3)),
    "gpt": Case(
        gpt, lambda: torch.randint(WORDS, (SAMPLES, PLACES)), lambda: torch.randint(WORDS, (SAMPLES, PLACES)), next_words,
        lambda outputs, targets: next_words(outputs, targets)[0], SAMPLES * PLACES,
        lambda given: torch.optim.AdamW(given, 3e-3), torch.Tensor.numel, True),
    "pair": Case(
        lambda: nn.Sequential(Begin(), *[Cross() for _ in range(7)], End()),
        lambda: (torch.randn(SAMPLES, 5), torch.randn(SAMPLES, 7)), lambda: torch.randint(3, (SAMPLES,)),
        nn.CrossEntropyLoss(), _class_sum, SAMPLES, lambda given: torch.optim.AdamW(given, 3e-3)),
    "dropout": Case(
        lambda: nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.ReLU()) for _ in range(8)]),
        lambda: torch.randn(SAMPLES, WIDTH), lambda: torch.randint(WIDTH, (SAMPLES,)), nn.CrossEntropyLoss(), _class_sum,
        SAMPLES, lambda given: torch.optim.AdamW(given, 3e-3)),
}


@dataclass
class Result:
    """Of a training: a digest over names and bytes of the model's state, losses and norms."""

    digest: str
    losses: list[float]
    norms: list[float]


def digest(state: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in state.items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def plain(name: str, micro_batches: int, stages: int, precision: str = "f32", device: str = "cpu") -> Result:
    """backward() per micro-batch, clip_grad_norm_, the optimizer. A weight that two stages share gathers
    two gradients, which are added once."""
    case = CASES[name]
    model = case.model().to(device)
    state, parameters = model.state_dict(), list(model.parameters())
    optimizer = case.optimizer(parameters)
    first, again = model[0], None
    if case.tie and stages > 1:
        model[-1].weight = again = nn.Parameter(model[-1].weight.detach())
    ends = boundaries(list(model), "even", stages)
    inputs, targets = case.batch()
    columns = [one.to(device).tensor_split(micro_batches) for one in (inputs if isinstance(inputs, tuple) else (inputs,))]
    wanted = targets.to(device).tensor_split(micro_batches)
    result = Result("", [], [])
    for step in range(STEPS):
        losses = []
        for unit, some in enumerate(zip(*columns)):
            casts = torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)
            with casts if precision == "bf16" else nullcontext():
                value: Any = some if len(some) > 1 else some[0]
                for stage, (begin, end) in enumerate(zip(ends, ends[1:])):
                    millrace.torch.seed(step, unit, stage)
                    for at in range(begin, end):
                        value = model[at](value)
                total = case.summed(value, wanted[unit])
            losses.append(total.detach())
            (total / case.weight).backward()
        if again is not None:
            first.words.weight.grad += again.grad
            again.grad = None
        norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        result.losses.append(sum(float(one) for one in losses) / case.weight)
        result.norms.append(float(norm))
    result.digest = digest({key: tensor.cpu() for key, tensor in state.items()})
    return result


def piped(name: str, program: Any, executor: str = "flow-graph", precision: str = "f32", recompute: bool = False,
          device: str = "cpu") -> Result:
    """The same by a Pipeline."""
    case = CASES[name]
    model = case.model().to(device)
    pipeline = millrace.torch.Pipeline(
        model, loss=case.loss, loss_weight=case.loss_weight, optimizer=case.optimizer(model.parameters()), clip_norm=CLIP,
        schedule=program, executor=executor, precision=precision, recompute=recompute, tie=case.tie)
    inputs, targets = case.batch()
    reports = [pipeline.step(inputs, targets) for _ in range(STEPS)]
    return Result(digest({key: tensor.cpu() for key, tensor in pipeline.state_dict().items()}),
                  [one.mean_loss for one in reports], [one.gradient_norm for one in reports])


def program_of(schedule: str, ranks: int) -> Optional[Any]:
    """With the fewest micro-batches that the schedule takes; None where it takes none."""
    for micro_batches in (4, 8, 16):
        try:
            return millrace.generate(schedule, ranks, micro_batches)
        except millrace.Error:
            continue
    return None


def covering(factors: Sequence[Sequence[Any]], allowed: Callable[..., bool]) -> list[tuple[Any, ...]]:
    """Few combinations that have every allowed pair of values of two factors."""
    every = [case for case in itertools.product(*factors) if allowed(*case)]
    every.sort(key=lambda case: zlib.crc32(repr(case).encode()))

    def pairs(case: tuple[Any, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(case), 2))

    left = set().union(*(pairs(case) for case in every))
    chosen = []
    for least in range(len(factors) * (len(factors) - 1) // 2, 0, -1):
        for case in every:
            if left and len(pairs(case) & left) >= least:
                chosen.append(case)
                left -= pairs(case)
    return chosen
