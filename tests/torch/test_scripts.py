"""Five training scripts in the field's usual form, and the pipelines that they become: at most ten changed
lines, and the same output to the last digit."""

import difflib
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ROOT / "examples/python/scripts"
NAMES = ["nanogpt", "resnet", "encoder", "lstm", "seq2seq"]
COMMAND = os.environ.get("MILLRACE_COMMAND", str(ROOT / "build/release/millrace"))


def printed(path, capsys):
    """By one thread: with more, PyTorch's kernels may add in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    return capsys.readouterr().out


def changed_lines(name):
    plain, pipeline = (path.read_text().splitlines() for path in (SCRIPTS / f"{name}.py", SCRIPTS / f"{name}_pipeline.py"))
    lines = list(difflib.unified_diff(plain, pipeline, lineterm="", n=0))[2:]
    return [line for line in lines if not line.startswith("@@")]


@pytest.mark.parametrize("name", NAMES)
def test_script_becomes_a_pipeline_in_ten_lines(name):
    assert 0 < len(changed_lines(name)) <= 10


@pytest.mark.parametrize("name", NAMES)
def test_pipeline_prints_what_the_plain_script_prints(name, capsys):
    plain = printed(SCRIPTS / f"{name}.py", capsys)
    assert len(re.findall(r"\d\.\d{4}", plain)) >= 2
    assert printed(SCRIPTS / f"{name}_pipeline.py", capsys) == plain


def test_two_processes_print_what_the_plain_script_prints(capsys):
    """seq2seq: two ranks under a launch, each with its stage."""
    run = [COMMAND, "launch", "-n", "2", "--", sys.executable, str(SCRIPTS / "seq2seq_pipeline.py")]
    ran = subprocess.run(run, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == printed(SCRIPTS / "seq2seq.py", capsys)


def test_the_readme_shows_the_changed_lines():
    readme = (ROOT / "bindings/python/README.md").read_text()
    assert "```diff\n" + "\n".join(changed_lines("resnet")) + "\n```" in readme


def test_blocks_of_the_readme_run_in_order(tmp_path, monkeypatch, capsys):
    """After test_readme.py: the block that measures a model needs the one that makes it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "bindings/python/README.md").read_text(), re.S)
    blocks = [block for block in blocks if "millrace.torch" in block]
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    inputs = torch.randn(256, 64)
    names = {"inputs": inputs, "labels": inputs[:, :10].argmax(1), "millrace": __import__("millrace")}
    for block in blocks:
        exec(block, names)
    assert "1f1b" in capsys.readouterr().out
