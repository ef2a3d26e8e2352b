"""Mistakes and what a Pipeline says of them: options, modules that changed, errors inside passes, Ctrl-C. What is
right warns of nothing."""

import copy
import os
import signal
import threading
import time
import warnings

import millrace
import millrace.torch
import pytest
import torch
from plain_loop import Net, Slow, layers, made, pipeline_of, plain_step, points, same, sgd, summed, words
from torch import nn


def test_nothing_warns():
    """The first test here: PyTorch says much once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens, mask, targets = words()
        pipeline_of(made(Net), example=(tokens[:4], mask[:4]), schedule="zb-h1").step((tokens, mask), targets)
        pipeline_of(layers(), clip_norm=1.0).step(*points())


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
    assert "stage 1, micro-batch 0" in text and "out of luck" in text and "test_mistakes.py" in text
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
