"""A notebook shows plans, runs and reports: a browser draws what they are in HTML. Predicted memory is what is
counted."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

import millrace
import millrace.torch
import pytest
import torch
from models import Block
from plain_loop import layers, pipeline_of, points
from torch import nn

from millrace.torch.stage import Bytes

torch.set_num_threads(1)


def rows_drawn(folder: Path, body: str) -> int:
    """How many different rows of pixels a browser makes of it."""
    page, picture = folder / "page.html", folder / "page.png"
    page.write_text(f"<!DOCTYPE html><body>{body}</body>")
    browser = ["timeout", "120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1000,600",
               f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", f"file://{page}"]
    subprocess.run(browser, check=True, capture_output=True, timeout=150)
    png, at, packed = picture.read_bytes(), 8, b""
    while at < len(png):  # chunks: length, kind, data, checksum
        size = int.from_bytes(png[at : at + 4], "big")
        packed += png[at + 8 : at + 8 + size] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + size
    pixels = zlib.decompress(packed)
    return len({pixels[first : first + len(pixels) // 600] for first in range(0, len(pixels), len(pixels) // 600)})


def test_a_browser_draws_plans_runs_and_reports(tmp_path):
    pipeline = pipeline_of(layers(), schedule="zb-h1")
    report = pipeline.fit(points(), validation=0.25, batch_size=12, epochs=3)
    shown = [pipeline.program, pipeline, pipeline.program.simulate(), report]
    assert rows_drawn(tmp_path, "") <= 3
    for what in shown:
        assert rows_drawn(tmp_path, what._repr_html_()) > 20, type(what)
    assert "0.25" not in report._repr_html_() and report._repr_html_().count("<tr>") == 1 + 3 + 1 + 3
    assert pipeline._repr_html_().count("<svg") == 1 and "measured" in pipeline._repr_html_()


@pytest.mark.parametrize("schedule, chunks", [("zb-h1", 1), ("zb-v", 2)])
def test_counted_bytes_are_the_predicted_ones(schedule, chunks):
    """Of each rank at most. A backward pass that is not split is predicted as I, then W, which hold more."""
    torch.manual_seed(1)
    model = nn.Sequential(*[Block(128, 4) for _ in range(4)])
    plan = millrace.generate(schedule, 2, 6)
    assert plan.shape.stages == 2 * chunks
    batch = torch.randn(6 * 4, 64, 128)
    costs = millrace.torch.profile(model, batch[:4], ranks=2, chunks=chunks, repeats=1)
    predicted = [rank.peak_bytes for rank in plan.simulate(costs).ranks]

    pipeline = millrace.torch.Pipeline(model, loss=lambda outputs, _: outputs.square().sum(), schedule=plan,
                                       optimizer=torch.optim.SGD(model.parameters(), 1e-3))
    pipeline.step(batch, batch[:, 0, 0])
    counted = [Bytes(), Bytes()]
    for (replica, number), stage in pipeline._stages.items():
        stage.bytes = counted[plan.shape.placement[replica][number]]
    pipeline.step(batch, batch[:, 0, 0])
    assert [rank.most for rank in counted] == pytest.approx(predicted, rel=0.05)
    assert predicted[0] > 2**22 and [rank.now for rank in counted] == [0, 0]
