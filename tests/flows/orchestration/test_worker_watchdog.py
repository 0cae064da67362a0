"""A flow whose worker was killed with -9, so that its standard output is a pipe without a reader."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpt2train.launch.rank_logs import quietly
from tests.processes import wait_for, wait_until_ended

SECONDS = 120.0
# Holds the reading end of the flow's standard output, and reads none of it.
WORKER = """
import subprocess, sys, time
flow = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
time.sleep(600)
"""
# Logs by Prefect's own handler, as a deployed flow does.
FLOW = """
import logging, os, signal, sys, time
from pathlib import Path
import psutil
from prefect.logging.handlers import PrefectConsoleHandler
from flows.orchestration import run_guard

folder, silent = Path(sys.argv[1]), sys.argv[2] == "silent"
logging.getLogger("gpt2train").addHandler(PrefectConsoleHandler(sys.stdout))
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
run_guard.terminate_with([psutil.Process(os.getppid())], 60)
(folder / "pid").write_text(str(os.getpid()))
while not stopped:
    if not silent:
        logging.getLogger("gpt2train").warning("a line of the flow")
        print("and one of another's", flush=True)
    time.sleep(0.05)
(folder / "saved").touch()
logging.getLogger("gpt2train").warning("saved")
(folder / "reported").touch()
"""


@pytest.mark.parametrize("kind", ["silent", "talking"])
def test_a_flow_shuts_down_cleanly_when_its_worker_is_killed(kind: str, tmp_path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, FLOW, str(tmp_path), kind])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), SECONDS, "the flow")
        flow = psutil.Process(int((tmp_path / "pid").read_text()))
    finally:
        worker.kill()
        worker.wait()
    try:
        wait_for((tmp_path / "reported").exists, SECONDS, "the flow's own end")
        wait_until_ended([flow])
    finally:
        if flow.is_running():
            flow.send_signal(signal.SIGKILL)
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("error", [SystemExit(1), BrokenPipeError(), ValueError("closed file"), KeyboardInterrupt()])
def test_logging_in_a_watchdog_raises_nothing(error: BaseException) -> None:
    said = []

    def write(line: str, flush: bool = False) -> None:
        said.append((line, flush))
        raise error

    quietly(write)("it is gone", flush=True)
    assert said == [("it is gone", True)]
