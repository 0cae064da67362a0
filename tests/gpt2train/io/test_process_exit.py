"""The end of a command: handlers of exit run, the output is complete, the status is that of the command."""

import subprocess
import sys
import textwrap

import pytest

# The object of a module that is destroyed while the interpreter is torn down, as a native library's threads are.
PROGRAM = """
import atexit, logging, sys, threading, time
from gpt2train.io import process_exit

process_exit.install()
import tempfile

class Teardown:
    def __del__(self):
        print("teardown", flush=True)

kept = Teardown()
atexit.register(print, "handler")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
if sys.argv[1] != "none":
    process_exit.set_exit_status(int(sys.argv[1]))
print("done")
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("status", "code", "printed"),
    [
        ("0", 0, ["done", "thread", "handler"]),
        ("2", 2, ["done", "thread", "handler"]),
        ("none", 3, ["done", "thread", "handler", "teardown"]),
    ],
)
def test_handlers_run_and_the_teardown_does_not(status: str, code: int, printed: list[str]) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), status]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (code, printed, "")
