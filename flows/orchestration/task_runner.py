"""Prefect task runs of the steps: one per step and one per batch; finished steps end in the state `Cached`.

The files on disk are the only record of progress (tasks/core/step.py); Prefect schedules, retries and displays. A step
that is finished by its manifest ends in Prefect's own state name `Cached`. Prefect's result cache is not used, so no
second cache can contradict the disk.
"""

import contextlib
import contextvars
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Self

import httpx
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient
from prefect.context import FlowRunContext, TagsContext
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.tasks import Task
from prefect.transactions import CommitMode, transaction

from flows.compat.prefect import brief_client
from flows.orchestration.assets import AssetLineage
from flows.orchestration.retries import RetryCondition, retry_options
from flows.ui import artifacts
from flows.ui.artifact_publisher import UPDATE_SECONDS, ArtifactPublisher
from flows.ui.console import step_line
from flows.ui.warnings import LossScaleMonitor, Warnings, near_limit
from gpt2train.errors import redacted_errors
from gpt2train.store.folder import Folder
from gpt2train.store.lost_files import translate_lost_files
from gpt2train.store.manifest import Manifest
from gpt2train.store.progress import ProgressBar, StageProgress, format_duration
from tasks.core.gpu_queue import gpu_slot
from tasks.core.runner import Group, Outcomes, Retries, Runner, Stage, Where, step_name
from tasks.core.step import Step
from tasks.core.worker_pool import explained_loss

log = logging.getLogger("gpt2train")

CURVE_SECONDS = 10.0
GPU_QUEUE = "gpu-queue"  # key of the artifact that shows the wait for GPUs
RENAME_SECONDS = 10.0  # for the server's answer
UNITS = {  # all other steps count documents
    **{"discover": "URL", "blacklist": "URL"},
    **{"download": "page", "commoncrawl": "page", "extract": "page"},
}


class PrefectRunner(Runner):
    """Runner that executes each batch as a task run of the surrounding flow.

    Attributes:
        root: Output folder of the run, to explain files that are missing; None if there is none.
    """

    def __init__(self, workers: int = 2, **options: Any) -> None:
        super().__init__(workers, **options)
        self.root: Folder | None = None
        self.publisher = ArtifactPublisher()  # of the flow run's page
        self._steps: list[artifacts.StepRow] = []
        self._warnings = Warnings(self.publisher)
        self._loss_scale = LossScaleMonitor()
        self._assets = AssetLineage()

    def __enter__(self) -> Self:
        log.addHandler(self._warnings)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__(*exc)
        finally:
            log.removeHandler(self._warnings)
            self.publisher.close()

    def run_step(
        self,
        function: Callable[..., Manifest],
        *arguments: Any,
        retries: Retries = Retries(),  # noqa: B008 - frozen
        **options: Any,
    ) -> Manifest:
        """Run a step function as a Prefect task of the same name; a finished step ends in the state `Cached`.

        Logs one line about the step and publishes its counts on the run page. Transient failures are retried; each
        attempt resumes from the batches that are committed.

        The arguments are those of `Runner.run_step`.
        """
        name = step_name(function)

        def step() -> Any:  # a manifest, or a state that holds one
            started = time.monotonic()
            row = artifacts.StepRow(name)
            self._steps.append(row)
            self._publish_steps()
            try:
                # The message of an error becomes the message of the task run's state.
                with redacted_errors(), explained_loss(name), translate_lost_files(self.root):
                    manifest = function(*arguments, runner=self, **options)
            except BaseException as error:
                row.state = "failed" if isinstance(error, Exception) else "stopped"
                row.seconds = time.monotonic() - started
                self._publish_steps()
                raise
            row.state, row.manifest = "cached", manifest
            if manifest.step in self.skipped:
                self._assets.add(manifest)
            else:
                row.state, row.seconds = "done", time.monotonic() - started
                self._assets.materialize(manifest)
            log.info(step_line(manifest, row.seconds))
            self._publish_steps()
            if row.state == "cached":
                message = f"done before: fingerprint {manifest.fingerprint}"
                return Completed(name="Cached", message=message, data=manifest)
            text = f"{name}: rows in and out, files"
            self.publisher.publish(f"{name}-counts", lambda: artifacts.counts(manifest), text)
            if warning := near_limit(manifest, self.limits):
                log.warning(warning)
            return manifest

        # `return_state`: without it the call would return the `Completed` state itself instead of the manifest.
        call = LocalCall(step)
        options_of_task = retry_options(name, retries)
        state = task(name=name, task_run_name=name, cache_policy=NO_CACHE, **options_of_task)(lambda: call.call())(
            return_state=True
        )
        manifest: Manifest = state.result()
        return manifest

    def input_manifest(self, folder: Folder) -> Manifest:
        """Return the manifest of a step of an earlier flow, whose asset the steps of this flow may depend on."""
        manifest = super().input_manifest(folder)
        self._assets.add(manifest, folder)
        return manifest

    def finished(self, step: Step) -> Manifest | None:
        """Return the manifest of a step that is already done; otherwise prepare the step's folder and return None."""
        self._assets.add_folder(step.name, step.folder)
        if step.name == "train" and self.root is not None:
            name_after_run_folder(self.root, step.folder)
        return super().finished(step)

    @contextlib.contextmanager
    def showing(self, stage: Stage) -> Iterator[None]:
        """Show the progress bar of a stage, whose batches become task runs of the flow in this thread."""
        step = stage.step
        condition = RetryCondition(self.stopping)
        self._batch = task(
            name=f"{step} batch",
            cache_policy=NO_CACHE,
            retries=2,
            retry_delay_seconds=[1, 5],
            retry_condition_fn=lambda *given: condition(*given),  # Prefect takes any callable, but calls only functions
        )(run_redacted)
        self._progress = StageProgress(UNITS.get(step, "document"), stage.batches, all_rows=sum(stage.rows.values()))
        self._stage, self._batch_rows = stage, {name: (0, rows) for name, rows in stage.rows.items()}
        # The task run of the step has the slots of a limit by tags; a batch would wait for them until it ends.
        # In its transaction, a batch that fails, also one that is retried, would end finished ones as `RolledBack`.
        with TagsContext(current_tags=set()), transaction(commit_mode=CommitMode.EAGER):
            self._context = contextvars.copy_context()
        self._bar = ProgressBar(f"{step} {stage.name}" if stage.name != "part" else step, self._progress)
        self._started_at = time.monotonic()
        try:
            yield
        finally:
            self._bar.close()

    def run_group(self, group: Group, where: Where) -> Outcomes:
        """Run a group of batches as a task run."""
        work = functools.partial(super().run_group, group, where)
        return self.call_task(group, lambda batch: batch(work))  # type: ignore[arg-type, return-value]  # not a coroutine

    def call_task(self, group: Group, call: Callable[[Task[..., Any]], Outcomes]) -> Outcomes:
        """Call the task of a group in a copy of the flow run's context, which a new thread does not inherit."""
        batch = self._batch.with_options(task_run_name=f"{group.step.name} {group.name}")
        return self._context.copy().run(call, batch)

    def progress(self, stage: Stage, done: int, rows: int) -> None:
        """Update the progress bars of the terminal and of the run page."""
        self._progress.done = done
        if not stage.rows:
            self._progress.rows = rows
        self._publish_progress()

    def advance(self, name: str, done: int, rows: int) -> None:
        """Update the progress bars with the rows of a running batch."""
        self._batch_rows[name] = (done, rows)
        self._progress.rows, self._progress.all_rows = map(sum, zip(*self._batch_rows.values(), strict=True))
        # The artifact belongs to the task run of the step, not to that of the batch in this thread.
        self._context.copy().run(self._publish_progress)

    def _publish_progress(self) -> None:
        self._bar.update()
        stage, now = self._stage, time.monotonic()
        key = f"{stage.step}-progress"
        # A stage that ends within UPDATE_SECONDS gets no progress artifact.
        if now - self._started_at >= UPDATE_SECONDS or self.publisher.has(key):
            text = f"{stage.step} {stage.name}: {self._progress.summary(now)}"
            percent = 100.0 * self._progress.share
            self.publisher.publish(key, lambda: percent, text, kind="progress")

    @contextlib.contextmanager
    def gpu_slot(self, devices: Sequence[str], max_jobs: int, run: str) -> Iterator[None]:
        """Hold slots on this machine's GPUs; the run page shows the wait."""
        started_at = time.monotonic()

        def on_wait(reason: str) -> None:
            log.info("waiting for a GPU slot: %s; launch.max_jobs_per_gpu allows more trainings at a time", reason)
            text = f"**Waiting for a GPU slot:** {reason}.\n"
            self.publisher.publish(GPU_QUEUE, lambda: text, "waiting for a GPU slot")

        with gpu_slot(devices, max_jobs, f"{flow_run.name} at work in {run}" if flow_run.id else run, on_wait):
            if self.publisher.has(GPU_QUEUE):
                text = f"waited {format_duration(time.monotonic() - started_at)} for a slot on {' and '.join(devices)}"
                log.info(text)
                self.publisher.publish(GPU_QUEUE, lambda: f"Training began after the run {text}.\n", text)
            yield

    def report_metrics(
        self, records: Sequence[dict[str, Any]], steps: int, sample: Mapping[str, Any] | None = None
    ) -> None:
        """Publish the progress, loss curve, last metrics and last sample text of the training."""
        if not records:
            return
        if warning := self._loss_scale.check(records):
            log.warning(warning)
        so_far, step = tuple(records), records[-1]["step"]
        text = f"training: {artifacts.training_summary(so_far, steps)}"
        self.publisher.publish("training-progress", lambda: 100.0 * step / steps, text, kind="progress")
        if len(so_far) > 1:  # one point is no curve
            page = functools.partial(artifacts.training, so_far, steps, sample)
            self.publisher.publish("training", page, text, seconds=CURVE_SECONDS)

    def _publish_steps(self) -> None:
        rows = self._steps
        self.publisher.publish(
            "steps", lambda: artifacts.steps_table(rows), artifacts.steps_summary(rows), of_step=False
        )


def run_redacted(work: Callable[[], Outcomes]) -> Outcomes:
    """Run a group of batches, as the function of a task; no secret is in the message of its error."""
    with redacted_errors():
        return work()


class LocalCall:
    """Call that stays in this process and pickles as an empty one.

    A batch sent to a cluster carries the surrounding task as its context. The arguments of the step's call, such as the
    runner, are not needed there and do not pickle.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[type["LocalCall"], tuple[None]]:
        return LocalCall, (None,)


def name_after_run_folder(root: Folder, folder: Folder) -> None:
    """End the name of a training's flow run with the fingerprint of its run folder in place of its output's name.

    An output can have many run folders.
    """
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        output, fingerprint = PurePosixPath(root.path()).name, folder.path().rpartition("-")[2]
        rename_run(f"{context.flow_run.name.removesuffix(f'-{output}')}-{fingerprint}")


def rename_run(name: str) -> None:
    """Rename the current flow run; errors of the server are ignored."""
    context = FlowRunContext.get()
    # Without the engine's own client there is no server.
    client = getattr(context, "client", None)
    if context is None or context.flow_run is None or not isinstance(client, SyncPrefectClient):
        return
    with contextlib.suppress(httpx.HTTPError, PrefectException, OSError), brief_client(RENAME_SECONDS) as brief:
        brief.set_flow_run_name(context.flow_run.id, name)
        context.flow_run.name = name
