#!/usr/bin/python3
"""Records losses and gradients of the perceptron 784-512-512-10, for tests/training/mlp_reference_test.cpp.

Needs Debian's PyTorch: apt-get install python3-torch (1.13.1 made the file here). Run it in this folder: it
writes mlp_784_512_512_10.safetensors, the same bytes every time on one machine.

Ten steps of 32 samples. No state is in the file, because both sides compute it: number i of stream s is
mixed(i + 0x9E3779B9 s), in 32 bits, and step t has the streams from 16 t on, in the order of STREAMS. Pixels
are (number mod 16) / 16, weights and biases ((number mod 15) - 7) / 64, classes number mod 10. Such values have
so few bits that no sum in front of a relu rounds in f32: no order of adding decides its side.

Of every step the file has the loss, the gradients of the biases, and of a matrix's gradient its largest
magnitude, the sums of all rows and of all columns in double, and eight whole rows, those that the stream of its
own names.
"""

import math

import torch
from torch.nn import functional as F

from record_optimizers import write

STEPS, SAMPLES, SAMPLED_ROWS = 10, 32, 8
WIDTHS = (784, 512, 512, 10)
LAYERS = range(len(WIDTHS) - 1)
STREAMS = (["pixels", "classes"] +
           [f"layers.{layer}.{name}" for layer in LAYERS for name in ("weight", "bias", "rows")])


def mixed(numbers):
    """The last steps of MurmurHash3 (Austin Appleby, in the public domain), of numbers below 2^32."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        numbers = ((numbers ^ (numbers >> shift)) * factor) & 0xFFFFFFFF
    return numbers ^ (numbers >> 16)


def drawn(step, name, below, *shape):
    """Integers from 0 to below - 1."""
    stream = 16 * step + STREAMS.index(name)
    numbers = (torch.arange(math.prod(shape)) + 0x9E3779B9 * stream) & 0xFFFFFFFF
    return (mixed(numbers) % below).view(shape)


def values(step, name, *shape):
    return ((drawn(step, name, 15, *shape) - 7).float() / 64).requires_grad_()


def recorded_step(step):
    """Names and tensors of one step."""
    x = drawn(step, "pixels", 16, SAMPLES, WIDTHS[0]).float() / 16
    parameters = {}
    for layer in LAYERS:
        weight = values(step, f"layers.{layer}.weight", WIDTHS[layer], WIDTHS[layer + 1])
        bias = values(step, f"layers.{layer}.bias", WIDTHS[layer + 1])
        parameters |= {f"layers.{layer}.weight": weight, f"layers.{layer}.bias": bias}
        x = x @ weight + bias
        x = x.relu() if layer < LAYERS[-1] else x
    loss = F.cross_entropy(x, drawn(step, "classes", WIDTHS[-1], SAMPLES))
    loss.backward()
    kept = {"loss": loss.detach().double()}
    for name, parameter in parameters.items():
        if name.endswith("bias"):
            kept[f"{name}.gradient"] = parameter.grad
            continue
        kept[f"{name}.gradient.largest"] = parameter.grad.abs().max()
        rows = drawn(step, name.replace("weight", "rows"), parameter.shape[0], SAMPLED_ROWS)
        kept |= {f"{name}.gradient.rows": parameter.grad[rows],
                 f"{name}.gradient.row_sums": parameter.grad.double().sum(1),
                 f"{name}.gradient.column_sums": parameter.grad.double().sum(0)}
    return kept


if __name__ == "__main__":
    torch.set_num_threads(1)
    steps = [recorded_step(step) for step in range(STEPS)]
    write("mlp_784_512_512_10.safetensors", {name: torch.stack([kept[name] for kept in steps]) for name in steps[0]},
          {"made_by": f"PyTorch {torch.__version__}"})
