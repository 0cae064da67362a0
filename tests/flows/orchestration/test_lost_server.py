"""A flow whose embedded server is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import time
import psutil
from flows.orchestration.server import prefect_server
from gpt2train.errors import RunError

def server_process():
    for child in psutil.Process().children():
        if "flows.orchestration.server" in child.cmdline():
            return child

try:
    with prefect_server():
        from prefect import flow, task
        from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

        @task
        def lose():
            assert PREFECT_CLIENT_MAX_RETRIES.value() > 0
            server_process().kill()
            while PREFECT_CLIENT_MAX_RETRIES.value():  # without the watch for ever
                time.sleep(0.1)
            print("no retries", flush=True)

        @flow
        def work():
            lose()

        work()
except RunError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_flow_ends_soon_after_its_server(tmp_path: Path) -> None:
    """Prefect's client repeated every request for a minute: 222 s in all."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True, timeout=280
    )
    assert ended.stdout.splitlines() == [
        "no retries",
        "the embedded Prefect server has ended during the run; run again: finished work is kept",
    ], ended.stderr[-2000:]
