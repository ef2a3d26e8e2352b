"""What PyTorch users bring to a Pipeline: models of every form, optimizers, batches, dtypes, hooks, mistakes.

Weights are compared to the bit with a plain loop in one thread: backward() of each micro-batch's summed loss
divided by the weight of the mini-batch, then the user's optimizer."""

import copy
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from torch import nn

import millrace
import millrace.torch
from millrace.torch import Pipeline

HERE = pathlib.Path(__file__).parent
COMMAND = os.environ.get("MILLRACE_COMMAND", str(HERE.parents[1] / "build/release/millrace"))
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


# Any nn.Module.


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("split", ["even", "parameters", "time", ["blocks.3"]])
def test_exported_module_trains_as_the_plain_loop(schedule, split):
    plain, model = made(Net), made(Net)
    tokens, mask, targets = words()
    names, own = list(model.state_dict()), list(model.parameters())
    pipeline = pipeline_of(model, example=(tokens[:4], mask[:4]), split=split, schedule=schedule)
    optimizer = sgd(plain)
    for _ in range(3):
        pipeline.step((tokens, mask), targets)
        plain_step(plain, optimizer, (tokens, mask), targets)
    assert list(pipeline.state_dict()) == names and all(a is b for a, b in zip(model.parameters(), own))
    same(pipeline.state_dict(), plain.state_dict())
    same(model.state_dict(), plain.state_dict())
    assert "forward" not in model.blocks[3].__dict__  # the splitter's wrapper is gone
    assert torch.equal(model(tokens, mask), plain(tokens, mask))


def test_exported_module_evaluates_in_eval_mode():
    model = made(Net, dropout=0.5)
    tokens, mask, targets = words()
    pipeline = pipeline_of(model, example={"tokens": tokens[:4], "mask": mask[:4]})
    pipeline.step({"mask": mask, "tokens": tokens}, targets)
    predicted = pipeline.predict({"tokens": tokens, "mask": mask})
    model.eval()
    with torch.no_grad():
        expected = torch.cat([model(*part) for part in zip(tokens.chunk(4), mask.chunk(4))])
        loss = summed(expected, targets) / 16
    assert torch.equal(predicted, expected)
    assert pipeline.evaluate({"tokens": tokens, "mask": mask}, targets).mean_loss == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("schedule", ["dualpipe", "zb-v"])
def test_exported_module_in_two_replicas_and_two_chunks(schedule):
    model = made(Net)
    model.norm = nn.LayerNorm(8)
    plain = copy.deepcopy(model)
    tokens, mask, targets = words()
    pipeline = pipeline_of(model, example=(tokens[:4], mask[:4]), schedule=schedule)
    pipeline.step((tokens, mask), targets)
    plain_step(plain, sgd(plain), (tokens, mask), targets)
    if schedule == "zb-v":
        same(pipeline.state_dict(), plain.state_dict())
    for name, tensor in plain.state_dict().items():
        assert torch.allclose(pipeline.state_dict()[name], tensor, atol=1e-6)


class Forms(nn.Module):
    """A dict, a None and a constant as results; a flag as an input."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x, flag, *, extra):
        for block in self.blocks:
            x = block(x) * extra["a"] + (1 if flag else 0)
        return {"x": x, "none": None, "given": (extra["a"], 3)}


def test_exported_module_returns_what_the_model_returns():
    model = made(Forms)
    x, a = torch.randn(8, 8), torch.rand(8, 1)
    given = {"flag": False, "x": x, "extra": {"a": a}}
    example = {"x": x[:4], "flag": False, "extra": {"a": a[:4]}}
    seen = []

    def loss(outputs, targets):
        seen.append(outputs)
        return (outputs["x"] * targets).sum()

    pipeline = pipeline_of(model, loss=loss, example=example, micro_batches=2)
    pipeline.step(given, torch.ones(8, 1))
    assert seen[0]["none"] is None and seen[0]["given"][1] == 3 and torch.equal(seen[0]["given"][0], a[:4])
    with pytest.raises(millrace.InvalidArgument, match="flag is True; the model was exported with False"):
        pipeline.step({**given, "flag": True}, torch.ones(8, 1))
    with pytest.raises(millrace.InvalidArgument, match="the mini-batch has .'extra', 'x'.; the model was exported with"):
        pipeline.step({"x": x, "extra": {"a": a}}, torch.ones(8, 1))


def test_exported_batch_size_is_fixed():
    tokens, mask, targets = words()
    pipeline = pipeline_of(made(Net), example=(tokens[:4], mask[:4]))
    with pytest.raises(millrace.InvalidArgument, match="15 samples: the model was exported for micro-batches of 4, so it "
                                                       "must have 4 x 4 = 16"):
        pipeline.step((tokens[:15], mask[:15]), targets[:15])
    with pytest.raises(millrace.InvalidArgument, match=r"tokens is int64\[4, 4\] in a micro-batch; .* int64\[4, 5\]"):
        pipeline.step((tokens[:, :4], mask), targets)
    assert pipeline.step((tokens, mask), targets).samples == 16


class Branches(nn.Module):
    def __init__(self, deed):
        super().__init__()
        self.blocks, self.deed = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]), deed

    def forward(self, x):
        x = self.blocks[0](x)
        if self.deed == "branch":
            x = x * 2 if x.sum() > 0 else x  # depends on data
        if self.deed == "numpy":
            x = torch.from_numpy(x.detach().numpy())
        if self.deed == "raise":
            raise KeyError("of the user")
        return self.blocks[1](x)


@pytest.mark.parametrize("deed, code", [("branch", "x * 2 if x.sum"), ("numpy", "x.detach().numpy()"), ("raise", "KeyError")])
def test_what_cannot_be_exported_is_refused_with_the_line(deed, code):
    with pytest.raises(millrace.InvalidArgument) as refused:
        pipeline_of(Branches(deed), example=torch.randn(4, 8))
    assert code in str(refused.value) and "test_models.py:" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_pipe_of_pytorch_trains_as_the_plain_loop():
    from torch.distributed.pipelining import SplitPoint, pipeline

    plain, model = made(Net), made(Net)
    tokens, mask, targets = words()
    pipe = pipeline(model, (tokens[:4], mask[:4]), split_spec={"blocks.2": SplitPoint.BEGINNING})
    ours = pipeline_of(pipe, sgd(model))
    ours.step((tokens, mask), targets)
    plain_step(plain, sgd(plain), (tokens, mask), targets)
    for name, tensor in ours.state_dict().items():
        assert name == "unsaved" or torch.equal(tensor, plain.state_dict()[name])
    with pytest.raises(millrace.StepError, match="exported with dropout or batch norm in one mode"):
        ours.predict((tokens, mask))
    with pytest.raises(millrace.InvalidArgument, match="the Pipe has 2 stages; the schedule has 3"):
        pipeline_of(pipe, sgd(model), ranks=3)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(11, 8), nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens).sum(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_exported_tied_weight_stays_one():
    tokens, _, targets = words()
    with pytest.raises(millrace.InvalidArgument, match="stages 0 and 1 share 'embed.weight': tie=True"):
        pipeline_of(made(Tied), example=tokens[:4])
    plain, model = made(Tied), made(Tied)
    pipeline = pipeline_of(model, example=tokens[:4], tie=True)
    pipeline.step(tokens, targets)
    plain_step(plain, sgd(plain), (tokens,), targets)
    state = pipeline.state_dict()
    assert list(state) == list(plain.state_dict()) and torch.equal(state["embed.weight"], state["head.weight"])
    assert torch.allclose(state["embed.weight"], plain.embed.weight, atol=1e-6)
    assert model.head.weight is model.embed.weight


def test_split_names_are_checked():
    example = tuple(one[:4] for one in words()[:2])
    with pytest.raises(millrace.InvalidArgument, match="split 'blocks.9': not a module of Net; did you mean 'blocks"):
        pipeline_of(made(Net), example=example, split=["blocks.9"])
    with pytest.raises(millrace.InvalidArgument, match="split names 2 modules; 2 stages need 1"):
        pipeline_of(made(Net), example=example, split=["blocks.1", "blocks.2"])
    with pytest.raises(millrace.InvalidArgument, match="no list of 5 or more blocks: split must name the 4 modules"):
        pipeline_of(made(Net), example=example, ranks=5)
    with pytest.raises(millrace.InvalidArgument, match="Net: an nn.Module that is not an nn.Sequential needs example="):
        pipeline_of(made(Net))


class Slow(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.linear = seconds, nn.Linear(6, 6)

    def forward(self, x):
        time.sleep(self.seconds)
        return self.linear(x)


def test_split_by_time_balances_what_it_measures():
    model = nn.Sequential(*[Slow(seconds) for seconds in (0.05, 0.002, 0.002, 0.002)])
    pipeline = pipeline_of(model, example=torch.randn(4, 6), split="time", loss=lambda out, y: out.sum())
    pipeline.step(torch.randn(16, 6), torch.zeros(16))
    assert len(pipeline._partition.stage(0, 0).module) == 1
    with pytest.raises(millrace.InvalidArgument, match="split 'time' needs example="):
        pipeline_of(layers(), split="time")
    with pytest.raises(millrace.InvalidArgument, match="split 'speed': must be even, parameters, time, or a list"):
        pipeline_of(layers(), split="speed")


def test_list_callable_and_sequential_train_alike():
    x, y = points()
    plain = layers()
    plain_step(plain, sgd(plain), (x,), y)
    parts = lambda model: [model[:2], model[2:]]  # noqa: E731
    whole = layers()
    pipelines = [
        pipeline_of(whole, split=[2]),
        Pipeline(parts(listed := layers()), optimizer=sgd(listed), ranks=2, micro_batches=4, loss=nn.CrossEntropyLoss()),
        Pipeline(lambda number: parts(layers())[number], ranks=2, micro_batches=4, loss=nn.CrossEntropyLoss(),
                 optimizer=lambda named: torch.optim.SGD(named, lr=0.1)),
    ]
    for pipeline in pipelines:
        pipeline.step(x, y)
        for got, wanted in zip(pipeline.state_dict().values(), plain.state_dict().values(), strict=True):
            assert torch.equal(got, wanted)
    with pytest.raises(millrace.InvalidArgument, match="a callable makes the stages, so optimizer must be a callable"):
        Pipeline(lambda number: nn.Linear(6, 6), ranks=2, micro_batches=4, loss=summed, optimizer=sgd(layers()))


def test_profile_makes_a_cost_file(tmp_path):
    model, x = layers(), points()[0]
    before = copy.deepcopy(model.state_dict())
    file = str(tmp_path / "costs.json")
    plan = millrace.generate("zb-h1", ranks=2, micro_batches=4)
    span = plan.simulate(costs=millrace.torch.profile(model, x[:4], ranks=2, file=file)).makespan
    assert 0 < span < 1 and plan.simulate(costs=file).makespan == span
    assert '"message_bytes": 128' in (tmp_path / "costs.json").read_text()
    same(model.state_dict(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


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
         r"millrace.adamw: .*optimizer=torch.optim.AdamW\(model.parameters\(\), lr=0.003, betas=\(0.9, 0.95\), weight_decay="),
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


# Mistakes, and what is said.


def test_guards():
    x, y = points()
    shared = nn.Linear(8, 8)
    cases = [
        (lambda: pipeline_of([nn.Sequential(nn.Linear(6, 8), shared), nn.Sequential(copy.copy(shared), nn.Linear(8, 3))],
                             sgd(shared)), "stages 0 and 1 share '0.1.weight': tie=True"),
        (lambda: pipeline_of([shared, shared], sgd(shared)), "stages 0 and 1 have the same Linear: each needs its own"),
        (lambda: pipeline_of([nn.Linear(6, 8)], sgd(shared)), "a list of 1 modules; the schedule has 2 stages"),
        (lambda: pipeline_of(layers(), ranks=6), "the model has 5 modules; the schedule has 6 stages"),
        (lambda: pipeline_of(3, sgd(shared)), "model 3: must be an nn.Module, a list of modules"),
        (lambda: pipeline_of(layers(), schedule="terapipe"), "slices per micro-batch"),
    ]
    for act, said in cases:
        with pytest.raises(millrace.InvalidArgument, match=said):
            act()
    with pytest.raises(millrace.StepError, match="the loss is a mean"):
        pipeline_of(layers(), loss=lambda out, targets: nn.functional.cross_entropy(out, targets)).step(x, y)


@pytest.mark.parametrize("deed", [lambda model: model.double(), lambda model: model.to("meta"),
                                  lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(8, 6)))])
def test_module_changed_after_wrapping_is_refused(deed):
    model = layers()
    pipeline = pipeline_of(model)
    deed(model)
    with pytest.raises(millrace.InvalidArgument, match="stage 0 was replaced, moved or cast after the Pipeline was made"):
        pipeline.step(*points())


@pytest.mark.parametrize("option, said", [
    ("lr", r"no argument 'lr': the optimizer has it, optimizer=torch.optim.AdamW\(model.parameters\(\), lr="),
    ("num_microbatches", "did you mean 'micro_batches'"),
    ("n_microbatches", "did you mean 'micro_batches'"),
    ("accumulation_steps", "did you mean 'accumulate'"),
    ("loss_fn", "did you mean 'loss'"),
    ("shedule", "did you mean 'schedule'"),
])
def test_unknown_options_are_refused_with_the_nearest(option, said):
    with pytest.raises(millrace.InvalidArgument, match=said):
        pipeline_of(layers(), **{option: 1})


class Fails(nn.Module):
    fails = ""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        if self.fails == "forward":
            raise ZeroDivisionError("out of luck")
        x = self.linear(x)
        if self.fails == "backward":
            x.register_hook(self.hook)
        return x

    def hook(self, gradient):
        raise ZeroDivisionError("out of luck")


@pytest.mark.parametrize("executor", ["flow-graph", "ranks", "sequential"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("deed", ["forward", "backward"])
def test_errors_arrive_with_the_traceback_and_the_next_step_works(executor, schedule, deed):
    x, y = points()
    model = made(lambda: nn.Sequential(nn.Linear(6, 6), Fails(), nn.Linear(6, 3)))
    plain = copy.deepcopy(model)
    pipeline = pipeline_of(model, ranks=3, executor=executor, schedule=schedule)
    model[1].fails = deed
    with pytest.raises(millrace.StepError) as failed:
        pipeline.step(x, y)
    text = str(failed.value)
    assert "stage 1, micro-batch 0" in text and "out of luck" in text and "test_models.py" in text
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    model[1].fails = ""
    pipeline.step(x, y)
    plain_step(plain, sgd(plain), (x,), y)
    same(model.state_dict(), plain.state_dict())


def test_ctrl_c_ends_a_step():
    x, y = points()
    model = nn.Sequential(nn.Linear(6, 6), Slow(0.2), nn.Linear(6, 3))
    pipeline = pipeline_of(model)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(20):
            pipeline.step(x, y)
    timer.join()
    assert time.perf_counter() - began < 10
    assert pipeline.step(x, y).mean_loss > 0


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens, mask, targets = words()
        pipeline_of(made(Net), example=(tokens[:4], mask[:4]), schedule="zb-h1").step((tokens, mask), targets)
        pipeline_of(layers(), clip_norm=1.0).step(*points())


# Ranks that are processes.


def test_two_processes_train_as_one():
    """Exported stages, mixed dtypes, gathered and loaded states, two replicas: launched_models.py."""
    run = [COMMAND, "launch", "-n", "2", "--", sys.executable, str(HERE / "launched_models.py")]
    ran = subprocess.run(run, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert ran.stdout == "exported\ndtypes\nloaded\nreplicas\nskipped\n"
