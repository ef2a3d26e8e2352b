"""The console script `millrace` of a wheel: replaces this process by the compiled command."""

import os
import pathlib
import sys


def main() -> None:
    command = pathlib.Path(__file__).with_name("bin") / "millrace"
    os.execv(command, ["millrace", *sys.argv[1:]])
