"""Helpers of the kill tests: running, ending and zombie processes."""

import os
import subprocess
import sys

import psutil
import pytest

from tests.processes import command_of, environment_of, has_ended, wait_until_ended

# 100 MB to give back: while the kernel does that the process has no environment any more, and yet it is there.
SLEEPER = "held = bytearray(b'x') * 10**8; print('up', flush=True); import time; time.sleep(60)"


def test_a_process_that_is_ending_has_not_ended() -> None:
    environment = {**os.environ, "MARK": "mine"}
    with subprocess.Popen([sys.executable, "-c", SLEEPER], env=environment, stdout=subprocess.PIPE) as popen:
        assert popen.stdout and popen.stdout.readline() == b"up\n"
        process = psutil.Process(popen.pid)
        assert environment_of(process)["MARK"] == "mine" and "sleep" in command_of(process)
        assert not has_ended(process)
        with pytest.raises(AssertionError, match="there are still"):
            wait_until_ended([process], seconds=0)
        popen.kill()
        while environment_of(process):
            pass
        wait_until_ended([process])
        assert process.status() == psutil.STATUS_ZOMBIE  # its parent has not reaped it
    wait_until_ended([process])
    assert environment_of(process) == {} and command_of(process) == ""
