# One model in C++ and in Python: the same bits, and checkpoints that either goes on from.
import os
import subprocess

import pytest
import torch
from torch import nn

import millrace
import millrace.torch

SCHEDULES = ["1f1b", "zb-h1"]


def in_cpp(schedule, steps, saves, *resumes):
    """The hash that tests/programs/torch_steps.cpp prints."""
    words = [os.environ["MILLRACE_TORCH_STEPS"], schedule, steps, saves, *resumes]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def in_python(schedule, steps, saves, *resumes):
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(((torch.arange(value.numel(), dtype=torch.float32) * 7 % 23 - 11) / 64).reshape(value.shape))
    inputs = ((torch.arange(13 * 64, dtype=torch.float32) % 17 - 8) / 8).reshape(13, 64)
    pipeline = millrace.torch.Pipeline(model, loss=nn.CrossEntropyLoss(), ranks=2, micro_batches=4, schedule=schedule,
                                       optimizer=millrace.AdamW(0.01), save_folder=str(saves))
    for folder in resumes:
        pipeline.resume(folder)
    for _ in range(steps):
        pipeline.step(inputs, torch.arange(13) % 10)
    pipeline.save()
    return pipeline.weights_hash()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_checkpoint_goes_on_in_the_other_language_with_the_same_bits(schedule, tmp_path):
    whole = in_python(schedule, 5, tmp_path / "whole")
    assert in_cpp(schedule, 3, tmp_path / "cpp") == in_python("gpipe", 3, tmp_path / "python")
    assert in_cpp(schedule, 2, tmp_path / "cpp again", tmp_path / "python") == whole
    assert in_python(schedule, 2, tmp_path / "python again", tmp_path / "cpp") == whole
