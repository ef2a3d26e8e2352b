"""Ranks that torchrun starts find each other without another word: on one host, and on two by tcp with keys."""

import json
import pathlib
import socket
import subprocess
import sys

import pytest

from launched_fit import train

PROGRAM = pathlib.Path(__file__).parent / "launched_fit.py"


@pytest.mark.parametrize("hosts", [1, 2])
def test_torchrun_has_the_bits_of_one_process(tmp_path, hosts):
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port = line.getsockname()[1]
    common = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--nproc-per-node", str(2 // hosts),
              "--master-addr", "127.0.0.1", "--master-port", str(port)]
    agents = [subprocess.Popen([*common, "--node-rank", str(host), str(PROGRAM), str(tmp_path / "run"), "steps=4"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for host in range(hosts)]
    ended = [agent.communicate(timeout=200) for agent in agents]

    assert [agent.returncode for agent in agents] == [0] * hosts, ended
    lines = [line for out, _ in ended for line in out.splitlines() if line.startswith("{")]
    assert [json.loads(line) for line in lines] == [train(tmp_path / "alone", "steps=4")]
