# The command beside the package: what both say is compared, because the command has tests of its own.
import json
import os
import subprocess

import pytest


class Command:
    """Runs `millrace`, whose path ctest gives."""

    def __init__(self, path):
        self.path = path

    def run(self, *words):
        return subprocess.run([self.path, *map(str, words)], capture_output=True, text=True, timeout=120)

    def text(self, *words):
        ran = self.run(*words)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def json(self, *words):
        return json.loads(self.text(*words, "--json"))

    def sentence(self, *words):
        """What the command refuses with."""
        ran = self.run(*words)
        assert ran.returncode != 0, ran.stdout
        return ran.stderr.strip().removeprefix("millrace: ")


@pytest.fixture(scope="session")
def command():
    return Command(os.environ["MILLRACE_COMMAND"])
