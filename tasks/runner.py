"""How the batches of a step run: skip what is committed, run the rest, commit each as it ends.

The plain runner needs no orchestrator; the flows bring one that shows every batch as a Prefect task run. Which one it
is, and how many workers it has, never changes a byte of the outputs.
"""

import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tasks.limits import LimitSettings, Tally
from tasks.pool import WorkerPool
from tasks.steps import Manifest, Outcome, Step

log = logging.getLogger("gpt2train")

Work = Callable[[], Outcome]


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
        self._pool: WorkerPool | None = None

    @property
    def pool(self) -> WorkerPool:
        """The worker processes, started when first asked for."""
        if self._pool is None:
            self._pool = WorkerPool(self.workers)
        return self._pool

    def __enter__(self) -> "Runner":
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
        return manifest

    def batches(
        self,
        step: Step,
        stage: str,
        items: Sequence[Any],
        work: Callable[..., Outcome],
        *args: Any,
        where: Literal["process", "thread"] = "process",
        at_once: int | None = None,
    ) -> list[Outcome]:
        """Run `work(folder, name, item, *args)` for every item and return the outcomes in the items' order.

        Args:
            step: the step; its folder is the first argument of `work`.
            stage: prefix of the batch names (`part` -> `part-00000`, `part-00001`, …).
            items: one batch each. How items are cut must not depend on the number of workers.
            work: a module-level function; in a process it and its arguments are pickled.
            where: in a worker process, or in a thread of this process (work that waits, or feeds the pool itself).
            at_once: batches in flight; the number of workers where not given.

        Raises:
            RunError: the step rejects more than its limit allows; what is committed stays.
        """
        names = [f"{stage}-{index:05d}" for index in range(len(items))]
        outcomes = {name: outcome for name in names if (outcome := step.batch(name)) is not None}
        tally = Tally(self.limits, step.name, step.folder.url, names) if self.limits is not None else None

        def landed(name: str, outcome: Outcome) -> Outcome:
            if tally is not None:
                tally.add(name, outcome)
            return outcome

        for name, outcome in outcomes.items():
            landed(name, outcome)

        def one(name: str, item: Any) -> Outcome:
            call = functools.partial(work, step.folder, name, item, *args)
            outcome = self.pool.call(call) if where == "process" else call()
            step.commit_batch(name, outcome)
            return landed(name, outcome)

        todo = [
            (name, functools.partial(one, name, item))
            for name, item in zip(names, items, strict=True)
            if name not in outcomes
        ]
        outcomes.update(self.dispatch(step.name, stage, todo, min(at_once or self.workers, len(todo) or 1)))
        return [outcomes[name] for name in names]

    def dispatch(self, step: str, stage: str, todo: Sequence[tuple[str, Work]], at_once: int) -> dict[str, Outcome]:
        """Run named pieces of work, at most `at_once` at a time. The first error stops what has not begun."""
        done: dict[str, Outcome] = {}
        self.stopping.clear()
        executor = concurrent.futures.ThreadPoolExecutor(max_workers=at_once)
        try:
            futures = {executor.submit(work): name for name, work in todo}
            for future in concurrent.futures.as_completed(futures):
                done[futures[future]] = future.result()
                self.progress(step, stage, len(done), len(todo))
        except BaseException:
            self.stopping.set()
            raise
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
        return done

    def progress(self, step: str, stage: str, done: int, total: int) -> None:
        """Told after every batch. The plain runner logs; others draw."""
        log.debug("%s: %s %d of %d", step, stage, done, total)

    def training(self, records: Sequence[dict[str, Any]], steps: int) -> None:
        """Told of a training run's metrics so far, every few seconds. The plain runner lets them pass."""
