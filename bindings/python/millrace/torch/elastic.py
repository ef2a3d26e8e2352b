"""Ranks that torchrun started: they find each other through its store."""

from __future__ import annotations

import atexit
import os
import pathlib
import secrets
import shutil
import socket
import tempfile

from .. import launch
from .._millrace import Launched

def place() -> Launched:
    """This process's place among those of `millrace launch` or torchrun."""
    elastic = "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not elastic or "MILLRACE_RANK" in os.environ:
        return launch.place()
    folder = tempfile.mkdtemp(prefix="millrace-")
    # Until the end: ranks of one host meet later than they join, at sockets in the folder of rank 0.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ.update(_variables(folder))
    try:
        return launch.join_launch()
    finally:
        shutil.rmtree(f"{folder}/all", ignore_errors=True)
        pathlib.Path(f"{folder}/keys").unlink(missing_ok=True)


def _variables(folder: str) -> dict[str, str]:
    """What `millrace launch` would set. Shared memory where all ranks are on this host, else tcp with a key per
    rank. Whoever can read torchrun's store can read the keys: its network has to be trusted as torchrun's is."""
    import torch.distributed as dist

    store, rank, world = next(dist.rendezvous("env://"))
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"millrace/{restarts}", store)
    shared = os.environ.get("LOCAL_WORLD_SIZE") == str(world)
    if rank == 0:
        store.set("job", str(secrets.randbelow(2**62)))
        store.set("rendezvous", f"ipc://{folder}/rendezvous" if shared else f"tcp://{_host()}:{_free_port()}")
        if not shared:
            from .._millrace import make_keys

            os.mkdir(f"{folder}/all", 0o700)
            make_keys(f"{folder}/all", world)
            for other in range(world):
                with open(f"{folder}/all/keys-{other}", encoding="ascii") as file:
                    store.set(f"keys-{other}", file.read())
    told = {"RANK": str(rank), "WORLD": str(world), "JOB": store.get("job").decode(),
            "RENDEZVOUS": store.get("rendezvous").decode(), "ENDPOINT": "shm" if shared else "tcp", "RESTART": restarts}
    if not shared:
        path = f"{folder}/keys"
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(store.get(f"keys-{rank}").decode())
        told |= {"KEYS": path, "INTERFACE": _host()}
    return {f"MILLRACE_{name}": value for name, value in told.items()}


def _host() -> str:
    """The address of this host that reaches torchrun's store."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        return line.getsockname()[0]


def _free_port() -> int:
    with socket.socket() as line:
        line.bind((_host(), 0))
        return line.getsockname()[1]
