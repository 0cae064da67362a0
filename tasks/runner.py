"""How the batches of a step run: skip what is committed, run the rest, commit each as it ends.

The plain runner needs no orchestrator; the flows bring one that shows every batch as a Prefect task run. Which one it
is, and how many workers it has, never changes a byte of the outputs.
"""

import concurrent.futures
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from gpt2train.config import TrainSettings
from gpt2train.errors import RunError
from gpt2train.files import FULL, write_error
from tasks.limits import LimitSettings, Tally
from tasks.pool import WorkerPool, adopt
from tasks.steps import Manifest, Outcome, Step
from tasks.turns import places_of, turn

if TYPE_CHECKING:
    from tasks.launch.settings import LaunchSettings

log = logging.getLogger("gpt2train")

Outcomes = dict[str, Outcome]  # by the name of the batch
Work = Callable[[], Outcomes]
Where = Literal["process", "node", "thread"]

MOST_GROUPS = 300  # pieces of work that an orchestrator sees of one stage: thousands of task runs break a flow


@dataclass(frozen=True)
class Group:
    """Batches that run one after the other, each committed as it ends; picklable, as a cluster's worker needs it.

    Attributes:
        step: the step; its folder is the first argument of `work`.
        batches: (name, item) of each.
        work: a module-level function.
        args: what `work` takes after folder, name and item.
    """

    step: Step
    batches: tuple[tuple[str, Any], ...]
    work: Callable[..., Outcome]
    args: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Names of the first and last batch."""
        first, last = self.batches[0][0], self.batches[-1][0]
        return first if first == last else f"{first} to {last.rpartition('-')[2]}"

    def run(
        self,
        call: Callable[[Callable[[], Outcome]], Outcome] | None = None,
        stopping: threading.Event | None = None,
    ) -> Outcomes:
        """Run the batches here, or each by `call`; those that an earlier attempt committed are not run again.

        Raises:
            RunError: `stopping` was set before the last of them began, or the disk is full.
        """
        outcomes: Outcomes = {}
        for name, item in self.batches:
            if stopping is not None and stopping.is_set():
                raise RunError(f"stopped before {self.step.name} {name}; run again to go on")
            outcome = self.step.batch(name)
            if outcome is None:
                one = functools.partial(self.work, self.step.folder, name, item, *self.args)
                try:
                    outcome = one() if call is None else call(one)
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    raise write_error(error.filename or self.step.folder.url, error) from error
                self.step.commit_batch(name, outcome)
            outcomes[name] = outcome
        return outcomes


@dataclass(frozen=True)
class Stage:
    """The batches of one stage of a step.

    Attributes:
        step: name of the step.
        name: name of the stage.
        batches: how many are to be run.
        landed: takes the outcomes of batches that have ended; raises when the step is to stop.
        rows: of each batch by its name, where they tell by `Runner.advance` how far they are.
    """

    step: str
    name: str
    batches: int
    landed: Callable[[Outcomes], None]
    rows: Mapping[str, int] = field(default_factory=dict)


class Runner:
    """Runs batches on this machine: threads that wait, and a warm pool of processes that work.

    Args:
        workers: worker processes, and batches in flight at a time.
        verify: compare the hashes of finished outputs too.
        limits: what each step may reject; None does not look.

    Attributes:
        stopping: set when a batch fails or the command is interrupted; batches in threads that run long look at it.
    """

    def __init__(self, workers: int = 2, *, verify: bool = False, limits: LimitSettings | None = None) -> None:
        self.workers = workers
        self.verify = verify
        self.limits = limits
        self.skipped: set[str] = set()
        self.stopping = threading.Event()
        self._stopped = False
        self._pool: WorkerPool | None = None

    @property
    def pool(self) -> WorkerPool:
        """The worker processes, started when first asked for."""
        if self._pool is None:
            self._pool = WorkerPool(self.workers)
        return self._pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def finished(self, step: Step) -> Manifest | None:
        """The manifest of a step that is already done; otherwise the step's folder is made ready."""
        step.verify, step.limits = self.verify, self.limits
        manifest = step.finished()
        if manifest is None:
            step.begin()
        else:
            self.skipped.add(step.name)
            step.forget_finished()
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
        """Run `work(folder, name, item, *args)` for every item and return the outcomes in the items' order.

        Args:
            step: the step; its folder is the first argument of `work`.
            stage: prefix of the batch names (`part` -> `part-00000`, `part-00001`, …).
            items: one batch each. How items are cut must not depend on the number of workers.
            work: a module-level function; it and its arguments are pickled, unless it runs in a thread.
            where: `process`: in a worker process, for work that computes. `node`: in the process that stands for a
                machine, for work that copies bytes, or hands its pieces to that process's `local_pool`: a thread of
                this process here, a worker on a cluster. `thread`: in this process in any case, for work that needs
                what only this process has (the memory of hosts, the user's files).
            at_once: batches in flight; the number of workers where not given.
            rows: of each item, where the work runs long and tells by `advance` how far it is.

        Raises:
            RunError: the step rejects more than its limit allows; what is committed stays.
        """
        names = [f"{stage}-{index:05d}" for index in range(len(items))]
        outcomes = step.batches(names)
        tally = Tally(self.limits, step.name, step.folder.url, names) if self.limits is not None else None

        def landed(found: Outcomes) -> None:
            outcomes.update(found)
            for name, outcome in found.items():
                if tally is not None:
                    tally.add(name, outcome.seen, outcome.reasons)

        landed(dict(outcomes))
        todo = [(name, item) for name, item in zip(names, items, strict=True) if name not in outcomes]
        size = -(-len(todo) // MOST_GROUPS) or 1
        cuts = [tuple(todo[start : start + size]) for start in range(0, len(todo), size)]
        groups = [Group(step, cut, work, args) for cut in cuts]
        rows_of = {name: count for name, count in zip(names, rows, strict=False) if name not in outcomes}
        self.run_groups(Stage(step.name, stage, len(todo), landed, rows_of), groups, where, at_once)
        return [outcomes[name] for name in names]

    def run_groups(self, stage: Stage, groups: Sequence[Group], where: Where, at_once: int | None) -> None:
        """Run groups of batches: on this machine."""
        pool = adopt(self.pool) if where != "thread" else None
        call = pool.call if pool is not None and where == "process" else None
        todo = [(group.name, functools.partial(group.run, call, self.stopping)) for group in groups]
        self.dispatch(stage, todo, min(at_once or self.workers, len(todo) or 1))

    def dispatch(self, stage: Stage, todo: Sequence[tuple[str, Work]], at_once: int) -> None:
        """Run named pieces of work, at most `at_once` at a time. The first error stops what has not begun."""
        done = rows = 0
        self.stopping.clear()
        self._check_stopped()
        executor = concurrent.futures.ThreadPoolExecutor(max_workers=at_once)
        try:
            for future in concurrent.futures.as_completed([executor.submit(work) for _, work in todo]):
                found = future.result()
                self._check_stopped()
                stage.landed(found)
                done += len(found)
                rows += sum(outcome.seen for outcome in found.values())
                self.progress(stage, done, rows)
        except BaseException:
            self.stopping.set()
            self.interrupt()
            raise
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Let nothing more begin, from any thread: the output folder is another run's by now."""
        self._stopped = True
        self.stopping.set()

    def _check_stopped(self) -> None:
        if self._stopped:
            raise RunError("another run took the output folder over while this one was cut off from it; run again")

    def interrupt(self) -> None:
        """Told when a batch failed or the command was interrupted, before what is in flight is waited for."""

    def progress(self, stage: Stage, done: int, rows: int) -> None:
        """Told after every group of batches how many ended, and how many rows came in. The plain runner logs."""
        log.debug("%s: %s %d of %d, %d rows", stage.step, stage.name, done, stage.batches, rows)

    def advance(self, name: str, done: int, rows: int) -> None:
        """Told by a batch in a thread that runs long, many times: how many of the rows that it has to do are done."""

    @contextlib.contextmanager
    def turn(self, train: TrainSettings, launch: "LaunchSettings", run: str) -> Iterator[None]:
        """Wait until a training may use this machine's GPUs, and hold them for its length."""
        with turn(places_of(train, launch), launch.share, run, functools.partial(log.info, "waiting: %s")):
            yield

    def training(self, records: Sequence[dict[str, Any]], steps: int) -> None:
        """Told of a training run's metrics so far, every few seconds. The plain runner lets them pass."""
