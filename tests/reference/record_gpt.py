#!/usr/bin/python3
"""Records losses and gradients of small transformers, for tests/training/gpt_reference_test.cpp.

Needs Debian's PyTorch: apt-get install python3-torch (1.13.1 made the files here). Run it in this folder:
it writes one safetensors file per model, the same bytes every time on one machine.

Each model is written out in torch.nn.functional with autograd, its parameters named by the layers of the
model of the same text. Ten steps of gradient descent over random tokens, targets and weights of tokens;
the files have tokens, targets, weights and loss of every step, and of every parameter the values before
it and the gradients in it ([10, ...]).
"""

import math

import torch
from torch.nn import functional as F

from record_optimizers import write

STEPS, SAMPLES, CONTEXT, WORDS, WIDTH, HEADS, BLOCKS = 10, 3, 9, 11, 8, 2, 2
MODELS = {
    "gpt_learned": {},
    "gpt_tied_rotary": {"tied": True, "rotary": True},
    "gpt_rms_swiglu_kv": {"rms": True, "swiglu": True, "kv": 1},
    "gpt_tied_rms_rotary_swiglu": {"tied": True, "rms": True, "rotary": True, "swiglu": True},
}


class Parameters:
    """Numbers layers as the model's text does, and makes their parameters."""

    def __init__(self, generator):
        self.generator, self.layer, self.all = generator, 0, {}

    def new(self, name, *shape, scale):
        value = torch.randn(*shape, generator=self.generator) * scale
        self.all[f"layers.{self.layer}.{name}"] = value.requires_grad_()
        return value

    def linear(self, rows, columns):
        made = (self.new("weight", rows, columns, scale=rows ** -0.5), self.new("bias", columns, scale=0.1))
        self.layer += 1
        return made

    def norm(self, rms):
        gain = self.new("weight", WIDTH, scale=0.3)
        gain.data += 1
        bias = None if rms else self.new("bias", WIDTH, scale=0.1)
        self.layer += 1
        return gain, bias

    def table(self, rows):
        made = self.new("weight", rows, WIDTH, scale=0.5)
        self.layer += 1
        return made


class Gpt:
    def __init__(self, seed, tied=False, rotary=False, rms=False, swiglu=False, kv=HEADS):
        self.tied, self.rotary, self.rms, self.swiglu, self.kv = tied, rotary, rms, swiglu, kv
        parameters = Parameters(torch.Generator().manual_seed(seed))
        self.embedding = parameters.table(WORDS)
        self.positions = None if rotary else parameters.table(CONTEXT)
        self.blocks = [self.block(parameters) for _ in range(BLOCKS)]
        self.last = parameters.norm(rms)
        self.head = self.embedding if tied else parameters.table(WORDS)
        self.parameters = parameters.all

    def block(self, parameters):
        hidden = 64 * math.ceil(8 * WIDTH / 3 / 64) if self.swiglu else 4 * WIDTH
        made = {"norm": parameters.norm(self.rms)}
        made["rows"] = parameters.linear(WIDTH, WIDTH + 2 * self.kv * WIDTH // HEADS)
        parameters.layer += 1  # attention
        made["out"] = parameters.linear(WIDTH, WIDTH)
        parameters.layer += 1  # add
        made["norm2"] = parameters.norm(self.rms)
        made["up"] = parameters.linear(WIDTH, 2 * hidden if self.swiglu else hidden)
        parameters.layer += 1 if self.swiglu else 0
        made["down"] = parameters.linear(hidden, WIDTH)
        parameters.layer += 1  # add
        return made

    def normed(self, x, norm):
        gain, bias = norm
        if not self.rms:
            return F.layer_norm(x, (WIDTH,), gain, bias, 1e-5)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain

    def turned(self, heads):
        """[samples, heads, positions, columns], numbers i and i + columns / 2 by their angle."""
        if not self.rotary:
            return heads
        half = heads.shape[-1] // 2
        steps = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(heads.shape[2], dtype=torch.float64)[:, None] * steps
        cosine, sine = angles.cos().float(), angles.sin().float()
        a, b = heads[..., :half], heads[..., half:]
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    def attended(self, rows):
        samples, positions, _ = rows.shape
        columns = WIDTH // HEADS
        heads = rows.view(samples, positions, -1, columns).transpose(1, 2)
        q = self.turned(heads[:, :HEADS])
        k = self.turned(heads[:, HEADS:HEADS + self.kv]).repeat_interleave(HEADS // self.kv, 1)
        v = heads[:, HEADS + self.kv:].repeat_interleave(HEADS // self.kv, 1)
        scores = q @ k.transpose(2, 3) / math.sqrt(columns)
        seen = torch.ones(positions, positions).tril().bool()
        shares = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return (shares @ v).transpose(1, 2).reshape(samples, positions, WIDTH)

    def __call__(self, tokens):
        x = F.embedding(tokens, self.embedding)
        if self.positions is not None:
            x = x + self.positions[:tokens.shape[1]]
        for block in self.blocks:
            weight, bias = block["rows"]
            rows = self.attended(self.normed(x, block["norm"]) @ weight + bias)
            x = x + rows @ block["out"][0] + block["out"][1]
            up = self.normed(x, block["norm2"]) @ block["up"][0] + block["up"][1]
            if self.swiglu:
                a, b = up.chunk(2, -1)
                up = F.silu(a) * b
            else:
                up = F.gelu(up, approximate="tanh")
            x = x + up @ block["down"][0] + block["down"][1]
        return self.normed(x, self.last) @ self.head.T


def record(seed, settings):
    model = Gpt(seed, **settings)
    generator = torch.Generator().manual_seed(seed + 100)
    rows = {}

    def keep(name, tensor):
        rows.setdefault(name, []).append(tensor.detach().clone())

    for _ in range(STEPS):
        tokens, targets = torch.randint(WORDS, (2, SAMPLES, CONTEXT), generator=generator)
        weights = torch.randint(3, (SAMPLES, CONTEXT), generator=generator).float() / 2
        losses = F.cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        keep("tokens", tokens.int())
        keep("targets", targets.int())
        keep("weights", weights)
        keep("loss", loss.double())
        for name, parameter in model.parameters.items():
            keep(f"{name}.value", parameter)
            keep(f"{name}.gradient", parameter.grad)
            with torch.no_grad():
                parameter -= 0.3 * parameter.grad
            parameter.grad = None
    return {name: torch.stack(list_of_rows) for name, list_of_rows in rows.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed, (name, settings) in enumerate(MODELS.items()):
        write(f"{name}.safetensors", record(seed, settings), {"made_by": f"PyTorch {torch.__version__}"})
