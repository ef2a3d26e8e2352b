#!/usr/bin/python3
"""Records what PyTorch's optimizers do, for tests/training/reference_test.cpp.

Needs Debian's PyTorch: apt-get install python3-torch (1.13.1 made the files here). Run it in this folder:
it writes one safetensors file per optimizer, the same bytes every time on one machine.

A network of two linear layers learns a fixed function for 100 steps. Each file has, of every parameter,
the values and the optimizer's arrays before each step and after the last ([101, ...]), and the gradients
of each step ([100, ...]) as they are before the clip factor. Weights decay, biases do not; the second
layer's learning rate has a factor of its own; learning rate and clip factor change from step to step.
"""

import json
import struct

import torch

STEPS = 100
DECAY = 0.1
SECOND_LAYER = 0.5
KINDS = {
    "sgd": (torch.optim.SGD, {}, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}, {"momentum": "momentum_buffer"}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, {"momentum": "momentum_buffer"}),
    "adam": (torch.optim.Adam, {"betas": (0.9, 0.999), "eps": 1e-8},
             {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}),
    "adamw": (torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8},
              {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}),
}


def parameters_of(model):
    for name, parameter in model.named_parameters():
        yield f"layers.{name}", parameter


def groups_of(model):
    """One group per parameter, as learning-rate factor and decay tell them apart."""
    return [{"params": [parameter],
             "weight_decay": DECAY if name.endswith("weight") else 0.0,
             "factor": SECOND_LAYER if name.startswith("layers.2.") else 1.0}
            for name, parameter in parameters_of(model)]


def record(kind):
    make, settings, slots = KINDS[kind]
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    optimizer = make(groups_of(model), lr=1.0, **settings)
    inputs = torch.randn(16, 8)
    targets = torch.sin(inputs @ torch.randn(8, 3))
    rows = {"learning_rate": [], "gradient_factor": []}

    def keep_state():
        for name, parameter in parameters_of(model):
            rows.setdefault(f"{name}.value", []).append(parameter.detach().clone())
            for slot, theirs in slots.items():
                kept = optimizer.state.get(parameter, {}).get(theirs)
                kept = torch.zeros_like(parameter) if kept is None else kept.detach().clone()
                rows.setdefault(f"{name}.{slot}", []).append(kept)

    for step in range(STEPS):
        keep_state()
        rate = 0.02 / (1 + 0.01 * step)
        factor = 0.7 if step % 3 == 2 else 1.0
        rows["learning_rate"].append(torch.tensor(rate, dtype=torch.float64))
        rows["gradient_factor"].append(torch.tensor(factor, dtype=torch.float64))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets, reduction="sum").backward()
        for name, parameter in parameters_of(model):
            rows.setdefault(f"{name}.gradient", []).append(parameter.grad.clone())
            parameter.grad.mul_(factor)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        optimizer.step()
    keep_state()
    return {name: torch.stack(list_of_rows) for name, list_of_rows in rows.items()}


def write(path, tensors, metadata):
    names = {torch.float32: "F32", torch.float64: "F64", torch.int32: "I32"}
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in sorted(tensors.items()):
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in KINDS:
        write(f"{kind}.safetensors", record(kind),
              {"optimizer": kind, "weight_decay": str(DECAY), "second_layer": str(SECOND_LAYER),
               "made_by": f"PyTorch {torch.__version__}"})
