# The Python of bindings/python/README.md, block after block; tests/torch/test_readme.py has that of PyTorch.
import pathlib
import re

import numpy as np

import millrace

README = pathlib.Path(__file__).parents[2] / "bindings/python/README.md"


class Loss(millrace.Stage):
    """Half the squared distance to the targets."""

    def __init__(self, number):
        self.parameters = {}

    def forward(self, unit, x):
        unit.kept = x if unit.targets is None else x - unit.targets[0]
        if unit.targets is not None:
            unit.add_loss(0.5 * float((unit.kept.astype(np.float64) ** 2).sum()), len(x))
        return x

    def backward_input(self, unit, *gradients):
        return unit.kept * np.float32(unit.loss_scale)

    def backward_weight(self, unit):
        pass


def test_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
              if "millrace.torch" not in block and not block.startswith("pipeline.")]
    assert len(blocks) == 2
    inputs = np.random.default_rng(1).standard_normal((4, 8), dtype=np.float32)
    names = {"np": np, "Loss": Loss, "inputs": inputs, "targets": np.zeros((4, 8), dtype=np.float32)}
    for block in blocks:
        exec(block, names)
    assert "<svg" in (tmp_path / "plan.svg").read_text()
    assert float(capsys.readouterr().out.split()[-1]) > 0
