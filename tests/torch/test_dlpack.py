# Stages of one's own over PyTorch's tensors, by DLPack: modules of it need none of this, see millrace.torch.
import numpy as np
import pytest
import torch

import millrace


class Linear(millrace.Stage):
    """A module whose parameters and gradients lie in the trainer's arrays; under autocast its boundary is bf16."""

    tensors = "dlpack"

    def __init__(self, number, bf16):
        torch.manual_seed(number)
        self.module, self.bf16, self.seen = torch.nn.Linear(6, 6), bf16, set()
        named = {f"layers.{number}.{name}": one for name, one in self.module.named_parameters()}
        self.parameters = {name: one.detach().numpy() for name, one in named.items()}
        self.gradients = {name: np.zeros_like(one) for name, one in self.parameters.items()}
        for name, one in named.items():
            one.grad = torch.from_numpy(self.gradients[name])

    def forward(self, unit, x):
        x = torch.from_dlpack(x).requires_grad_()
        self.seen.add(x.dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            y = self.module(x)
        unit.kept = x, y
        if unit.targets is not None:
            loss = (y.float() - torch.from_dlpack(unit.targets[0])).square().sum() / 2
            unit.add_loss(float(loss), len(x))
            unit.kept = x, loss * unit.loss_scale
        return y

    def backward(self, unit, *gradients):
        x, y = unit.kept
        y.backward(*map(torch.from_dlpack, gradients))
        return x.grad


def data():
    generator = np.random.default_rng(0)
    return generator.standard_normal((8, 6), np.float32), generator.standard_normal((8, 6), np.float32)


@pytest.mark.parametrize("bf16", [False, True])
def test_gives_the_bits_of_plain_autograd(bf16):
    torch.set_num_threads(1)
    x, t = data()
    ours, theirs = ([Linear(number, bf16) for number in range(2)] for _ in range(2))
    trainer = millrace.Trainer(millrace.generate("1f1b", 2, 4), ours, optimizer=millrace.Sgd(0.125))
    for _ in range(3):
        trainer.step(x, t)
        for rows in range(0, 8, 2):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
                y = theirs[1].module(theirs[0].module(torch.from_numpy(x[rows : rows + 2])))
            ((y.float() - torch.from_numpy(t[rows : rows + 2])).square().sum() / 2 * (1 / 8)).backward()
        for stage in theirs:
            for name, value in stage.parameters.items():
                value -= np.float32(0.125) * stage.gradients[name]
                stage.gradients[name][...] = 0
    for mine, other in zip(ours, theirs):
        assert all(value.tobytes() == other.parameters[name].tobytes() for name, value in mine.parameters.items())
    assert ours[1].seen == {torch.bfloat16 if bf16 else torch.float32}
