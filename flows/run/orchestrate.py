"""Steps as Prefect task runs: one for the step, one for each batch; cached steps shown as cached.

The files are the truth about progress (tasks/steps.py); Prefect schedules, retries and shows. A step that its
manifest says is done ends in Prefect's own state name `Cached`, so that no second cache can disagree with the disk.
"""

import contextvars
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed
from prefect.tasks import Task

from flows.run.retry import Retries, TryBatchAgain, may_pass
from flows.run.turns import prefect_turn
from flows.show import artifacts
from flows.show.console import StepProgress, step_line
from flows.show.pace import UNITS, Pace
from flows.show.page import UPDATE_SECONDS, Page
from flows.show.warned import ScaleWatch, Warnings, near_limit
from gpt2train.config import TrainSettings
from tasks.launch.settings import LaunchSettings
from tasks.limits import LimitSettings
from tasks.looking import Looker
from tasks.runner import Outcomes, Runner, Stage, Work
from tasks.steps import Manifest

log = logging.getLogger("gpt2train")

CURVE_SECONDS = 10.0


class PrefectRunner(Runner):
    """Runs batches like the plain runner, each as a task run of the surrounding flow.

    Attributes:
        page: what the flow run's page shows.
    """

    def __init__(self, workers: int = 2, *, verify: bool = False, limits: LimitSettings | None = None) -> None:
        super().__init__(workers, verify=verify, limits=limits)
        self.page = Page()
        self._steps: list[artifacts.StepRow] = []
        self._warnings = Warnings(self.page)
        self._scale = ScaleWatch()

    def __enter__(self) -> Self:
        log.addHandler(self._warnings)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__(*exc)
        finally:
            log.removeHandler(self._warnings)
            self.page.close()

    def dispatch(self, stage: Stage, todo: Sequence[tuple[str, Work]], at_once: int) -> None:
        """Run named pieces of work as task runs, at most `at_once` at a time."""
        step = stage.step
        batch = task(
            name=f"{step} batch",
            cache_policy=NO_CACHE,
            retries=2,
            retry_delay_seconds=[1, 5],
            retry_condition_fn=TryBatchAgain(self.stopping),
        )(_work)
        self._pace = Pace(UNITS.get(step, "documents"), stage.batches, all_rows=sum(stage.rows.values()))
        self._stage, self._far = stage, {name: (0, rows) for name, rows in stage.rows.items()}
        self._context = contextvars.copy_context()
        self._bar = StepProgress(f"{step} {stage.name}" if stage.name != "part" else step, self._pace)
        self._begun = time.monotonic()

        def orchestrated(name: str, work: Work) -> Work:
            named = batch.with_options(task_run_name=f"{step} {name}")
            # A thread of ours knows nothing of the flow run: it gets a copy of this thread's context.
            return functools.partial(contextvars.copy_context().run, self.start, named, work)

        try:
            super().dispatch(stage, [(name, orchestrated(name, work)) for name, work in todo], at_once)
        finally:
            self._bar.close()

    def start(self, batch: Task[..., Any], work: Work) -> Outcomes:
        """Run a task and wait for it: here, in the thread that asks."""
        outcomes: Outcomes = batch(work)  # type: ignore[assignment]  # not a coroutine: `_work` is none
        return outcomes

    def progress(self, stage: Stage, done: int, rows: int) -> None:
        """Move the bars of the terminal and of the run page."""
        self._pace.done = done
        if not stage.rows:
            self._pace.rows = rows
        self._show_pace()

    def advance(self, name: str, done: int, rows: int) -> None:
        """Move the bars by the rows of a batch that goes on."""
        self._far[name] = (done, rows)
        self._pace.rows, self._pace.all_rows = map(sum, zip(*self._far.values(), strict=True))
        # What is shown belongs to the step, not to the batch whose thread this is.
        self._context.copy().run(self._show_pace)

    def _show_pace(self) -> None:
        self._bar.update()
        stage, now = self._stage, time.monotonic()
        key = f"{stage.step}-progress"
        # What ends at once needs no bar.
        if now - self._begun >= UPDATE_SECONDS or self.page.shows(key):
            words = f"{stage.step} {stage.name}: {self._pace.words(now)}"
            share = 100.0 * self._pace.share
            self.page.put(key, lambda: share, words, kind="progress")

    @contextmanager
    def turn(self, train: TrainSettings, launch: LaunchSettings, run: str) -> Iterator[None]:
        """Wait for a turn on this machine's GPUs, as the server's concurrency limits count them too."""
        with prefect_turn(train, launch, run, self.page):
            yield

    def training(self, records: Sequence[dict[str, Any]], steps: int) -> None:
        """Show the loss curve, the last metrics and how far the training is."""
        if not records:
            return
        if warning := self._scale.look(records):
            log.warning(warning)
        so_far, step = tuple(records), records[-1]["step"]
        words = f"training: {artifacts.training_words(so_far, steps)}"
        self.page.put("training-progress", lambda: 100.0 * step / steps, words, kind="progress")
        if len(so_far) > 1:  # one point is no curve
            self.page.put("training", lambda: artifacts.training(so_far, steps), words, seconds=CURVE_SECONDS)

    def begun(self, name: str) -> artifacts.StepRow:
        """Show that a step has begun."""
        row = artifacts.StepRow(name)
        self._steps.append(row)
        self._overview()
        return row

    def ended(self, row: artifacts.StepRow, manifest: Manifest, seconds: float | None) -> None:
        """Show that a step has ended well; None seconds = it was done before."""
        row.state, row.manifest, row.seconds = "cached" if seconds is None else "done", manifest, seconds
        self._overview()
        if seconds is not None:
            words = f"{row.name}: what came in and out"
            self.page.put(f"{row.name}-counts", lambda: artifacts.counts(manifest), words)
            if warning := near_limit(manifest, self.limits):
                log.warning(warning)

    def failed(self, row: artifacts.StepRow, seconds: float, state: str) -> None:
        """Show that a step has failed, or was stopped."""
        row.state, row.seconds = state, seconds
        self._overview()

    def _overview(self) -> None:
        rows = self._steps
        self.page.put("steps", lambda: artifacts.steps_table(rows), artifacts.steps_words(rows), of_step=False)


def _work(work: Work) -> Outcomes:
    return work()


class Held:
    """A call that stays in this process. A batch on its way to a cluster takes along the task that surrounds it, as its
    context; the step's arguments, the runner above all, are of no use there and do not pickle."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[type["Held"], tuple[None]]:
        return Held, (None,)


def run_step(
    function: Callable[..., Manifest],
    *arguments: Any,
    runner: Runner,
    retries: Retries = Retries(),  # noqa: B008 - frozen
    **options: Any,
) -> Manifest:
    """Run a step function as a Prefect task named after it; shown as Cached when its manifest stands.

    Prints the step's line, and leaves its counts on the run page. What may pass by itself is tried again, from what
    the attempt before has committed.
    """
    name = function.__name__.strip("_").replace("_", "-")
    if isinstance(runner, Looker):
        return runner.look(name, function, arguments, options)
    page = runner if isinstance(runner, PrefectRunner) else None

    def step() -> Any:  # a manifest, or a state that holds one
        started = time.monotonic()
        row = page.begun(name) if page else None
        try:
            manifest = function(*arguments, runner=runner, **options)
        except BaseException as error:
            if page and row:
                page.failed(row, time.monotonic() - started, "failed" if isinstance(error, Exception) else "stopped")
            raise
        cached = manifest.step in runner.skipped
        seconds = None if cached else time.monotonic() - started
        log.info(step_line(manifest, seconds))
        if page and row:
            page.ended(row, manifest, seconds)
        if cached:
            return Completed(name="Cached", message=f"done before: fingerprint {manifest.fingerprint}", data=manifest)
        return manifest

    # With `return_state`, since a call returns a state that its function made as it is.
    held = Held(step)
    again = may_pass(name, retries)
    state = task(name=name, task_run_name=name, cache_policy=NO_CACHE, **again)(lambda: held.call())(return_state=True)
    manifest: Manifest = state.result()
    return manifest
