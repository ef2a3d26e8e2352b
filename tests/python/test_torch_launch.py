# A training file of PyTorch under `millrace launch`: the bits of one process, and a traceback that ends them all.
import pathlib
import subprocess
import sys

import pytest
import torch
from test_launch import Launches

FILE = str(pathlib.Path(__file__).with_name("launched_torch.py"))


@pytest.fixture
def launches(command, tmp_path):
    return Launches(command, tmp_path / "place")


def launched(launches, flags, words):
    return launches.run(flags, words, program=(sys.executable, FILE))


def alone(*words):
    ran = subprocess.run([sys.executable, FILE, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_process_per_rank_gives_the_bits_of_one(launches):
    words = ["--schedule", "zb-h1", "--ranks", 4]
    ran = launched(launches, ["-n", 4, "--endpoint", "tcp"], words)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == alone(*words) and "weights" in ran.stdout


def test_each_process_has_its_own_stages_and_what_they_saved_is_whole(launches, tmp_path):
    words = ["--schedule", "zb-v", "--folder"]
    ran = launched(launches, ["-n", 2], [*words, tmp_path / "ranks"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == alone(*words, tmp_path / "whole")
    assert torch.load(tmp_path / "whole" / "state-0")
    assert not list((tmp_path / "ranks").glob("state-*"))


def test_a_callable_makes_the_stages_of_this_process_alone(launches):
    ran = launched(launches, ["-n", 2], ["--made-here"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("made 1 predicts False\n")
    assert alone("--made-here").replace("made 2 predicts True", "made 1 predicts False") == ran.stdout


def test_a_traceback_in_a_backward_ends_the_job_with_its_place(launches):
    ran = launched(launches, ["-n", 2, "--grace", 20], ["--deed", "backward"])
    assert ran.returncode == 1, ran.stderr
    assert "Aborted" not in ran.stderr
    assert "of stage 1, micro-batch 0 failed on rank 1: ZeroDivisionError: out of luck" in ran.stderr
    assert 'launched_torch.py", line' in ran.stderr
    assert "rank 1 ended with exit code 1" in ran.stderr
