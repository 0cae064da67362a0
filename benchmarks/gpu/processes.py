"""Checks in processes of their own: the stream of lines that such a process prints, and the one that reads it.

A process that crashes, hangs or loses its device ends alone; it is started again without the check in which it did.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import IO, Any

import psutil

from benchmarks.gpu.result import LEFT_OUT, NotAvailable, Result

Check = Callable[[], Iterator[Result]]
LOST = 86  # exit code of a process whose device fails for good, after it has printed the result
HANG_SECONDS = 120.0  # of one check; compilation takes most of it, beside that of the full-size models
TIME_UP = f"{LEFT_OUT}the time was up"


def run_checks(
    part: str, checks: Mapping[str, Check], skip: set[str], limits: Mapping[str, float] | None = None, ask: bool = False
) -> None:
    """Run checks and print their results as lines of JSON; a check that raises is a failure of its own.

    Args:
        part: part of the checks.
        checks: checks by name.
        skip: names of checks to leave out.
        limits: seconds after which a check is taken to hang, where they are not HANG_SECONDS.
        ask: wait for a line on standard input before the first check, while other processes are stopped.
    """
    names = [name for name in checks if name not in skip]
    print(json.dumps({"checks": names, "ask": ask}), flush=True)
    if ask:
        sys.stdin.readline()
    for name in names:
        print(json.dumps({"begin": name, "limit": (limits or {}).get(name, HANG_SECONDS)}), flush=True)
        started, lost = time.perf_counter(), False
        try:
            for result in checks[name]():  # printed at once: the process may be ended in the middle of a check
                now = time.perf_counter()
                print(json.dumps(asdict(result) | {"seconds": now - started}), flush=True)
                started = now
            continue
        except NotAvailable as reason:
            result = Result(part, name, None, detail=f"not available here: {reason}")
        except Exception as error:  # noqa: BLE001 - whatever torch, a driver or a compiler raises is the finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {first_line(str(error))} ({where.filename}:{where.lineno})"
            result = Result(part, name, False, detail=text)
            lost = "CUDA error" in text or type(error).__name__ == "AcceleratorError"
        print(json.dumps(asdict(result) | {"seconds": time.perf_counter() - started}), flush=True)
        if lost:  # every later call of this process would fail: the other checks run in a new one
            sys.stdout.flush()
            os._exit(LOST)


def first_line(text: str) -> str:
    """First line of a message."""
    return (text.strip().splitlines() or [""])[0]


class Turns:
    """The right to measure: one process at a time, all others that this command has started being stopped.

    Args:
        end: moment by the monotonic clock at which all processes are killed.
    """

    def __init__(self, end: float) -> None:
        self.end = end
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds that are left; a process that ends without any has not failed."""
        return self.end - time.monotonic()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Start a process in a block: never while another one is measured."""
        with self._lock:
            yield

    @contextlib.contextmanager
    def alone(self, pid: int) -> Iterator[None]:
        """Stop all processes but one, and those that it has started, in a block."""
        with self._lock:
            others = set(psutil.Process().children(recursive=True))
            with contextlib.suppress(psutil.NoSuchProcess):
                kept = psutil.Process(pid)
                others -= {kept, *kept.children(recursive=True)}
            for process in others:
                with contextlib.suppress(psutil.Error):
                    process.suspend()
            _wait_for_stop(others)
            try:
                yield
            finally:
                for process in others:
                    with contextlib.suppress(psutil.Error):
                        process.resume()


def _wait_for_stop(processes: set[psutil.Process], seconds: float = 2.0) -> None:
    """Wait until processes have stopped; a call into a driver goes on until it returns."""
    end = time.monotonic() + seconds
    still = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_TRACING_STOP)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            while process.status() not in still and time.monotonic() < end:
                time.sleep(0.01)


class Limit:
    """Kill a process, and all that it has started, when its time is over.

    Args:
        process: leader of a session of its own.
        seconds: time from now; `renew` starts another one.
    """

    def __init__(self, process: "subprocess.Popen[str]", seconds: float) -> None:
        self.process, self.over = process, False
        self._timer = threading.Timer(0, lambda: None)
        self.renew(seconds)

    def renew(self, seconds: float) -> None:
        """Begin a new time."""
        self._timer.cancel()
        self.seconds = seconds
        self._timer = threading.Timer(max(0.1, seconds), self._end)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Never kill."""
        self._timer.cancel()

    def _end(self) -> None:
        self.over = True
        kill(self.process)


def kill(process: "subprocess.Popen[str]") -> None:
    """Kill the leader of a session and all of the session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_children() -> None:
    """Kill all processes that this one has started, and what they have started."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


def last_error(errors: IO[bytes]) -> str:
    """Last line of what a process has written to its standard error, of which the end is printed."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 3_000))
    text = errors.read().decode(errors="replace").strip()
    if text:
        print(text, file=sys.stderr, flush=True)
    return text.splitlines()[-1].strip()[:300] if text else "no error was printed"


def run_part(part: str, command: list[str], record: Callable[[Result], None], turns: Turns) -> None:
    """Run a part in a process of its own, and again without the check in which it died, until it ends or time is up.

    Args:
        part: name of the part.
        command: command of the process, which calls `run_checks`; the names of the checks to leave out are added.
        record: function that takes each result at once.
        turns: the right to start a process, and to measure in it.
    """
    left, skip = [part], list[str]()
    while True:
        with tempfile.TemporaryFile() as errors:
            with turns.starting():
                process = subprocess.Popen(
                    [*command, *skip],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,  # so that nothing that a check started outlives it and holds memory
                )
            current, limit = "", Limit(process, min(HANG_SECONDS, turns.left))
            daemon(_end_session, process)
            try:
                with contextlib.ExitStack() as turn:
                    assert process.stdout is not None
                    for line in process.stdout:
                        row = _row(line)
                        if "checks" in row:
                            left = list(row["checks"])
                            if row["ask"]:
                                turn.enter_context(turns.alone(process.pid))
                                _answer(process)
                        elif "begin" in row:
                            current = row["begin"]
                            limit.renew(min(row["limit"], turns.left))
                            left.remove(current)
                            skip.append(current)
                        elif row:
                            record(Result(**row))
            finally:
                limit.cancel()
                kill(process)
                code = process.wait()
            if code == 0:
                return
            if turns.left <= 0:
                for name in [current, *left] if current else left:
                    record(Result(part, name, None, detail=TIME_UP))
                return
            if code != LOST:  # whose check has a result
                ended = f"hung for {limit.seconds:g} s" if limit.over else f"the process ended with exit code {code}"
                record(Result(part, current or part, False, detail=f"{ended}: {last_error(errors)}"))
            if not current:
                return


def _row(line: str) -> dict[str, Any]:
    """Row of the stream; empty for what else a process prints."""
    with contextlib.suppress(json.JSONDecodeError):
        if isinstance(row := json.loads(line), dict):
            return row
    print(line, end="", file=sys.stderr)
    return {}


def _end_session(process: "subprocess.Popen[str]") -> None:
    """Kill what a process leaves behind: it would hold the pipe open, and memory of the device."""
    process.wait()
    kill(process)


def _answer(process: "subprocess.Popen[str]") -> None:
    """Let a process begin that asks."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        print(file=process.stdin, flush=True)


def daemon(function: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a thread that ends with this process."""
    thread = threading.Thread(target=partial(function, *arguments), daemon=True)
    thread.start()
    return thread
