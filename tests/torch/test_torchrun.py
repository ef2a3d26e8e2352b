"""Ranks that torchrun starts find each other without another word: on one host, and on two by tcp with keys."""

import json
import pathlib
import socket
import subprocess
import sys

import pytest

from launched_fit import train

PROGRAM = pathlib.Path(__file__).parent / "launched_fit.py"


GREETING = """
import os
from millrace._millrace import Group, Label
from millrace.torch import elastic
here = elastic.place()
group = Group(here)
group.gather("", Label.Values)
print(os.path.isdir(os.path.dirname(os.environ["MILLRACE_RENDEZVOUS"].removeprefix("ipc://"))))
group.gather("", Label.Values)
"""


def torchrun(hosts, *program):
    """What two ranks print."""
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port = line.getsockname()[1]
    common = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--nproc-per-node", str(2 // hosts),
              "--master-addr", "127.0.0.1", "--master-port", str(port)]
    agents = [subprocess.Popen([*common, "--node-rank", str(host), *map(str, program)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for host in range(hosts)]
    ended = [agent.communicate(timeout=200) for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * hosts, "".join(told for _, told in ended)
    return [line for out, _ in ended for line in out.splitlines()]


@pytest.mark.parametrize("hosts", [1, 2])
def test_torchrun_has_the_bits_of_one_process(tmp_path, hosts):
    lines = [line for line in torchrun(hosts, PROGRAM, tmp_path / "run", "steps=4") if line.startswith("{")]
    assert [json.loads(line) for line in lines] == [train(tmp_path / "alone", "steps=4")]


def test_the_sockets_of_one_host_stay_until_the_ranks_end(tmp_path, monkeypatch):
    """A rank may connect to another that has long met all."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "greeting.py").write_text(GREETING)
    assert "".join(torchrun(1, tmp_path / "greeting.py")) == "TrueTrue"  # two ranks write to one pipe
    assert not list(tmp_path.glob("millrace-*"))
