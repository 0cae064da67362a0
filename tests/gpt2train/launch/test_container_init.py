"""The first process of a container: forwarded signals, waiting for children, exit codes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import CONTAINER, wait_for, wait_until_ended

# A command that leaves an orphan in a session of its own, and ends when it has been asked to so many times.
COMMAND = '''
import pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
saves = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1], "may save").exists():
    time.sleep(0.02)
pathlib.Path(sys.argv[1], "saved").touch()
"""
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1) or len(asked) < int(sys.argv[2]) or sys.exit(7))
subprocess.Popen([sys.executable, "-c", saves, str(folder)], start_new_session=True)
(folder / "ready").touch()
while True:
    time.sleep(600)
'''


INIT = [sys.executable, "-m", "gpt2train.launch.container_init"]


@pytest.mark.parametrize("container", [False, True], ids=["plain", "container"])
def test_the_init_process_stays_until_all_children_have_ended(tmp_path: Path, container: bool) -> None:
    if container and os.geteuid() != 0:
        pytest.skip("process namespaces need root")
    command = [*INIT, sys.executable, "-c", COMMAND, str(tmp_path), "1"]
    process = subprocess.Popen([*CONTAINER * container, *command])
    try:
        wait_for(lambda: (tmp_path / "ready").exists(), 60, "the command")
        # unshare ignores signals; a container engine signals the first process inside.
        init = psutil.Process(process.pid).children()[0] if container else psutil.Process(process.pid)
        [command_itself] = [child for child in init.children() if str(tmp_path) in child.cmdline()]
        init.send_signal(signal.SIGTERM)
        wait_until_ended([command_itself], 60)
        time.sleep(0.2)  # in which an init process that does not stay would end
        assert init.is_running() and process.poll() is None
        (tmp_path / "may save").touch()
        assert process.wait(60) == 7
        assert (tmp_path / "saved").exists()
    finally:
        process.kill()
        process.wait()


def test_the_init_process_repeats_sigterm(tmp_path: Path) -> None:
    (tmp_path / "may save").touch()
    program = "import sys; from gpt2train.launch import container_init as init; init.RESIGNAL_SECONDS = 1; "
    program += "sys.exit(init.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, sys.executable, "-c", COMMAND, str(tmp_path), "2"]
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: (tmp_path / "ready").exists(), 60, "the command")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 7
    finally:
        process.kill()
        process.wait()


def test_the_init_process_has_the_exit_code_of_its_command(tmp_path: Path) -> None:
    def code(*command: str) -> int:
        return subprocess.run([*INIT, *command], check=False, timeout=60).returncode

    assert code("true") == 0
    assert code("sh", "-c", "exit 3") == 3
    assert code("sh", "-c", "kill -9 $$") == 128 + signal.SIGKILL
    assert code() == 1
