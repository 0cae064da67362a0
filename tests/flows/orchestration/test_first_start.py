"""Embedded servers that start at once on a Prefect home without a database."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import os, sys
from flows.orchestration.server import prefect_server
print("ready", flush=True)
sys.stdin.readline()
with prefect_server():
    print("started")
"""
TOGETHER = 3


@pytest.mark.exhaustive
def test_several_first_starts_at_once(tmp_path: Path) -> None:
    """Each creates the tables of the database, unless another one does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", COMMAND],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(TOGETHER)
    ]
    for command in commands:
        assert command.stdout is not None and command.stdout.readline() == "ready\n"
    for command in commands:
        assert command.stdin is not None
        command.stdin.write("\n")
        command.stdin.flush()
    ends = [command.communicate(timeout=280) for command in commands]
    assert [out for out, _ in ends] == ["started\n"] * TOGETHER, [err[-500:] for _, err in ends]
