"""Heartbeats come at their interval, children end with their parent, and a command ends without teardown."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from gpt2train.store.process import Heartbeat, LastChange


def test_it_beats_until_the_block_ends() -> None:
    beats, three = [], threading.Event()

    def beat() -> bool:
        beats.append(time.monotonic())
        if len(beats) == 3:
            three.set()
        return True

    with Heartbeat(beat, 0.005):
        assert three.wait(60)
    count = len(beats)
    time.sleep(0.05)
    assert len(beats) == count


def test_it_ends_by_itself_when_the_function_returns_false() -> None:
    beats = []

    def beat() -> bool:
        beats.append(1)
        return False

    heartbeat = Heartbeat(beat, 0.001)
    heartbeat._thread.join(60)
    heartbeat.stop()
    assert beats == [1]


def test_a_block_shorter_than_the_interval_waits_for_no_beat() -> None:
    beats: list[int] = []
    with Heartbeat(lambda: beats.append(1) is None, 3600) as heartbeat:
        assert heartbeat._thread.is_alive()
    assert not heartbeat._thread.is_alive() and beats == []


def test_the_age_counts_from_the_last_change(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    change = LastChange()
    assert change.age({"beat": 1}) == 0
    now[0] += 5
    assert change.age({"beat": 1}) == 5
    assert change.age({"beat": 2}) == 0


# The object of a module that is destroyed while the interpreter is torn down, as a native library's threads are.
PROGRAM = """
import atexit, logging, sys, threading, time
from gpt2train.store import process

process.skip_teardown()
import tempfile

class Teardown:
    def __del__(self):
        print("teardown", flush=True)

kept = Teardown()
atexit.register(print, "handler")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
if sys.argv[1] != "none":
    process.set_exit_status(int(sys.argv[1]))
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


STREAMS = """
import contextlib, os, sys
from gpt2train.store.process import prepare_streams

prepare_streams(*sys.argv[1:])
with open("data", "w") as data:
    with contextlib.suppress(OSError):
        os.write(1, b"of a library")
    print("of Python", sys.stdin.read())
    print("log", file=sys.stderr, flush=True)
    print("flushed", flush=True)
    data.write("text")
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(("logs", "code"), [(("stdout", "stderr"), 0), (("stderr",), 1), ((), 1)])
def test_a_full_disk_ends_no_process_for_its_log(logs: tuple[str, ...], code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STREAMS, *logs]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=tmp_path, input=b"", stdout=full, stderr=full, check=False)
    assert (done.returncode != 0) == bool(code)
    assert (tmp_path / "data").read_text() == ("" if code else "text")


@pytest.mark.skipif(os.name == "nt", reason="the shell of Windows closes no streams")
def test_a_closed_stream_becomes_no_data_file(tmp_path: Path) -> None:
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", STREAMS, "stderr"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "data").read_text() == "text"


@pytest.mark.skipif(os.name == "nt", reason="the shell of Windows closes no streams")
@pytest.mark.parametrize("module", ["train", "evaluate"])
def test_an_entry_of_a_job_works_without_streams(module: str, tmp_path: Path) -> None:
    wrong = {"train": ["--config", "none.toml"], "evaluate": ["lambada", "--model", "none"]}[module]
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-m", f"gpt2train.{module}", *wrong]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", "cp1252:strict", "utf-8:strict"])
def test_output_has_escapes_for_what_its_encoding_lacks(encoding: str) -> None:
    program = "from gpt2train.store.process import prepare_streams; prepare_streams(); print('\\udcff \\u4e2d')"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert done.stdout.split() == [b"\\udcff", "\u4e2d".encode() if encoding.startswith("utf-8") else b"\\u4e2d"]


@pytest.mark.parametrize("columns", ["0", "1"])
def test_a_help_page_ends_on_a_terminal_without_width(columns: str) -> None:
    environment = {**os.environ, "COLUMNS": columns}
    command = [sys.executable, "-m", "gpt2train", "runs", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout[:6]) == (0, b"Usage:")
