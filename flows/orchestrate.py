"""Steps as Prefect task runs: one for the step, one for each batch; cached steps shown as cached.

The files are the truth about progress (tasks/steps.py); Prefect schedules, retries and shows. A step that its
manifest says is done ends in Prefect's own state name `Cached`, so that no second cache can disagree with the disk.
"""

import contextvars
import functools
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.tasks import Task

from flows.console import StepProgress, as_table, step_line
from flows.pace import UNITS, Pace, clock
from gpt2train.errors import RunError, UserError
from tasks.limits import LimitSettings
from tasks.pool import WorkerLost
from tasks.report.pictures import data_uri, loss_curve
from tasks.runner import Outcomes, Runner, Stage, Work
from tasks.steps import Manifest

log = logging.getLogger("gpt2train")

ARTIFACT_SECONDS = 2.0  # an update is an API call of 20-50 ms
CURVE_SECONDS = 10.0
METRICS = ("step", "loss", "valid_loss", "grad_norm", "lr", "tokens_per_second")
TRANSIENT = (WorkerLost, ConnectionError, TimeoutError)


class PrefectRunner(Runner):
    """Runs batches like the plain runner, each as a task run of the surrounding flow."""

    def __init__(self, workers: int = 2, *, verify: bool = False, limits: LimitSettings | None = None) -> None:
        super().__init__(workers, verify=verify, limits=limits)
        self._curve_at = 0.0
        self._training_bar: UUID | None = None

    def dispatch(self, stage: Stage, todo: Sequence[tuple[str, Work]], at_once: int) -> None:
        """Run named pieces of work as task runs, at most `at_once` at a time."""
        step = stage.step
        batch = task(
            name=f"{step} batch",
            cache_policy=NO_CACHE,
            retries=2,
            retry_delay_seconds=[1, 5],
            retry_condition_fn=_is_transient,
        )(_work)
        self._pace = Pace(UNITS.get(step, "documents"), stage.batches)
        self._bar = StepProgress(f"{step} {stage.name}" if stage.name != "part" else step, self._pace)
        self._artifact: UUID | None = None
        self._artifact_at = time.monotonic()

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
        """Move the bar, and the progress artifact of the run page at most every two seconds."""
        self._pace.done, self._pace.rows = done, rows
        self._bar.update()
        now = time.monotonic()
        if now - self._artifact_at < ARTIFACT_SECONDS and not (done == stage.batches and self._artifact):
            return
        self._artifact_at = now
        percent = 100.0 * done / stage.batches
        words = f"{stage.step} {stage.name}: {self._pace.words(now)}"
        if self._artifact is None:
            created = create_progress_artifact(percent, key=f"{stage.step}-progress", description=words)
            self._artifact = created if isinstance(created, UUID) else None
        else:
            update_progress_artifact(self._artifact, percent, description=words)

    def training(self, records: Sequence[dict[str, Any]], steps: int) -> None:
        """Draw the loss curve and the last metrics on the run page, at most every ten seconds and at the end."""
        now = time.monotonic()
        last = records[-1]["step"] == steps if records else False
        if not records or (now - self._curve_at < CURVE_SECONDS and not last):
            return
        self._curve_at = now
        shown = [{key: _short(record.get(key)) for key in METRICS} for record in records[-10:]]
        picture = data_uri(loss_curve(records, steps))
        create_markdown_artifact(
            f"![loss curve]({picture})\n\n{as_table(shown)}\n",
            key="training",
            description=f"training: step {records[-1]['step']} of {steps}",
        )
        percent = 100.0 * records[-1]["step"] / steps
        words = f"training: {_training_words(records, steps)}"
        if self._training_bar is None:
            created = create_progress_artifact(percent, key="training-progress", description=words)
            self._training_bar = created if isinstance(created, UUID) else None
        else:
            update_progress_artifact(self._training_bar, percent, description=words)


def _training_words(records: Sequence[dict[str, Any]], steps: int) -> str:
    """Steps done of the total, speed and time left, from the metrics so far."""
    last = records[-1]
    parts = [f"step {last['step']:,} of {steps:,}"]
    recent = [record["seconds"] for record in records[-10:] if record.get("seconds")]
    if last.get("tokens_per_second"):
        parts.append(f"{last['tokens_per_second']:,.0f} tokens/s")
    if recent and last["step"] < steps:
        parts.append(f"{clock(statistics.median(recent) * (steps - last['step']))} left")
    return ", ".join(parts)


def _short(value: Any) -> str:
    """A number as a table cell."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _work(work: Work) -> Outcomes:
    return work()


def _is_transient(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Retry what may pass by itself; a user's mistake or a bug fails at once."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, TRANSIENT) and not isinstance(error, UserError | RunError)


class Held:
    """A call that stays in this process. A batch on its way to a cluster takes along the task that surrounds it, as its
    context; the step's arguments, the runner above all, are of no use there and do not pickle."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[type["Held"], tuple[None]]:
        return Held, (None,)


def run_step(function: Callable[..., Manifest], *arguments: Any, runner: Runner, **options: Any) -> Manifest:
    """Run a step function as a Prefect task named after it; shown as Cached when its manifest stands.

    Prints the step's line, and leaves its counts as an artifact on the run page.
    """
    name = function.__name__.strip("_").replace("_", "-")

    def step() -> Any:  # a manifest, or a state that holds one
        started = time.monotonic()
        manifest = function(*arguments, runner=runner, **options)
        cached = manifest.step in runner.skipped
        log.info(step_line(manifest, None if cached else time.monotonic() - started))
        if cached:
            return Completed(name="Cached", message=f"done before: fingerprint {manifest.fingerprint}", data=manifest)
        create_markdown_artifact(_counts(manifest), key=f"{name}-counts", description=f"{name}: what came in and out")
        return manifest

    # With `return_state`, since a call returns a state that its function made as it is.
    held = Held(step)
    state = task(name=name, task_run_name=name, cache_policy=NO_CACHE)(lambda: held.call())(return_state=True)
    manifest: Manifest = state.result()
    return manifest


def _counts(manifest: Manifest) -> str:
    outcome = manifest.outcome
    rows = [{"what": "in", "count": outcome.seen}, {"what": "kept", "count": outcome.kept}]
    rows += [{"what": f"dropped: {reason}", "count": count} for reason, count in outcome.reasons.items()]
    rows += [{"what": fact.replace("_", " "), "count": count} for fact, count in outcome.facts.items()]
    files = [{"file": f"{manifest.folder}/{record.name}", "bytes": record.bytes} for record in outcome.outputs[:20]]
    return f"{as_table(rows)}\n\n{as_table(files)}\n\nfingerprint `{manifest.fingerprint}`\n"
