"""Start of a Ray of this machine's own, on loopback, within limits that suit a busy machine.

Ray documents none of this: the variables below, `_node_ip_address`, and the processes that a failed start leaves.
Tested with Ray 2.60; tests of `flows/orchestration/cluster_runner.py` start a real one and look at its ports. Breaks
when: a variable is renamed (then starts fail on a busy machine, or Ray listens on every interface), or `ray.init` no
longer takes `_node_ip_address`.
"""

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from prefect.task_runners import TaskRunner

STORE_BYTES = 80 * 2**20  # Ray's shared memory: a batch passes a few kB through it; Ray requires at least 75 MiB
# Timeouts of Ray's start on this machine, as far as they can be set. Two others are constants: the raylet ends when an
# agent has not written its port within 15 s, and the node has to register within 30 s.
START_TIMEOUTS = {
    "RAY_gcs_server_port_wait_time_s": "180",
    "RAY_NUM_REDIS_GET_RETRIES": "180",
    "RAY_py_gcs_connect_timeout_s": "180",
    "RAY_gcs_rpc_server_connect_timeout_s": "180",
    "RAY_gcs_server_request_timeout_seconds": "180",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_raylet_client_connect_timeout_milliseconds": "180000",
    "RAY_worker_register_timeout_seconds": "600",
}
# With five busy processes per core, two raylets of seven hung before they started their agents.
MAX_STARTS = 3
STATUS_SECONDS = 15.0  # between two status lines of a start
# Ray 2.60 replaces 127.0.0.1 by the machine's outward address and listens on every interface, unless clusters of
# several nodes are disabled. The variable's name says Windows and macOS, but it applies to every system.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def prepare_environment() -> None:
    """Set the variables that Ray reads when it is imported; a timeout that is already set is kept."""
    for name, value in START_TIMEOUTS.items():
        os.environ.setdefault(name, value)
    os.environ.update(LOOPBACK)


def local_options(workers: int) -> dict[str, Any]:
    """Arguments of `ray.init` for a Ray of `workers` processes on 127.0.0.1."""
    return {
        "num_cpus": workers,
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
        "_node_ip_address": "127.0.0.1",
    }


def start_ray(open_runner: "Callable[[], TaskRunner[Any]]") -> "TaskRunner[Any]":
    """Start Ray on this machine in up to MAX_STARTS attempts, and print status lines while it starts.

    The function `open_runner` starts Ray and returns the task runner; the exception of its last call is raised.
    """
    import ray

    before = set(psutil.Process().children(recursive=True))
    for attempt in range(1, MAX_STARTS + 1):
        try:
            with _status_lines(before):
                return open_runner()
        except Exception as error:
            ray.shutdown()
            for process in _new_processes(before):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if attempt == MAX_STARTS:
                raise
            reason = " ".join(str(error).split())[:200]
            print(f"Ray did not start on this machine ({reason}); starting it once more", file=sys.stderr, flush=True)
    raise AssertionError("unreachable")


def _new_processes(before: Collection[psutil.Process]) -> Iterator[psutil.Process]:
    """Yield the running processes below this one that were not there before."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process not in before and process.status() != psutil.STATUS_ZOMBIE:
                yield process


@contextlib.contextmanager
def _status_lines(before: Collection[psutil.Process]) -> Iterator[None]:
    """Print a line every STATUS_SECONDS until the block ends: seconds, CPU seconds and names of the new processes."""
    done, started_at = threading.Event(), time.monotonic()

    def watch() -> None:
        while not done.wait(STATUS_SECONDS):
            cpu, names = 0.0, set()
            for process in _new_processes(before):
                with contextlib.suppress(psutil.Error):
                    times, name = process.cpu_times(), process.name()
                    cpu += times.user + times.system
                    names.add(name)
            text = f"{time.monotonic() - started_at:.0f} s, {cpu:.0f} s of CPU"
            running = ", ".join(sorted(names)) or "no process yet"
            print(f"waiting for Ray to start on this machine: {text}; {running}", file=sys.stderr, flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextlib.contextmanager
def bytecode_cache(module: ModuleType) -> Iterator[None]:
    """Let processes started in this block cache bytecode in a temporary folder, if `module` has no cached bytecode.

    Without a cache (PYTHONDONTWRITEBYTECODE, or a site-packages that is neither compiled nor writable) each of Ray's
    agents compiles everything it imports: 2.9 s of CPU instead of 0.8 s, too much for its 15 s on a busy machine.
    """
    cached = module.__spec__ and module.__spec__.cached
    if cached and Path(cached).exists():
        yield
        return
    names = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    saved = {name: os.environ.pop(name, None) for name in names}
    with tempfile.TemporaryDirectory(prefix="gpt2train-", ignore_cleanup_errors=True) as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        try:
            yield
        finally:
            for name, value in saved.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
