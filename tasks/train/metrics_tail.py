"""Tail of a run's `metrics.jsonl`, reported to the runner while the job runs."""

import contextlib
import contextvars
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpt2train.monitoring.metrics import FILE
from gpt2train.monitoring.samples import read_samples
from gpt2train.store.files import read_json_lines
from tasks.core.runner import Runner

log = logging.getLogger("gpt2train")

POLL_SECONDS = 2.0


@contextlib.contextmanager
def polling(poll: Callable[[bool], None], seconds: float) -> Iterator[None]:
    """Call `poll(False)` every so many seconds in a thread, and `poll(True)` once at the end.

    An error of a report is one warning: it must not end what is reported.
    """
    stop, failed = threading.Event(), False

    def attempt(last: bool) -> None:
        nonlocal failed
        try:
            poll(last)
        except Exception as error:  # noqa: BLE001 - of a server, or of rows from a damaged file
            if not failed:
                log.warning("warning: a report failed: %s: %s", type(error).__name__, error)
            failed = True

    def loop() -> None:
        while not stop.wait(seconds):
            with contextlib.suppress(SystemExit):  # raised by rich when its pipe is closed; it prints nothing then
                attempt(False)

    # In a copy of this thread's context, by which an orchestrator finds the flow run of the thread.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(loop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        attempt(True)


@contextlib.contextmanager
def tail_metrics(run: Path, steps: int, runner: Runner) -> Iterator[None]:
    """Report a run's metrics to the runner every two seconds and once at the end; `steps` are those of the training."""
    with polling(MetricsTail(run, steps, runner).poll, POLL_SECONDS):
        yield


class MetricsTail:
    """Incremental reader of the `metrics.jsonl` in a run folder, for a training of `steps` steps.

    Each poll reads only the appended bytes, because a long run has a hundred thousand rows. A restart replaces the
    file, without the rows after its checkpoint; the new file is then read from its beginning.
    """

    def __init__(self, run: Path, steps: int, runner: Runner) -> None:
        self.path, self.steps, self.runner = run / FILE, steps, runner
        self._records: list[dict[str, Any]] = []
        self._sample: dict[str, Any] | None = None  # last sample text
        self._inode = self._read = 0

    def poll(self, last: bool = False) -> None:
        """Report all metrics so far, if there are new ones."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._read:
                    self._records, self._inode, self._read = [], found.st_ino, 0
                file.seek(self._read)
                block = file.read()
        except OSError:
            return  # not written yet
        lines = block[: block.rfind(b"\n") + 1]
        if lines:
            self._read += len(lines)
            rows = [row for row in read_json_lines(lines)[0] if type(row.get("step")) is int]
            self._records += rows
            if last or any("valid_loss" in row for row in rows):
                self._sample = next(reversed(read_samples(self.path.parent)), None)
            self.runner.report_metrics(self._records, self.steps, self._sample)
