"""What PyTorch users bring to a Pipeline: optimizers, batches, dtypes, hooks, compiled and frozen stages, replicas.
Weights are those of a plain loop to the bit."""

import copy
import os
import pathlib
import subprocess
import sys

import millrace
import millrace.torch
import pytest
import torch
from plain_loop import Joins, Many, layers, made, many, pipeline_of, plain_replicas, plain_step, points, same, sgd, summed
from plain_loop import words
from torch import nn

HERE = pathlib.Path(__file__).parent
COMMAND = os.environ.get("MILLRACE_COMMAND", str(HERE.parents[1] / "build/release/millrace"))


# Optimizers.


def test_parameter_groups_and_schedulers():
    x, y = points()
    plain, model = layers(), layers()

    def grouped(of):
        decayed = [one for one in of.parameters() if one.dim() > 1]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.3},
                                  {"params": [one for one in of.parameters() if one.dim() == 1], "lr": 0.2}], lr=0.05)

    reference = grouped(plain)
    scheduler = torch.optim.lr_scheduler.StepLR(reference, 1, gamma=0.5)
    optimizer = grouped(model)
    halving = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    pipeline = pipeline_of(model, optimizer, clip_norm=0.5, lr_scheduler=halving)
    rates = []
    for _ in range(3):
        plain_step(plain, reference, (x,), y, clip=0.5)
        scheduler.step()
        rates.append(pipeline.step(x, y).learning_rate)
    same(model.state_dict(), plain.state_dict())
    assert rates == [0.05, 0.025, 0.0125]
    made_by_callable = pipeline_of(layers(), optimizer=lambda named: torch.optim.SGD(named, lr=1.0),
                                   lr_scheduler=lambda made: torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5))
    assert [made_by_callable.step(x, y).learning_rate for _ in range(2)] == [1.0, 0.5]


def test_optimizers_are_refused_by_name():
    model = layers()
    refused = [
        (millrace.AdamW(0.003, beta2=0.95, weight_decay=0.1),
         r"millrace.adamw: .*optimizer=torch.optim.AdamW\(model.parameters\(\), lr=0.003, betas=\(0.9, 0.95\), weight"),
        (millrace.Momentum(0.1), r"torch.optim.SGD\(model.parameters\(\), lr=0.1, momentum=0.9\)"),
        (torch.optim.LBFGS(model.parameters()), "optimizer LBFGS: its step.. needs a closure"),
        ("adam", "optimizer 'adam': must be of torch.optim"),
        (torch.optim.SGD(model[0].parameters(), lr=1), "optimizer: '2.norm.weight' is trained and not among its parameters"),
    ]
    for optimizer, said in refused:
        with pytest.raises(millrace.InvalidArgument, match=said):
            pipeline_of(model, optimizer)
    other = torch.optim.lr_scheduler.StepLR(sgd(layers()), 1)
    with pytest.raises(millrace.InvalidArgument, match="lr_scheduler StepLR: is of another optimizer"):
        pipeline_of(model, lr_scheduler=other)


def test_sparse_gradients_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(11, 8, sparse=True), nn.Flatten(), nn.Linear(40, 11))
    with pytest.raises(millrace.InvalidArgument, match=r"0 of stage 0 is Embedding\(sparse=True\): gradients must be dense"):
        pipeline_of(model)

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(11, 8))

        def forward(self, tokens):
            return nn.functional.embedding(tokens, self.weight, sparse=True).sum(1)

    pipeline = pipeline_of(nn.Sequential(Functional(), nn.Linear(8, 11)))
    with pytest.raises(millrace.InvalidArgument, match=r"shape \[11, 8\] is sparse"):
        pipeline.step(words()[0], words()[2])


# Batches and dtypes.


def test_loader_of_dicts_with_keywords():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 8)

        def forward(self, tokens, *, mask):
            return (self.embed(tokens) * mask.unsqueeze(-1)).sum(1)

    tokens, mask, targets = words()
    rows = [{"tokens": t, "mask": m, "labels": y} for t, m, y in zip(tokens, mask, targets)]
    plain = made(lambda: nn.Sequential(Masked(), nn.Linear(8, 11)))
    model = copy.deepcopy(plain)
    pipeline, optimizer = pipeline_of(model), sgd(plain)
    for batch in torch.utils.data.DataLoader(rows, 8):
        labels = batch.pop("labels")
        pipeline.step(batch, labels)
        optimizer.zero_grad()
        for part in range(4):
            rows_of_part = slice(2 * part, 2 * part + 2)
            hidden = plain[0](batch["tokens"][rows_of_part], mask=batch["mask"][rows_of_part])
            (summed(plain[1](hidden), labels[rows_of_part]) / 8).backward()
        optimizer.step()
    same(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_parameters_of_any_floating_dtype(dtype, schedule):
    x, y = points(dtype=dtype)
    plain, model = layers().to(dtype), layers().to(dtype)
    pipeline, optimizer = pipeline_of(model, schedule=schedule, clip_norm=0.5), sgd(plain)
    for _ in range(2):
        pipeline.step(x, y)
        plain_step(plain, optimizer, (x,), y, clip=0.5)
    assert model[0].weight.dtype == dtype
    same(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_tensors_of_many_dtypes_between_stages(schedule):
    inputs, y = many()
    plain = made(lambda: nn.ModuleList([Many(), Joins()]))
    model = copy.deepcopy(plain)
    pipeline = pipeline_of(list(model), sgd(model), schedule=schedule)
    pipeline.step(inputs, y)
    optimizer = sgd(plain)
    for part in zip(*(one.chunk(4) for one in (*inputs, y))):
        (summed(plain[1](*plain[0](*part[:-1])), part[-1]) / 16).backward()
    optimizer.step()
    same(model.state_dict(), plain.state_dict())


def test_frozen_parameters_and_stages_without_any():
    x, y = points()
    plain = made(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.ReLU(), nn.Linear(8, 3)))
    plain[0].weight.requires_grad_(False)
    plain[0].register_parameter("frozen", nn.Parameter(torch.ones(2, dtype=torch.float16), requires_grad=False))
    model = copy.deepcopy(plain)
    pipeline = pipeline_of(model, ranks=3, split=[1, 3], schedule="zb-h1")
    pipeline.step(x, y)
    plain_step(plain, sgd(plain), (x,), y)
    same(model.state_dict(), plain.state_dict())
    frozen = layers()
    frozen[0].requires_grad_(False)
    assert pipeline_of(frozen, split=[1]).step(x, y).mean_loss > 0


# Modules.


def test_buffers_are_in_state_dict_and_load():
    x, y = points()
    model = made(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    pipeline = pipeline_of(model)
    pipeline.step(x, y)
    state = {name: tensor.clone() for name, tensor in pipeline.state_dict().items()}
    assert list(state) == list(model.state_dict()) and state["1.num_batches_tracked"] == 4
    pipeline.step(x, y)
    pipeline.load_state_dict(state)
    same(model.state_dict(), state)
    with pytest.raises(millrace.InvalidArgument, match="state_dict has no '0.weight'"):
        pipeline.load_state_dict({})
    with pytest.raises(millrace.InvalidArgument, match=r"'0.weight' has the shape \[1, 6\] in the state_dict; the model"):
        pipeline.load_state_dict({**state, "0.weight": torch.zeros(1, 6)})


def test_hooks_run_as_in_the_plain_loop():
    x, y = points()

    def with_hooks(model, calls):
        model[2].register_forward_hook(lambda module, given, out: out * 2)
        model[2].linear.weight.register_hook(lambda gradient: gradient * 3)
        model[0].register_full_backward_hook(lambda module, given, out: calls.append(1))
        return model

    mine, theirs = [], []
    plain, model = with_hooks(layers(), theirs), with_hooks(layers(), mine)
    pipeline_of(model).step(x, y)
    plain_step(plain, sgd(plain), (x,), y)
    same(model.state_dict(), plain.state_dict())
    assert len(mine) == len(theirs) == 4


def test_compiled_stage_says_that_it_does_not_split():
    x, y = points()
    plain, model = layers(), layers()
    parts = [torch.compile(model[:3], backend="eager"), model[3:]]
    pipeline = pipeline_of(parts, sgd(model), schedule="zb-h1")
    pipeline.step(x, y)
    plain_step(plain, sgd(plain), (x,), y)
    same(model.state_dict(), plain.state_dict())
    assert len(pipeline.warnings()) >= 1 and "stage 0" in " ".join(pipeline.warnings())
    assert pipeline_of(layers(), schedule="zb-h1").warnings() == []


def test_zero_grad_may_be_called_anywhere():
    x, y = points()
    plain, model = layers(), layers()
    optimizer, reference = sgd(model), sgd(plain)
    pipeline = pipeline_of(model, optimizer)
    for number in range(3):
        plain_step(plain, reference, (x,), y)
        if number == 1:
            for one in model.parameters():
                one.grad = torch.full_like(one, 7.0)
        pipeline.step(x, y)
        optimizer.zero_grad(set_to_none=number == 0)
    same(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_per_rank(threads):
    seen = []

    class Counts(nn.Linear):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return super().forward(x)

    pipeline_of(nn.Sequential(Counts(6, 6), Counts(6, 3)), threads_per_rank=threads).step(*points())
    assert set(seen) == {threads} and torch.get_num_threads() == 1


@pytest.mark.parametrize("copies", [2, 3])
def test_data_parallel_adds_the_replicas_in_order(copies):
    x, y = points(8 * copies)
    plain, model = layers(), layers()
    pipeline, optimizer = pipeline_of(model, data_parallel=copies, clip_norm=0.5), sgd(plain)
    for _ in range(2):
        pipeline.step(x, y)
        plain_replicas(plain, optimizer, x, y, copies, 0.5)
    same(model.state_dict(), plain.state_dict())


def test_loss_scale_skips_a_step_that_overflows():
    x, y = points()
    model = layers()
    before = copy.deepcopy(model.state_dict())
    pipeline = pipeline_of(model, precision="f16", loss_scale=2.0**40)
    report = pipeline.step(x, y)
    assert report.skipped and pipeline.global_step == 0
    same(model.state_dict(), before)
    for _ in range(40):
        report = pipeline.step(x, y)
    assert not report.skipped and 0 < pipeline.global_step < 40


# Ranks that are processes.


def test_two_processes_train_as_one():
    """Exported stages, mixed dtypes, gathered and loaded states, two replicas: launched_models.py."""
    run = [COMMAND, "launch", "-n", "2", "--", sys.executable, str(HERE / "launched_models.py")]
    ran = subprocess.run(run, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert ran.stdout == "exported\ndtypes\nloaded\nreplicas\nskipped\n"
