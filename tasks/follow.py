"""Following a run while it trains: its metrics are passed on as they are written."""

import contextlib
import contextvars
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpt2train.metrics import FILE
from tasks.runner import Runner

FOLLOW_SECONDS = 2.0


@contextlib.contextmanager
def watched(look: Callable[[bool], None], seconds: float) -> Iterator[None]:
    """Call `look(False)` every so many seconds in a thread of its own, and `look(True)` once at the end."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(seconds):
            look(False)

    # In a copy of this thread's context, by which an orchestrator knows which run it belongs to.
    watcher = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        look(True)


@contextlib.contextmanager
def followed(run: Path, steps: int, runner: Runner) -> Iterator[None]:
    """Tell `runner.training` of the metrics of a run, every two seconds and once more at the end."""
    with watched(Follower(run, steps, runner).look, FOLLOW_SECONDS):
        yield


class Follower:
    """Reads a run's `metrics.jsonl` as it grows and passes it on.

    Only what was added is read: a long run has a hundred thousand rows. A restart replaces the file, without the rows
    after its checkpoint; it is then read anew.
    """

    def __init__(self, run: Path, steps: int, runner: Runner) -> None:
        self.path, self.steps, self.runner = run / FILE, steps, runner
        self._records: list[dict[str, Any]] = []
        self._inode = self._read = 0

    def look(self, last: bool = False) -> None:
        """Pass on the metrics so far, when there are new ones."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._read:
                    self._records, self._inode, self._read = [], found.st_ino, 0
                file.seek(self._read)
                block = file.read()
        except OSError:
            return  # not there yet
        lines = block[: block.rfind(b"\n") + 1]
        if lines:
            self._read += len(lines)
            self._records += map(json.loads, lines.splitlines())
            self.runner.training(self._records, self.steps)
