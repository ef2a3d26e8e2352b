"""Any nn.Module becomes the stages of a Pipeline, with the weights of a plain loop to the bit: exported, a Pipe
of PyTorch, a list, a callable; what cannot be cut is refused with the user's line."""

import copy
import json

import millrace
import millrace.torch
import pytest
import torch
from millrace.torch import Pipeline
from plain_loop import Block, Net, Slow, layers, made, pipeline_of, plain_step, points, same, sgd, summed, words
from torch import nn


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


@pytest.mark.parametrize("deed, code", [("branch", "2 if x.sum"), ("numpy", "x.detach().numpy()"), ("raise", "KeyError")])
def test_what_cannot_be_exported_is_refused_with_the_line(deed, code):
    with pytest.raises(millrace.InvalidArgument) as refused:
        pipeline_of(Branches(deed), example=torch.randn(4, 8))
    assert code in str(refused.value) and "test_exported.py:" in str(refused.value)
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
    assert json.loads((tmp_path / "costs.json").read_text())["message_bytes"] == [128]
    same(model.state_dict(), before)
    assert all(parameter.grad is None for parameter in model.parameters())
