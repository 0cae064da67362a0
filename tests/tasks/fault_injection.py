"""Runs of the data recipe that are killed at a given instant of a given write, as orders of `forked_orders`."""

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tasks.core.step
import tasks.core.timings
from flows.dataprep import prepare
from flows.settings import DataprepSettings
from flows.sources import Sources
from gpt2train.store.folder import Folder
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.core.worker_pool import WorkerLostError, adopt
from tasks.download.fetch import Fetcher
from tasks.download.ledger import Fetched
from tasks.report.step import report
from tests.tasks.corpus import Inline, InlinePool
from tests.tasks.kill_points import INSTANTS, kill_at, work_and_die


class InlineRunner(Inline):
    """Runner of one batch after the other, in this process."""

    def batches(self, *args: Any, **options: Any) -> Any:
        return super().batches(*args, **{**options, "at_once": 1})


class LossyRunner(Runner):
    """Runner in real worker processes, of which each stage loses one; a lost batch is started again.

    Args:
        workers: worker processes.
        marks: folder with a file for each stage that has lost its worker.
    """

    def __init__(self, workers: int, marks: str) -> None:
        super().__init__(workers)
        self.marks = Path(marks)

    def batches(self, step: Step, stage: str, items: Any, work: Any, *args: Any, **options: Any) -> Any:
        if options.get("where", "process") == "process":
            instant = INSTANTS[len(list(self.marks.iterdir())) % len(INSTANTS)]
            work = functools.partial(work_and_die, self.marks / f"{step.name}-{stage}-{instant}", instant, work)
        while True:
            with contextlib.suppress(WorkerLostError):  # as Prefect's retries do
                return super().batches(step, stage, items, work, *args, **options)


def serve(order: dict[str, Any]) -> None:
    """Run the recipe as ordered: with real workers or none, killed at an instant or not."""
    settings = DataprepSettings.model_validate(order["settings"])
    root = Folder(settings.output)
    stop_clocks()
    with contextlib.ExitStack() as stack:
        adopt(InlinePool(1))  # until a runner brings a real one
        if "record" in order:
            stack.enter_context(recording(Path(order["record"])))
        if "folder" in order:
            kill_at(root, order["folder"], order["write"], order["instant"])
        runner = stack.enter_context(runner_of(order))
        prepared = prepare(root, settings, Sources(settings), runner)
        report(root, prepared.manifests, settings.report, runner=runner)


def runner_of(order: dict[str, Any]) -> Runner:
    """Runner of an order: real workers if it gives their number, dying ones if it gives a folder for their marks."""
    if "marks" in order:
        return LossyRunner(order["workers"], order["marks"])
    return Runner(order["workers"]) if "workers" in order else InlineRunner(1)


def stop_clocks() -> None:
    """Fix the fetch times of pages and the step times of the report, the only bytes that depend on the clock."""
    for module in (tasks.core.step, tasks.core.timings):
        module.time = SimpleNamespace(monotonic=lambda: 0.0, time=lambda: 0.0)  # type: ignore[attr-defined]
    tasks.core.step.cpu_seconds = lambda: 0.0  # type: ignore[assignment]
    fetch = Fetcher.fetch

    async def timeless(self: Fetcher, url: str, source: str, **others: Any) -> Fetched:
        page = await fetch(self, url, source, **others)
        page.fetched_at, page.elapsed_ms = "2026-01-01T00:00:00Z", 0
        return page

    Fetcher.fetch = timeless  # type: ignore[method-assign]


@contextlib.contextmanager
def recording(path: Path) -> Iterator[None]:
    targets: list[str] = []
    replace = Path.replace

    def noted(self: Path, target: Any) -> Path:
        targets.append(str(target))
        return replace(self, target)

    Path.replace = noted  # type: ignore[method-assign]
    yield
    path.write_text(json.dumps(targets))
