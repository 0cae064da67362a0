"""Batches on a Ray or Dask cluster, by Prefect's own task runners: one task run a group of batches, as on one machine.

A cluster is started, or joined, with the first batch that has to run; a run whose steps are all cached needs none.
What has to stay on this machine stays: the download, whose limits per host hold for one process only. Every other
batch runs in a worker, reads and writes the output URL from there, and records itself as committed.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from prefect.tasks import Task

import gpt2train
from flows.run.orchestrate import PrefectRunner
from gpt2train.errors import RunError, UserError
from tasks.limits import LimitSettings
from tasks.pool import SINGLE_THREADED
from tasks.runner import Group, Outcomes, Stage, Where, Work

if TYPE_CHECKING:
    from prefect.task_runners import TaskRunner

RAY_STORE = 80 * 2**20  # bytes of Ray's shared memory: what goes through it here is a few kB a batch; Ray's least is 75
LOOPBACK = ("localhost", "::1")
LOCAL = ("", "auto", "local")


class Parcel:
    """A group of batches on its way to a worker. Not a dataclass: Prefect looks for futures inside those."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def __call__(self) -> Outcomes:
        return self.group.run()


class ClusterRunner(PrefectRunner):
    """Runs batches in the workers of a cluster.

    Args:
        kind: which cluster.
        address: of a running one; None starts one on this machine with `workers` workers.
    """

    def __init__(
        self,
        kind: Literal["ray", "dask"],
        address: str | None = None,
        workers: int = 2,
        *,
        verify: bool = False,
        limits: LimitSettings | None = None,
    ) -> None:
        super().__init__(workers, verify=verify, limits=limits)
        self.kind, self.address = kind, address
        self._stack = contextlib.ExitStack()
        self._cluster: TaskRunner[Any] | None = None

    def __exit__(self, *exc: object) -> None:
        self._leave()
        super().__exit__(*exc)

    def run_groups(self, stage: Stage, groups: Sequence[Group], where: Where, at_once: int | None) -> None:
        """Run groups of batches in the cluster, unless they belong to this process."""
        if where == "thread":
            super().run_groups(stage, groups, where, at_once)
        elif groups:
            self._join()
            # One waiting thread each: an existing cluster knows best how many it can take.
            most = at_once or (len(groups) if self.address else self.workers)
            self.dispatch(stage, [(group.name, Parcel(group)) for group in groups], min(most, len(groups)))

    def start(self, batch: Task[..., Any], work: Work) -> Outcomes:
        """Run a task: in a worker of the cluster, and wait for it."""
        if not isinstance(work, Parcel) or self._cluster is None:
            return super().start(batch, work)
        try:
            outcomes: Outcomes = self._cluster.submit(batch, {"work": work}).result()
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("ray", "distributed"):
                first = " ".join(str(error).split())[:300]
                raise RunError(
                    f"the cluster gave up on {work.group.step.name} {work.group.name} ({type(error).__name__}: "
                    f"{first}); look at its workers' memory and logs, then run again to go on"
                ) from error
            raise
        return outcomes

    def interrupt(self) -> None:
        """Let go of the cluster at once, so that nobody waits for batches whose answer is not wanted any more."""
        self._leave()

    def _join(self) -> None:
        if self._cluster is None:
            open_cluster = ray_cluster if self.kind == "ray" else dask_cluster
            self._cluster = self._stack.enter_context(open_cluster(self.address, self.workers))

    def _leave(self) -> None:
        self._cluster = None
        self._stack.close()


@contextlib.contextmanager
def ray_cluster(address: str | None, workers: int) -> Iterator["TaskRunner[Any]"]:
    """Prefect's Ray runner, on a cluster of this machine or on a running one.

    Raises:
        UserError: the extra is not installed, or there is no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise UserError(_missing("ray", error)) from error
    logging.getLogger("prefect.task_runner").setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"num_cpus": workers, "include_dashboard": False, "object_store_memory": RAY_STORE}
        options |= {"_node_ip_address": "127.0.0.1"}
    with _reaching("ray", address):
        runner = RayTaskRunner(address or "local", init_kwargs=options).__enter__()
    try:
        _check_release(address, lambda: ray.get(ray.remote(_release).remote(), timeout=120))
        yield runner
    finally:
        # Batches in flight end with the connection: Ray cancels what a driver that left had begun.
        runner.__exit__(None, None, None)
        ray.shutdown()


@contextlib.contextmanager
def dask_cluster(address: str | None, workers: int) -> Iterator["TaskRunner[Any]"]:
    """Prefect's Dask runner, on a cluster of this machine or on a running one.

    Raises:
        UserError: the extra is not installed, or there is no such cluster.
    """
    try:
        import dask
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise UserError(_missing("dask", error)) from error
    local = {
        "n_workers": workers,
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "memory_limit": 0,  # Dask would end a worker for memory that the batch is meant to take
        "env": {**SINGLE_THREADED, "DASK_LOGGING__DISTRIBUTED": "error"},
    }
    for name in ("distributed", "prefect.task_runner"):
        logging.getLogger(name).setLevel(logging.ERROR)
    options: dict[str, Any] = {"address": address} if address else {"cluster_kwargs": local}
    # A daemon may have no children, which the extraction needs.
    with dask.config.set({"distributed.worker.daemon": False}), DaskTaskRunner(**options) as runner:
        with _reaching("dask", address):
            client = runner.client
        _check_release(address, lambda: client.submit(_release, pure=False).result(timeout=120))
        yield runner


def check_cluster(kind: str, address: str | None, local_output: str | None, shared_disk: bool, has_api: bool) -> None:
    """Find before anything starts what would keep workers on other machines from working.

    Args:
        kind: the runner: local, ray or dask.
        address: of a running cluster.
        local_output: the output where it is a local path; None on an object store.
        shared_disk: the user says that a local path is the same disk on every machine.
        has_api: whether a Prefect server other than the embedded one is named.

    Raises:
        UserError: one thing is missing.
    """
    if kind == "local":
        if address is not None:
            raise UserError(f"--cluster {address} needs --runner ray or --runner dask")
        return
    if kind == "ray":
        _installed("ray", "prefect_ray", "ray")
    else:
        _installed("dask", "prefect_dask", "distributed")
    if address is None or not is_remote(address):
        return
    if local_output is not None and not shared_disk:
        raise UserError(
            f"workers of the cluster at {address} cannot write {local_output} on this machine; give an --output that "
            "they reach (s3://…, gs://…), or --shared-disk when it is the same disk everywhere"
        )
    if not has_api:
        raise UserError(
            f"workers of the cluster at {address} cannot reach the embedded Prefect server; start one that they reach "
            "(prefect server start --host 0.0.0.0) and set PREFECT_API_URL here"
        )


def is_remote(address: str) -> bool:
    """Whether an address names another machine than this one."""
    host = (urlsplit(address).hostname if "://" in address else address.rpartition(":")[0].strip("[]")) or ""
    return address not in LOCAL and host not in LOOPBACK and not host.startswith("127.")


def _installed(extra: str, *modules: str) -> None:
    import importlib.util

    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise UserError(_missing(extra, f"no module {module}"))


def _missing(extra: str, error: object) -> str:
    return f"--runner {extra} needs packages that are not installed ({error}); install gpt2train[{extra}]"


@contextlib.contextmanager
def _reaching(kind: str, address: str | None) -> Iterator[None]:
    """Turn the many errors of a cluster that is not there into one line."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        if address is None:
            raise RunError(f"the {kind} cluster of this machine did not start ({said}); try --runner local") from error
        raise UserError(f"no {kind} cluster answers at {address} ({said}); check --cluster") from error


def _release() -> tuple[str, str]:
    """What must be the same on both sides: our release, and the Python that pickles."""
    return gpt2train.__version__, "{}.{}".format(*sys.version_info)


def _check_release(address: str | None, ask: Callable[[], tuple[str, str]]) -> None:
    """Ask a worker of a running cluster what it runs.

    Raises:
        UserError: another release, or none.
    """
    if address is None:
        return
    ours = _release()
    try:
        theirs = tuple(ask())
    except Exception as error:
        said = " ".join(str(error).split())[-200:]
        raise UserError(
            f"a worker of the cluster at {address} cannot run gpt2train ({type(error).__name__}: {said}); install "
            f"release {ours[0]} for Python {ours[1]} there"
        ) from error
    if theirs != ours:
        raise UserError(
            f"the workers of the cluster at {address} run gpt2train {theirs[0]} on Python {theirs[1]}, here it is "
            f"{ours[0]} on Python {ours[1]}; install the same on both sides"
        )
