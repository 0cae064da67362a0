"""Following a run while it trains: its metrics are passed on as they are written."""

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from pathlib import Path

from gpt2train.metrics import read_metrics
from tasks.runner import Runner

FOLLOW_SECONDS = 2.0


@contextlib.contextmanager
def followed(run: Path, steps: int, runner: Runner) -> Iterator[None]:
    """Tell `runner.training` of the metrics of a run, every two seconds and once more at the end."""
    follower = Follower(run, steps, runner)
    stop = threading.Event()

    def follow() -> None:
        while not stop.wait(FOLLOW_SECONDS):
            follower.look()

    # In a copy of this thread's context, by which an orchestrator knows which run the metrics belong to.
    watcher = threading.Thread(target=contextvars.copy_context().run, args=(follow,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        follower.look()


class Follower:
    """Reads a run's `metrics.jsonl` as it grows and passes it on."""

    def __init__(self, run: Path, steps: int, runner: Runner) -> None:
        self.run, self.steps, self.runner = run, steps, runner
        self._shown = 0

    def look(self) -> None:
        """Pass on the metrics so far, when there are new ones."""
        records = read_metrics(self.run)
        if len(records) != self._shown:
            self._shown = len(records)
            self.runner.training(records, self.steps)
