# The training file of plain PyTorch and the pipeline that it becomes: few lines apart, the same result. The README
# shows the difference, and its program runs.
import difflib
import os
import pathlib
import re
import subprocess
import sys

import torch

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "bindings/python/README.md").read_text()
PLAIN, PIPELINE = (ROOT / f"examples/python/gpt_{kind}.py" for kind in ("plain", "pipeline"))


def difference():
    plain, pipeline = (path.read_text().splitlines()[2:] for path in (PLAIN, PIPELINE))  # behind what they are
    lines = [line for line in difflib.unified_diff(plain, pipeline, lineterm="", n=0) if line[:3] not in ("---", "+++")]
    return [line for line in lines if not line.startswith("@@") and line[1:].strip()]


def test_a_training_file_becomes_a_pipeline_in_fifteen_lines_which_the_readme_shows():
    lines = difference()
    removed, added = (sum(line[0] == sign for line in lines) for sign in "-+")
    assert 0 < max(removed, added) <= 15
    assert "```diff\n" + "\n".join(lines) + "\n```" in README


def said(path):
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr
    return float(re.fullmatch(r"held out: (\S+)\n", ran.stdout)[1])


def test_both_learn_the_same():
    plain, pipeline = said(PLAIN), said(PIPELINE)
    assert plain < 2.8 and abs(plain - pipeline) < 0.02


def test_the_program_of_the_readme_learns(tmp_path, monkeypatch, capsys):
    program = next(block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "millrace.torch.Pipeline" in block)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    inputs = torch.randn(256, 64)
    exec(program, {"inputs": inputs, "labels": inputs[:, :10].argmax(1)})
    assert float(capsys.readouterr().out) > 0.3
    assert len(list((tmp_path / "runs/digits").glob("step-*"))) == 1
