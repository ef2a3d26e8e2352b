"""Several stages with a loss: one backward() of factor x mean loss, summed over them, has the same bits."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import millrace
import millrace.torch

HERE = pathlib.Path(__file__).resolve().parent
COMMAND = os.environ.get("MILLRACE_COMMAND", str(HERE.parents[1] / "build/release/millrace"))
EDGES = [(0, 0, 1, 0), (0, 0, 2, 0), (0, 0, 3, 1), (2, 0, 3, 0), (2, 1, 3, 2)]
FACTOR = 0.3
UNITS = 4
STEPS = 3


class Fork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.one(x))
        return y, torch.sigmoid(self.two(y))


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, a: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.head(a * b + y)


def stages() -> list[nn.Module]:
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 5), Fork(), Join()]


def losses() -> dict:
    """The auxiliary one counts samples, the main one targets that are not 2."""
    return {1: (lambda scores, targets: (scores.mean(1) - targets).square().sum(), FACTOR),
            3: nn.CrossEntropyLoss(ignore_index=2)}


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 6, generator=generator), torch.randint(5, (12,), generator=generator)


def plain() -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
    """Weights and losses of a loop over whole models."""
    first, aux, fork, join = modules = stages()
    parameters = [one for module in modules for one in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-2)
    aside, main = losses()[1][0], nn.CrossEntropyLoss(ignore_index=2, reduction="sum")
    seen = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        counted = float((targets != 2).sum())
        sums = [0.0, 0.0]
        for x, t in zip(inputs.split(3), targets.split(3)):
            y = first(x)
            of_aux = aside(aux(y), t)
            a, b = fork(y)
            of_main = main(join(a, y, b), t)
            (of_aux / 12.0 * FACTOR + of_main / counted).backward()
            sums = [sums[0] + float(of_aux), sums[1] + float(of_main)]
        seen.append((sums[0] / 12, sums[1] / counted))
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return parameters, seen


def trained(schedule: str, ranks: int, executor: str) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
    modules = stages()
    parameters = [one for module in modules for one in module.parameters()]
    pipeline = millrace.torch.Pipeline(
        modules, edges=EDGES, loss=losses(), optimizer=torch.optim.AdamW(parameters, 1e-2), clip_norm=0.5, ranks=ranks,
        micro_batches=UNITS, schedule=schedule, executor=executor)
    reports = [pipeline.step(*batch(step)) for step in range(STEPS)]
    return parameters, [(one.other_losses[1], one.mean_loss) for one in reports]


@pytest.mark.parametrize("executor", ["sequential", "flow-graph", "ranks"])
@pytest.mark.parametrize("schedule,ranks", [("gpipe", 4), ("1f1b", 4), ("zb-h1", 4), ("interleaved", 2), ("zb-v", 2)])
def test_bits_of_one_backward_of_the_sum(schedule: str, ranks: int, executor: str) -> None:
    expected, expected_losses = plain()
    found, found_losses = trained(schedule, ranks, executor)
    assert all(torch.equal(one, other) for one, other in zip(expected, found))
    assert found_losses == expected_losses


def test_bits_under_launch() -> None:
    done = subprocess.run([COMMAND, "launch", "-n", "4", "--", sys.executable, str(pathlib.Path(__file__).resolve())],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "equal True" in done.stdout


@pytest.mark.parametrize("knows", [True, False])
def test_a_mean_keeps_its_weight_with_another(knows: bool) -> None:
    """By loss_weight, or by the loss itself and step(weight=)."""
    modules = [nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)]
    inputs, targets = torch.randn(8, 3), torch.randn(8, 2)
    main = nn.MSELoss(reduction="sum")
    pipeline = millrace.torch.Pipeline(
        modules, edges=[(0, 0, 1, 0), (0, 0, 2, 0)], ranks=3, micro_batches=4,
        loss={1: (nn.MSELoss(), 0.5), 2: main if knows else lambda y, t: (main(y, t), t.numel())}, loss_weight=torch.numel if knows else None,
        optimizer=lambda named: torch.optim.SGD([one for _, one in named], 0.1))
    with torch.no_grad():
        y = modules[0](inputs)
        expected = nn.MSELoss()(modules[1](y), targets), main(modules[2](y), targets) / 16
    report = pipeline.step(inputs, targets, weight=None if knows else 16)
    assert report.other_losses[1] == pytest.approx(float(expected[0]), rel=1e-5)
    assert report.mean_loss == pytest.approx(float(expected[1]), rel=1e-5)


def test_a_stage_may_write_into_its_input() -> None:
    trunk, main, inputs = nn.Linear(3, 4), nn.Linear(4, 2), torch.randn(8, 3)
    pipeline = millrace.torch.Pipeline(
        [trunk, nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), main], edges=[(0, 0, 1, 0), (0, 0, 2, 0)], ranks=3,
        micro_batches=1, loss={1: nn.MSELoss(), 2: nn.MSELoss()}, executor="sequential",
        optimizer=lambda named: torch.optim.SGD([one for _, one in named], 0.1))
    assert torch.equal(pipeline.predict(inputs), main(trunk(inputs)))


def test_the_last_stage_is_the_main_one() -> None:
    pipeline = millrace.torch.Pipeline(stages(), edges=EDGES, loss=losses(), optimizer=lambda named: torch.optim.SGD(
        [one for _, one in named], 0.1), ranks=4, micro_batches=UNITS)
    first, _, fork, join = stages()
    inputs, targets = batch(0)
    with torch.no_grad():
        scores = [join(fork(y)[0], y, fork(y)[1]) for y in map(first, inputs.split(3))]
        loss = nn.CrossEntropyLoss(ignore_index=2)(torch.cat(scores), targets)
    assert torch.equal(pipeline.predict(inputs), torch.cat(scores))
    assert pipeline.evaluate(inputs, targets).mean_loss == pytest.approx(float(loss), rel=1e-6)


def test_a_plan_file_keeps_edges_and_sinks() -> None:
    program = millrace.generate("1f1b", 4, UNITS).connected(EDGES, [1, 3])
    read = millrace.Program.from_plan(program.to_plan())
    assert read == program and read.shape.sinks == [1, 3] and read.shape.edges == EDGES
    with pytest.raises(millrace.InvalidArgument, match=r"losses at stages \[1, 3\]"):
        millrace.torch.Pipeline(stages(), schedule=read, loss=nn.CrossEntropyLoss(), optimizer=None)


@pytest.mark.parametrize("change,sentence", [
    ({"loss": {1: losses()[1]}}, r"loss has stages \[1\]: the last stage, 3, must be among them"),
    ({"loss": nn.CrossEntropyLoss()}, "stage 1 has no consumer and is not a sink"),
    ({"loss": {1: losses()[1], 2: losses()[1], 3: losses()[3]}}, "stage 2 is a sink, so no edge may leave it"),
    ({"loss": {4: losses()[1], 3: losses()[3]}}, "loss has the stage 4: must be a number from 0 to 3"),
    ({"loss": {True: losses()[1], 3: losses()[3]}}, "loss has the stage True: must be"),
    ({"loss": {"head": losses()[1], 3: losses()[3]}}, "loss has the stage 'head': must be"),
    *[({"loss": {1: given, 3: losses()[3]}}, r"the loss of stage 1 is .*must be a loss, or \(loss, factor\)")
      for given in [(F.mse_loss, float("nan")), (F.mse_loss, float("inf")), (F.mse_loss, -1), (F.mse_loss, "0.3"),
                    (F.mse_loss, None), (F.mse_loss, True), (F.mse_loss,)]],
])
def test_what_is_no_graph_with_losses_is_refused(change: dict, sentence: str) -> None:
    with pytest.raises(millrace.InvalidArgument, match=sentence):
        millrace.torch.Pipeline(stages(), **{"edges": EDGES, "loss": losses(), "optimizer": None, "ranks": 4,
                                             "micro_batches": UNITS, **change})


if __name__ == "__main__":
    ours, of_steps = trained("zb-h1", 4, "ranks")
    place = int(os.environ["MILLRACE_RANK"])
    theirs, of_plain = plain()
    mine = [bool(torch.equal(one, other)) for one, other in zip(ours, theirs)]
    own = {0: slice(0, 2), 1: slice(2, 4), 2: slice(4, 8), 3: slice(8, 10)}[place]
    if not (all(mine[own]) and of_steps == of_plain):
        sys.exit(f"rank {place}: {mine[own]}, {of_steps} and {of_plain}")
    if place == 0:
        print("equal True")
