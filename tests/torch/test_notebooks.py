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


BAND = 300  # pixels


def rows_drawn(folder: Path, bodies: list[str]) -> list[int]:
    """How many different rows of pixels a browser makes of each, one under another."""
    page, picture = folder / "page.html", folder / "page.png"
    bands = "".join(f'<div style="height:{BAND}px;overflow:hidden">{body}</div>' for body in bodies)
    page.write_text(f'<!DOCTYPE html><body style="margin:0">{bands}</body>')
    browser = ["timeout", "200", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               f"--window-size=1000,{BAND * len(bodies)}", f"--user-data-dir={folder / 'profile'}",
               f"--screenshot={picture}", f"file://{page}"]
    subprocess.run(browser, check=True, capture_output=True, timeout=220)
    png, at, packed = picture.read_bytes(), 8, b""
    while at < len(png):  # chunks: length, kind, data, checksum
        size = int.from_bytes(png[at : at + 4], "big")
        packed += png[at + 8 : at + 8 + size] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + size
    pixels = zlib.decompress(packed)
    row = len(pixels) // (BAND * len(bodies))
    return [len({pixels[row * at : row * at + row] for at in range(BAND * band, BAND * band + BAND)})
            for band in range(len(bodies))]


def test_a_browser_draws_plans_runs_and_reports(tmp_path):
    pipeline = pipeline_of(layers(), schedule="zb-h1")
    report = pipeline.fit(points(), validation=0.25, batch_size=12, epochs=3)
    shown = [one._repr_html_() for one in (pipeline.program, pipeline, pipeline.program.simulate(), report)]
    *drawn, empty = rows_drawn(tmp_path, [*shown, ""])
    assert empty <= 3 and min(drawn) > 20, drawn
    assert shown[3].count("<tr>") == 1 + 3 + 1 + 3
    assert shown[1].count("<svg") == 1 and "measured" in shown[1]


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
