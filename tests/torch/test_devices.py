"""Nothing in millrace.torch assumes a CPU: every schedule steps with all stages on the `meta` device,
where reading a value raises; no action asks for values on the host; what a stage draws does not depend
on other stages of its process."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import millrace
import millrace.torch
import pytest
import torch
from models import CASES, STEPS, program_of
from torch import nn
from torch.overrides import TorchFunctionMode

from millrace.torch import gradients
from millrace.torch.stage import ModuleStage

torch.set_num_threads(1)
SCHEDULES = [one.name for one in millrace.schedules() if (made := program_of(one.name, 2)) is not None
             and made.shape.slices == 1 and not made.shape.forward_only]
ACTIONS = ("forward", "recompute", "backward", "backward_input", "backward_weight")
HOST_READS = {"numpy", "cpu", "item", "tolist", "data_ptr", "__array__", "__float__", "__int__", "__bool__", "__index__",
              "__dlpack__", "storage", "untyped_storage"}


def pipeline_on(device, name, program, executor, **settings):
    case = CASES[name]
    model = case.model().to(device)
    if case.tie:
        model[-1].weight = model[0].words.weight
    return millrace.torch.Pipeline(
        model, loss=case.loss, loss_weight=case.loss_weight, optimizer=case.optimizer(model.parameters()), clip_norm=0.5,
        schedule=program, executor=executor, tie=case.tie, **settings)


@pytest.fixture
def actions(monkeypatch):
    """Names of what actions call, by a mode inside each: modes opened outside do not reach their threads."""
    seen, threads, lock = set(), set(), threading.Lock()

    class Watching(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            with lock:
                seen.add(getattr(function, "__name__", str(function)))
            return function(*arguments, **(keywords or {}))

    def watched(method):
        def run(self, *arguments):
            with lock:
                threads.add(threading.get_ident())
            with Watching():
                return method(self, *arguments)
        return run

    for name in ACTIONS:
        monkeypatch.setattr(ModuleStage, name, watched(getattr(ModuleStage, name)))
    return seen, threads


@pytest.mark.parametrize("executor", ("sequential", "flow-graph", "ranks"))
def test_every_schedule_steps_on_meta(executor, monkeypatch, actions):
    reads = []

    def host_values(tensors):
        """The one place where a step reads a device."""
        assert all(one.is_meta for one in tensors)
        reads.append(len(tensors))
        return [torch.ones(()) for _ in tensors]

    monkeypatch.setattr(gradients, "host_values", host_values)
    for at, schedule in enumerate(SCHEDULES):
        name = ("mlp", "gpt", "pair")[at % 3]
        pipeline = pipeline_on("meta", name, program_of(schedule, 2), executor, recompute=at % 2 == 1)
        batch, before = CASES[name].batch(), torch.get_rng_state()
        reports = [pipeline.step(*batch) for _ in range(STEPS)]
        assert torch.equal(before, torch.get_rng_state()) and not any(report.skipped for report in reports)
        assert all(parameter.is_meta for parameter in pipeline.model.parameters())
    assert len(SCHEDULES) == 27
    assert len(reads) == STEPS * len(SCHEDULES)  # once per step
    seen, threads = actions
    assert "linear" in seen and not seen & HOST_READS
    assert (len(threads) > 1) == (executor != "sequential")


def test_meta_raises_at_host_reads():
    """What the test above stands on."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones((), device="meta").item()
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        torch.ones(2, device="meta").numpy()


@pytest.mark.parametrize("executor", ("flow-graph", "ranks"))
def test_no_action_reads_a_value_of_a_cpu_either(executor, actions):
    """Meta tensors skip what asks whether they are meta. The first step may compare a loss with its halves."""
    for name, schedule in (("mlp", "zb-h1"), ("cnn", "1f1b"), ("gpt", "zb-v"), ("pair", "interleaved"), ("dropout", "zb-h1")):
        pipeline = pipeline_on("cpu", name, program_of(schedule, 2), executor, recompute=name == "dropout")
        batch = CASES[name].batch()
        pipeline.step(*batch)
        actions[0].clear()
        pipeline.step(*batch)
        assert actions[0] and not actions[0] & HOST_READS, name


def test_a_stage_without_parameters_works_where_its_inputs_are(monkeypatch):
    monkeypatch.setattr(gradients, "host_values", lambda tensors: [torch.ones(()) for _ in tensors])
    model = nn.Sequential(nn.Tanh(), nn.Linear(4, 4, device="meta"), nn.ReLU(), nn.Sigmoid())
    pipeline = millrace.torch.Pipeline(model, loss=nn.MSELoss(), optimizer=torch.optim.AdamW(model.parameters(), 3e-3),
                                       ranks=4, micro_batches=4, schedule="zb-h1")
    for device in ("cpu", "meta"):
        assert not pipeline.step(torch.ones(8, 4, device=device), torch.ones(8, 4)).skipped


def test_sources_know_no_addresses():
    """data_ptr() of a tensor without memory is 0, silently."""
    for path in Path(millrace.torch.__file__).parent.glob("*.py"):
        assert not re.search(r"data_ptr|_address", path.read_text()), path


def test_stages_that_draw_take_turns():
    """The masks of a stage are those of its seed, though other threads draw meanwhile."""
    masks = {}

    class Drawing(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.number, self.inner = number, nn.Linear(4, 4)

        def forward(self, x):
            drawn = [torch.rand(64) for _ in range(20)]
            masks.setdefault(self.number, []).append(torch.cat(drawn))
            return self.inner(x)

    def run(executor):
        masks.clear()
        torch.manual_seed(1)
        model = nn.Sequential(*[Drawing(number) for number in range(4)])
        pipeline = millrace.torch.Pipeline(model, loss=nn.MSELoss(), optimizer=torch.optim.SGD(model.parameters(), 0.1),
                                           ranks=4, micro_batches=8, schedule="1f1b", executor=executor)
        for _ in range(3):
            pipeline.step(torch.ones(8, 4), torch.ones(8, 4))
        return {number: torch.stack(drawn) for number, drawn in masks.items()}

    wanted = run("sequential")
    assert len({tuple(row.tolist()) for rows in wanted.values() for row in rows}) == 3 * 4 * 8
    for executor in ("flow-graph", "ranks"):
        found = run(executor)
        assert all(torch.equal(found[number], wanted[number]) for number in range(4))
