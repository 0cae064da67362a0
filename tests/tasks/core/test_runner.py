"""Runner of batches: groups, threads or processes by the kind of work, each batch once."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pebble
import pytest

import tasks.core.runner
from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import Folder, Outcome
from tasks.core.runner import Group, Runner, Stage, Where
from tasks.core.step import Step
from tasks.core.worker_pool import WorkerLostError, WorkerPool, early_pool, explained_loss, local_pool, result
from tests.processes import wait_for


def note(folder: Folder, name: str, item: int) -> Outcome:
    folder.write_bytes(f"{name}.pid", str(os.getpid()).encode())
    return Outcome(seen=item, facts={"own": int(os.getpid() == _parent(folder))})


def feed(folder: Folder, name: str, item: int) -> Outcome:
    return Outcome(facts={"elsewhere": int(local_pool().call(os.getpid) != os.getpid())}, seen=item)


def fail_at(folder: Folder, name: str, item: int, calls: str, bad: int) -> Outcome:
    with Path(calls).open("a") as file:
        file.write(f"{item} ")
    if item == bad:
        raise ConnectionError("gone")
    return Outcome(seen=item)


def fill_up(folder: Folder, name: str, item: int) -> Outcome:
    with Path("/dev/full").open("wb") as file:
        file.write(b"x")
    return Outcome(seen=item)


def _parent(folder: Folder) -> int:
    return int(folder.read_bytes("parent.txt"))


def step_in(folder: Path) -> Step:
    step = Step(Folder(folder), "noted", version=1, parameters={}, inputs={})
    step.folder.write_bytes("parent.txt", str(os.getpid()).encode())
    return step


class Counting(Runner):
    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.pieces: list[str] = []
        self.steps: list[tuple[int, int, int]] = []

    def dispatch(self, stage: Stage, groups: Any, *options: Any) -> None:
        self.pieces += [group.name for group in groups]
        super().dispatch(stage, groups, *options)

    def progress(self, stage: Stage, done: int, rows: int) -> None:
        self.steps.append((done, stage.batches, rows))


def test_many_batches_are_run_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.core.runner, "MAX_GROUPS", 4)
    step = step_in(tmp_path)
    with Counting(workers=2) as runner:
        outcomes = runner.batches(step, "part", range(10), note, where="thread")
    assert [outcome.seen for outcome in outcomes] == list(range(10))
    assert runner.pieces == [f"part-{a:05d} to {b:05d}" for a, b in [(0, 2), (3, 5), (6, 8)]] + ["part-00009"]
    assert runner.steps[-1] == (10, 10, sum(range(10)))
    assert all(step.batch(f"part-{number:05d}") == outcomes[number] for number in range(10))


def test_a_failed_group_resumes_from_its_committed_batches(tmp_path: Path) -> None:
    step, calls = step_in(tmp_path), tmp_path / "calls"
    items = tuple((f"part-{number:05d}", number) for number in range(5))
    with pytest.raises(ConnectionError):
        Group(step, items, fail_at, (str(calls), 3)).run()
    outcomes = pickle.loads(pickle.dumps(Group(step, items, fail_at, (str(calls), 99)))).run()  # noqa: S301
    assert [outcome.seen for outcome in outcomes.values()] == list(range(5))
    assert calls.read_text().split() == ["0", "1", "2", "3", "3", "4"]


def test_each_batch_runs_in_a_thread_or_process_as_requested(tmp_path: Path) -> None:
    step = step_in(tmp_path)
    with Runner(workers=1) as runner:
        computed = runner.batches(step, "process", [1, 2], note)
        copied = runner.batches(step, "node", [1], note, where="node")
        fed = runner.batches(step, "fed", [1], feed, where="node")
        here = runner.batches(step, "thread", [1], note, where="thread")
        assert local_pool() is runner.pool
    assert [outcome.facts["own"] for outcome in (*computed, *copied, *here)] == [0, 0, 1, 1]
    assert fed[0].facts == {"elsewhere": 1}


def test_a_process_without_a_runner_gets_a_pool_of_one() -> None:
    with contextlib.closing(local_pool()) as pool:
        assert pool is local_pool() and pool.workers == 1
        assert pool.call(_pool_in_a_worker) == 1  # a worker's child may have children of its own
        with contextlib.closing(WorkerPool(1)):
            pass
        assert local_pool() is pool  # the end of another pool is not its own
    with contextlib.closing(local_pool()) as other:
        assert other is not pool


def _pool_in_a_worker() -> int:
    with contextlib.closing(local_pool()) as pool:
        return pool.workers


def _send_refusal(sender: Any) -> None:
    with pytest.raises(UserError) as refusal:
        local_pool()
    sender.send(str(refusal.value))


def test_a_daemonic_worker_is_refused_with_the_setting() -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    child = context.Process(target=_send_refusal, args=(sender,), daemon=True)
    child.start()
    assert "DASK_DISTRIBUTED__WORKER__DAEMON=False" in receiver.recv()
    child.join()


def is_imported(module: str) -> bool:
    return module in sys.modules


def parent_of(seconds: float) -> int:
    """Parent of the process of a worker, which uses so much CPU time before."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getppid()


def begin_and_hang(path: Path) -> None:
    path.touch()
    time.sleep(600)


def test_early_workers_share_one_import_and_see_the_environment_of_their_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("one", "two"):
        monkeypatch.setenv("SEEN_BY_A_WORKER", value)
        with early_pool(2, "tabnanny"), contextlib.closing(Runner(2).pool) as pool:
            assert pool.call(os.getenv, "SEEN_BY_A_WORKER") == value
            assert pool.call(is_imported, "tabnanny")
            parents = {call.result() for call in [pool.submit(parent_of, 0.05) for _ in range(4)]}
            if sys.platform == "linux":
                assert len(parents) == 1 and os.getpid() not in parents
            with pytest.raises(WorkerLostError, match="limit of CPU time"):
                result(pool.submit(parent_of, 60.0, cpu_seconds=0.1))


def test_early_workers_that_do_not_start_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise BrokenProcessPool

    with monkeypatch.context() as patch:
        patch.setattr("pebble.ProcessPool.schedule", broken)
        early = early_pool(1, "tabnanny")
        early.__enter__()
    with contextlib.closing(Runner(1).pool) as pool:
        assert pool.call(os.getpid) != os.getpid()
    early.__exit__(None, None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are spawned")
def test_workers_are_replaced_when_the_process_dies_from_which_they_are_forked(tmp_path: Path) -> None:
    with contextlib.closing(WorkerPool(2, "tabnanny")) as pool:
        parent = pool.call(parent_of, 0.0)
        begun = [tmp_path / name for name in "ab"]  # only a call that has begun holds no lock of the pool
        calls = [pool.submit(begin_and_hang, path) for path in begun]
        wait_for(lambda: all(path.exists() for path in begun), 120, "both calls")
        os.kill(parent, signal.SIGKILL)
        for call in calls:
            with pytest.raises(WorkerLostError):
                result(call)
        assert pool.call(parent_of, 0.0) != parent


@pytest.mark.parametrize("module", [None, "tabnanny"])
def test_a_pool_outlives_workers_that_die_between_two_calls(module: str | None) -> None:
    with contextlib.closing(WorkerPool(2, module)) as pool:
        for seconds in (0.0, 0.5):  # before and after the pool sees it
            os.kill(worker := pool.call(os.getpid), signal.SIGKILL)
            time.sleep(seconds)
            assert pool.call(os.getpid) != worker


def test_a_pool_that_breaks_before_a_call_is_sent_is_replaced_unless_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = pebble.ProcessPool.schedule

    def broken(pool: pebble.ProcessPool, *args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        pool.stop()
        return schedule(pool, *args, **options)

    with contextlib.closing(WorkerPool(1)) as pool:
        monkeypatch.setattr(pebble.ProcessPool, "schedule", broken)
        assert pool.call(len, b"xx") == 2
    with pytest.raises(BrokenProcessPool, match="the workers have ended with their run"):
        pool.call(len, b"xx")  # its workers would outlive the run


def test_no_call_waits_for_workers_that_died_before_it_was_sent() -> None:
    with contextlib.closing(WorkerPool(1)) as pool:
        calls = [pool.submit(len, b"x" * 1_000_000) for _ in range(8)]  # more than the pipe to the workers takes
        for worker in multiprocessing.active_children():  # it is about to start
            worker.kill()
        ended = calls[0].exception(timeout=120)
        assert pool.call(len, b"xx") == 2
        assert ended is None or all(isinstance(call.exception(timeout=120), BrokenProcessPool) for call in calls)


@pytest.mark.parametrize("module", [None, "tabnanny"])
def test_a_worker_does_not_run_the_script_that_starts_it(module: str | None, tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(
        "import os\nfrom tasks.core.worker_pool import WorkerPool\n"
        f"pool = WorkerPool(1, {module!r})\nprint(pool.call(os.getpid) == os.getpid(), __file__)\npool.close()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, f"False {script}\n"), done.stderr


def test_a_module_that_cannot_be_imported_early_loses_no_worker() -> None:
    with contextlib.closing(WorkerPool(1, "missing.module")) as pool:
        assert not pool.call(is_imported, "missing.module")


def test_an_early_pool_is_taken_once_by_a_runner_with_as_many_workers() -> None:
    with early_pool(1, "tabnanny"):  # nothing else imports tabnanny
        runners = [Runner(2), Runner(1), Runner(1)]
        pools = [runner.pool for runner in runners]
        assert pools[1].call(is_imported, "tabnanny") and len({id(pool) for pool in pools}) == 3
        for pool in pools:
            pool.close()


@pytest.mark.parametrize("where", ["process", "thread"])
def test_a_batch_on_a_full_disk_is_one_error_line(tmp_path: Path, where: Where) -> None:
    with Runner(workers=1) as runner, pytest.raises(RunError, match=r"no space left while writing .*: free some"):
        runner.batches(step_in(tmp_path), "part", [1], fill_up, where=where)


@pytest.mark.parametrize("module", [None, "tabnanny"])
def test_a_lost_worker_is_reported_with_its_end_and_what_resumes(module: str | None) -> None:
    ends = (
        (signal.raise_signal, signal.SIGKILL, r"was killed by SIGKILL \(out of memory\?\)"),
        (signal.raise_signal, signal.SIGTERM, "was ended by SIGTERM"),
        (os._exit, 3, r"died \(exit code 3\)"),
    )
    with contextlib.closing(WorkerPool(1, module)) as pool:
        for end, argument, said in ends:
            message = f"clean: a worker process {said}; .* the same command, or Retry, resumes"
            with pytest.raises(RunError, match=message), explained_loss("clean"):
                pool.call(end, argument)
