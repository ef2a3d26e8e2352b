"""The program for modules of PyTorch in bindings/python/README.md runs and learns."""

import pathlib
import re

import torch

README = pathlib.Path(__file__).parents[2] / "bindings/python/README.md"


def test_program_learns_and_saves(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    first = next(at for at, block in enumerate(blocks) if "millrace.torch.Pipeline" in block)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    inputs = torch.randn(256, 64)
    names = {"inputs": inputs, "labels": inputs[:, :10].argmax(1)}
    exec(blocks[first], names)
    assert float(capsys.readouterr().out) > 0.3
    assert len(list((tmp_path / "runs/digits").glob("step-*"))) == 1
    exec(blocks[first + 1], names)
    assert all((tmp_path / name).stat().st_size > 0 for name in ("run.jsonl", "run.prom", "run.html"))
