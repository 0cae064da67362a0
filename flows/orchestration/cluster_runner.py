"""Runner of batches on a Ray or Dask cluster, with Prefect's task runners: one task run per group of batches.

A cluster is started, or joined, when the first batch runs; a run whose steps are all cached needs none. The download
stays on this machine, since its limits per host hold for one process only. Every other batch runs in a worker of the
cluster, which reads and writes the output URL and commits the batch.
"""

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import gpt2train
from flows.compat.ray import bytecode_cache, local_options, prepare_environment, start_ray
from flows.orchestration.task_runner import PrefectRunner
from flows.settings import OutputSettings
from gpt2train.errors import RunError, UserError
from gpt2train.extras import needs_extra
from gpt2train.launch.process_env import is_loopback
from gpt2train.store.folder import Folder
from tasks.core.runner import MAX_GROUPS, Group, Outcomes, Where
from tasks.core.worker_pool import SINGLE_THREADED

if TYPE_CHECKING:
    from prefect.task_runners import TaskRunner

LOCAL_ADDRESSES = ("", "auto", "local")
MODULES = {"ray": ("prefect_ray", "ray"), "dask": ("prefect_dask", "distributed")}  # of each kind's extra


class ClusterRunner(PrefectRunner):
    """Runner that executes batches in the workers of a cluster.

    Args:
        kind: type of the cluster.
        address: address of a running cluster; None starts one on this machine with `workers` workers.
        workers: worker processes of a cluster on this machine.
        **options: further options of the runner.
    """

    def __init__(
        self,
        kind: Literal["ray", "dask"],
        address: str | None = None,
        workers: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(workers, **options)
        self.kind, self.address = kind, address
        self._stack = contextlib.ExitStack()
        self._cluster: TaskRunner[Any] | None = None

    def __exit__(self, *exc: object) -> None:
        self.interrupt()
        super().__exit__(*exc)

    def start_workers(self, where: Where) -> int:
        """Start or join the cluster, unless the batches belong to this process."""
        if where == "thread":
            return super().start_workers(where)
        if self._cluster is None:
            open_cluster = ray_cluster if self.kind == "ray" else dask_cluster
            self._cluster = self._stack.enter_context(open_cluster(self.address, self.workers))
        # One waiting thread per group: a running cluster schedules all of them itself.
        return MAX_GROUPS if self.address else self.workers

    def run_group(self, group: Group, where: Where) -> Outcomes:
        """Run a group of batches as a task in a worker of the cluster, unless it belongs to this process."""
        if where == "thread" or (cluster := self._cluster) is None:
            return super().run_group(group, where)
        try:
            # Its method, not the group itself: Prefect searches dataclasses for futures.
            return self.call_task(group, lambda batch: cluster.submit(batch, {"work": group.run}).result())
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("ray", "distributed"):
                reason = " ".join(str(error).split())[:300]
                raise RunError(
                    f"the cluster failed to run {group.step.name} {group.name} ({type(error).__name__}: "
                    f"{reason}); check the memory and logs of its workers, then run again to resume"
                ) from error
            raise

    def interrupt(self) -> None:
        """Disconnect from the cluster at once, so that no thread waits for batches in flight."""
        self._cluster = None
        self._stack.close()


@contextlib.contextmanager
def ray_cluster(address: str | None, workers: int) -> Iterator["TaskRunner[Any]"]:
    """Prefect's Ray task runner, on a running cluster, or without an address on a new one with so many workers.

    Raises:
        UserError: the extra is not installed, or no cluster answers at the address.
        RunError: a new cluster did not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:  # not for a running cluster: a wrong address would be refused only after minutes
        prepare_environment()
    with _cluster_errors("ray", address):
        import ray
        from prefect_ray import RayTaskRunner
    logging.getLogger("prefect.task_runner").setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= local_options(workers)

    def open_runner() -> "TaskRunner[Any]":
        runner: TaskRunner[Any] = RayTaskRunner(address or "local", init_kwargs=options).__enter__()
        return runner

    with contextlib.ExitStack() as stack:
        if address is None:
            stack.enter_context(bytecode_cache(ray))
        with _cluster_errors("ray", address):
            runner = start_ray(open_runner) if address is None else open_runner()
        try:
            _check_release(address, lambda: ray.get(ray.remote(_release).remote(), timeout=120))
            yield runner
        finally:
            # Ray cancels the batches in flight of a driver that disconnects.
            runner.__exit__(None, None, None)
            ray.shutdown()


@contextlib.contextmanager
def dask_cluster(address: str | None, workers: int) -> Iterator["TaskRunner[Any]"]:
    """Prefect's Dask task runner; arguments and errors are those of `ray_cluster`."""
    with _cluster_errors("dask", address):
        import dask
        from prefect_dask import DaskTaskRunner
    local = {
        "n_workers": workers,
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "memory_limit": 0,  # Dask would kill a worker for memory that its batch needs
        "env": {**SINGLE_THREADED, "DASK_LOGGING__DISTRIBUTED": "error"},
    }
    for name in ("distributed", "prefect.task_runner"):
        logging.getLogger(name).setLevel(logging.ERROR)
    options: dict[str, Any] = {"address": address} if address else {"cluster_kwargs": local}
    # A daemonic worker process may not have children, and the extraction starts some.
    with dask.config.set({"distributed.worker.daemon": False}), DaskTaskRunner(**options) as runner:
        with _cluster_errors("dask", address):
            client = runner.client
        _check_release(address, lambda: client.submit(_release, pure=False).result(timeout=120))
        yield runner


def check_cluster(settings: OutputSettings, has_api: bool) -> None:
    """Check before the flow starts that the workers of a cluster can reach the output and the Prefect server.

    `has_api` says whether a Prefect server other than the embedded one is configured.

    Raises:
        UserError: the settings contradict each other, a package is missing, or workers cannot reach output or server.
    """
    kind, address, output = settings.runner, settings.cluster, Folder(settings.output)
    if kind == "local":
        if address is not None:
            raise UserError(f"--cluster {address} needs --runner ray or --runner dask")
        return
    for module in MODULES[kind]:
        if importlib.util.find_spec(module) is None:
            raise needs_extra(f"--runner {kind} (no module {module})", kind)
    if address is None or not is_remote(address):
        return
    if output.is_local and not settings.shared_disk:
        raise UserError(
            f"workers of the cluster at {address} cannot write {output.path()} on this machine; give an --output that "
            "they can reach (s3://…, gs://…), or --shared-disk if it is the same disk on every machine"
        )
    if not has_api:
        remedy = "start one that they can reach (prefect server start --host 0.0.0.0) and set PREFECT_API_URL here"
        raise UserError(f"workers of the cluster at {address} cannot reach the embedded Prefect server; {remedy}")


def is_remote(address: str) -> bool:
    """Return True if an address names another machine than this one."""
    host = (urlsplit(address).hostname if "://" in address else address.rpartition(":")[0].strip("[]")) or ""
    return address not in LOCAL_ADDRESSES and not is_loopback(host)


@contextlib.contextmanager
def _cluster_errors(kind: str, address: str | None) -> Iterator[None]:
    """Turn every error of an import or a connection into a one-line `RunError` or `UserError`."""
    try:
        yield
    except ImportError as error:
        raise needs_extra(f"--runner {kind} ({error})", kind) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        if address is None:
            raise RunError(f"no {kind} cluster started on this machine ({reason}); try --runner local") from error
        raise UserError(f"no {kind} cluster answers at {address} ({reason}); check --cluster") from error


def _release() -> tuple[str, str]:
    """Return the versions that driver and workers must share: gpt2train's, and Python's, which affects pickling."""
    return gpt2train.__version__, "{}.{}".format(*sys.version_info)


def _check_release(address: str | None, ask_worker: Callable[[], tuple[str, str]]) -> None:
    """Check that a worker of a running cluster runs the same versions as this process, by `_release` called in it.

    Raises:
        UserError: the worker runs other versions, or cannot run gpt2train.
    """
    if address is None:
        return
    ours = _release()
    try:
        theirs = tuple(ask_worker())
    except Exception as error:
        reason = " ".join(str(error).split())[-200:]
        raise UserError(
            f"a worker of the cluster at {address} cannot run gpt2train ({type(error).__name__}: {reason}); install "
            f"release {ours[0]} for Python {ours[1]} there"
        ) from error
    if theirs != ours:
        raise UserError(
            f"the workers of the cluster at {address} run gpt2train {theirs[0]} on Python {theirs[1]}, this process "
            f"runs {ours[0]} on Python {ours[1]}; install the same versions on both sides"
        )
