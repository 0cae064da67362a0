"""Execution of steps and of their batches: skip the committed batches, run the others, commit each as it ends.

`Runner` needs no orchestrator; the flows use a subclass that shows steps and batches as Prefect task runs. The choice
of runner and its number of workers never change a byte of the outputs.
"""

import concurrent.futures
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from gpt2train.errors import RunError
from gpt2train.store.files import no_space, write_error
from gpt2train.store.folder import Folder
from gpt2train.store.lost_files import lost_files_error
from gpt2train.store.manifest import Manifest, Outcome, need_manifest
from tasks.core.gpu_queue import gpu_slot
from tasks.core.reject_limits import LimitSettings, Tally
from tasks.core.step import Environment, Step
from tasks.core.worker_pool import WorkerPool, adopt, open_pool

log = logging.getLogger("gpt2train")

Outcomes = dict[str, Outcome]  # by batch name
Where = Literal["process", "node", "thread"]

MAX_GROUPS = 300  # groups of batches per stage: thousands of task runs overload an orchestrator


@dataclass(frozen=True)
class Retries:
    """Number and delays of a step's retries, for runners that retry."""

    times: int = 2  # number of attempts after the first
    delay: float = 5.0  # seconds before the second attempt; doubled before each further one


@dataclass(frozen=True)
class Group:
    """Batches that run one after the other, each committed as it ends; picklable for cluster workers."""

    step: Step  # its folder is the first argument of `work`
    batches: tuple[tuple[str, Any], ...]  # name and item of each batch
    work: Callable[..., Outcome]  # module-level function that processes one batch
    args: tuple[Any, ...]  # arguments of `work` after folder, name and item

    @property
    def name(self) -> str:
        """Name for display, from the names of the first and last batch."""
        first, last = self.batches[0][0], self.batches[-1][0]
        return first if first == last else f"{first} to {last.rpartition('-')[2]}"

    def run(
        self, call: Callable[[Callable[[], Outcome]], Outcome] | None = None, stopping: threading.Event | None = None
    ) -> Outcomes:
        """Run the batches in this thread, or each through `call`, in another process; skip those that are committed.

        Raises:
            RunError: `stopping` was set before the last batch began, or the disk is full.
            UserError: The output was removed or made read-only.
        """
        outcomes: Outcomes = {}
        self.step.check_versions()
        for name, item in self.batches:
            if stopping is not None and stopping.is_set():
                raise RunError(f"stopped before {self.step.name} {name}; run again to go on")
            outcome = self.step.batch(name)
            if outcome is None:
                run_batch = functools.partial(self.work, self.step.folder, name, item, *self.args)
                try:
                    outcome = run_batch() if call is None else call(run_batch)
                except OSError as error:
                    if no_space(error):
                        raise write_error(error.filename or self.step.folder.url, error) from error
                    if (lost := lost_files_error(self.step.root, error)) is None:
                        raise
                    raise lost from error
                self.step.commit_batch(name, outcome)
            outcomes[name] = outcome
        return outcomes


@dataclass(frozen=True)
class Stage:
    """The batches of one stage of a step."""

    step: str
    name: str
    batches: int  # number of them that are to run
    on_outcomes: Callable[[Outcomes], None]  # gets the outcomes of ended batches; raises if the step must stop
    # Rows of each batch by its name, for batches that report progress through `Runner.advance`.
    rows: Mapping[str, int] = field(default_factory=dict)


def step_name(function: Callable[..., Manifest]) -> str:
    """Return the name of a step: that of its function."""
    return function.__name__.strip("_")


class Runner:
    """Runner on this machine: dispatching threads and a warm pool of worker processes.

    Args:
        workers: Number of worker processes. One batch more than these is in flight.
        verify: Also compare the hashes of finished outputs.
        limits: Maximum share of rejected rows for each step; None disables the check.
        environment: Treatment of outputs that were made with other versions of the packages that shape them.
    """

    is_dry_run = False  # True for a runner that runs no step and writes nothing

    def __init__(
        self,
        workers: int = 2,
        *,
        verify: bool = False,
        limits: LimitSettings | None = None,
        environment: Environment = "redo",
    ) -> None:
        self.workers, self.verify, self.limits, self.environment = workers, verify, limits, environment
        self.skipped: set[str] = set()  # names of the steps that were already done
        self.stopping = threading.Event()  # set when a batch fails or the run is interrupted; long batches poll it
        self._stopped = False
        self._pool: WorkerPool | None = None

    @property
    def pool(self) -> WorkerPool:
        """The worker processes, started on first access."""
        if self._pool is None:
            self._pool = open_pool(self.workers)
        return self._pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def run_step(
        self, function: Callable[..., Manifest], *arguments: Any, retries: Retries = Retries(), **options: Any
    ) -> Manifest:
        """Call a step's function with its arguments and this runner, which does not retry; return the manifest."""
        return function(*arguments, runner=self, **options)

    def input_manifest(self, folder: Folder) -> Manifest:
        """Return the manifest of a step of an earlier flow.

        Raises:
            RunError: The step is not finished.
        """
        return need_manifest(folder)

    def prepare(self, step: Step) -> None:
        """Hand the settings of the run on to a step."""
        step.verify, step.limits, step.environment = self.verify, self.limits, self.environment

    def finished(self, step: Step) -> Manifest | None:
        """Return the manifest of a step that is already done; otherwise prepare the step's folder and return None."""
        self.prepare(step)
        manifest = step.finished()
        if step.notice:
            log.warning(step.notice)
        if manifest is None:
            step.begin()
        else:
            self.skipped.add(step.name)
            step.complete_commit(manifest)
        return manifest

    def batches(
        self,
        step: Step,
        stage: str,
        items: Sequence[Any],
        work: Callable[..., Outcome],
        *args: Any,
        where: Where = "process",
        at_once: int | None = None,
        rows: Sequence[int] = (),
    ) -> list[Outcome]:
        """Run `work(folder, name, item, *args)` for every item and return the outcomes in the order of the items.

        Args:
            step: The step; its folder is the first argument of `work`.
            stage: Prefix of the batch names (`part` -> `part-00000`, `part-00001`, …).
            items: Inputs of the batches, one each. Their number and content must not depend on the number of workers.
            work: Module-level function; it and its arguments are pickled, unless it runs in a thread.
            args: Further arguments of `work`.
            where: `process`: in a worker process, for CPU-bound work. `node`: once per machine, for work that copies
                bytes or distributes pieces to the machine's `local_pool`; this is a thread of this process here and a
                worker on a cluster. `thread`: always in this process, for work that needs its state (rate limits of
                hosts, the user's files).
            at_once: Batches in flight; default: the number of workers, and one that waits for the first to be free.
            rows: Rows of each item, for long-running work that reports progress through `advance`.

        Returns:
            The outcome of each item, whether it was committed earlier or now.

        Raises:
            RunError: The step rejected more rows than its limit allows; committed batches stay.
        """
        names = [f"{stage}-{index:05d}" for index in range(len(items))]
        outcomes = step.batches(names)
        tally = Tally(self.limits, step.name, step.folder.url, names) if self.limits is not None else None

        def on_outcomes(found: Outcomes) -> None:
            outcomes.update(found)
            for name, outcome in found.items():
                if tally is not None:
                    tally.add(name, outcome.seen, outcome.reasons)

        on_outcomes(dict(outcomes))
        todo = [(name, item) for name, item in zip(names, items, strict=True) if name not in outcomes]
        size = -(-len(todo) // MAX_GROUPS) or 1
        chunks = [tuple(todo[start : start + size]) for start in range(0, len(todo), size)]
        groups = [Group(step, chunk, work, args) for chunk in chunks]
        rows_of = {name: count for name, count in zip(names, rows, strict=False) if name not in outcomes}
        self.dispatch(Stage(step.name, stage, len(todo), on_outcomes, rows_of), groups, where, at_once)
        return [outcomes[name] for name in names]

    def dispatch(self, stage: Stage, groups: Sequence[Group], where: Where, at_once: int | None) -> None:
        """Run groups of batches in threads, `at_once` at a time. After the first error no further one begins."""
        done = rows = 0
        self.stopping.clear()
        self._check_stopped()
        default = self.start_workers(where) if groups else 1
        executor = concurrent.futures.ThreadPoolExecutor(max_workers=min(at_once or default, len(groups) or 1))
        try:
            with self.showing(stage):
                futures = [executor.submit(self.run_group, group, where) for group in groups]
                for future in concurrent.futures.as_completed(futures):
                    found = future.result()
                    self._check_stopped()
                    stage.on_outcomes(found)
                    done += len(found)
                    rows += sum(outcome.seen for outcome in found.values())
                    self.progress(stage, done, rows)
        except BaseException:
            self.stopping.set()
            self.interrupt()
            raise
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def start_workers(self, where: Where) -> int:
        """Start the processes in which batches run; return the number of groups that are in flight by default."""
        if where != "thread":
            adopt(self.pool)
        # One more than there are workers: they have work while an ended batch is committed, and while the pages of one
        # are read here.
        return self.workers + (where != "thread")

    def run_group(self, group: Group, where: Where) -> Outcomes:
        """Run a group of batches, in a thread of its own, and return the outcomes."""
        return group.run(self.pool.call if where == "process" else None, self.stopping)

    def showing(self, stage: Stage) -> contextlib.AbstractContextManager[None]:
        """Show the progress of a stage while its batches run (hook)."""
        return contextlib.nullcontext()

    def stop(self) -> None:
        """Prevent all further batches, because another run has taken the output folder. Callable from any thread."""
        self._stopped = True
        self.stopping.set()

    def _check_stopped(self) -> None:
        if self._stopped:
            raise RunError("another run took over the output folder while this one had no access to it; run again")

    def interrupt(self) -> None:
        """Handle a failed batch or an interrupted command, before the batches in flight are waited for (hook)."""

    def progress(self, stage: Stage, done: int, rows: int) -> None:
        """Report the ended batches of a stage and the rows that they have read (hook); this runner logs them."""
        log.debug("%s: %s %d of %d, %d rows", stage.step, stage.name, done, stage.batches, rows)

    def advance(self, name: str, done: int, rows: int) -> None:
        """Report the rows that are done within a long batch that runs in a thread (hook)."""

    @contextlib.contextmanager
    def gpu_slot(self, devices: Sequence[str], max_jobs: int, run: str) -> Iterator[None]:
        """Wait for a slot on devices of this machine and hold it during a training run.

        The devices are `GPU 0`, `GPU 1`, … or `cores`, with `max_jobs` slots each; none if the run occupies none. The
        run folder is shown to those who wait.
        """
        with gpu_slot(devices, max_jobs, run, functools.partial(log.info, "waiting: %s")):
            yield

    def report_metrics(
        self, records: Sequence[dict[str, Any]], steps: int, sample: Mapping[str, Any] | None = None
    ) -> None:
        """Report a training run's metrics so far and its last sample text (hook); this runner ignores them."""
