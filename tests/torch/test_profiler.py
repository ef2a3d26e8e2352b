"""torch.profiler shows the actions of a Pipeline by name, whatever thread runs them; without it they cost nothing."""

from __future__ import annotations

import millrace.torch
import pytest
import torch
from plain_loop import layers, pipeline_of, points
from torch.profiler import ProfilerActivity, profile


EVERY_THREAD = torch.profiler._ExperimentalConfig(profile_all_threads=True)  # the default sees its own alone


@pytest.mark.parametrize("executor, schedule, threads", [
    ("flow-graph", "1f1b", EVERY_THREAD), ("ranks", "zb-h1", EVERY_THREAD), ("sequential", "zb-h1", None)])
def test_actions_have_names(executor, schedule, threads):
    x, y = points()
    pipeline = pipeline_of(layers(), executor=executor, schedule=schedule)
    pipeline.step(x, y)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=threads) as seen:
        pipeline.step(x, y)
    names = [event.name for event in seen.events()]
    halves = "B" if schedule == "1f1b" else "IW"
    wanted = {f"{stage}{op}{unit}" for stage in range(2) for op in "F" + halves for unit in range(4)}
    assert {name for name in names if name[:1].isdigit()} == wanted
    assert all(names.count(name) == 1 for name in wanted)


def test_no_names_without_a_profiler(monkeypatch):
    made = []
    monkeypatch.setattr(torch.profiler, "record_function", made.append)
    pipeline = pipeline_of(layers(), schedule="zb-h1")
    pipeline.step(*points())
    assert made == [] and millrace.torch.Pipeline is type(pipeline)
