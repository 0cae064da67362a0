"""Watchdog that ends a flow run gracefully when the Prefect worker that started it dies.

Prefect's process worker puts each flow run into a session of its own, so that `kill -9` of the worker leaves the flow
running with no way to cancel it. Here the flow checks every second that its worker lives. When the worker is gone the
flow sends itself SIGTERM: the training saves a checkpoint, Prefect's engine reports the run as crashed, all processes
end. A flow that does not end on the signal is killed after a grace period, and its children end with it. A worker that
is asked to stop kills its flows before it ends; `crash_reporter` covers that case.
"""

import itertools
import logging
import os
import signal
import time

import psutil
import rich.console
from prefect.client.schemas.objects import FlowRun

from flows.orchestration.crash_reporter import is_running, start_crash_reporter
from gpt2train.errors import RunError
from gpt2train.launch.rank_logs import quietly
from gpt2train.store.process import signal_after

log = logging.getLogger("gpt2train")

POLL_SECONDS = 1.0
REPORT_SECONDS = 15.0  # to report the end of the run to the server, in addition to the time for the checkpoint


def watch_worker(flow_run: FlowRun, grace: float) -> None:
    """End the flow run of this process when the worker that started it dies.

    A training has `grace` seconds to save a checkpoint.

    Raises:
        RunError: the worker is already gone.
    """
    watched = supervisors()
    if not watched:
        raise RunError("the worker that started this run is gone; start a worker, and run again")
    start_crash_reporter(flow_run, watched[-1])
    terminate_with(watched, grace + REPORT_SECONDS)


def terminate_with(watched: list[psutil.Process], seconds: float) -> None:
    """Send this process SIGTERM when one of the watched processes ends, and SIGKILL `seconds` later.

    Log lines in between must not end the process: its standard output is a pipe to the worker, and rich, which Prefect
    logs with, raises SystemExit on a broken pipe. The process would then not report how it ended.
    """
    rich.console.Console.on_broken_pipe = _on_broken_pipe  # type: ignore[assignment]  # also for existing consoles
    message = "the worker that started this run is gone; the run saves its state and ends"
    signal_after(lambda: _wait_for_end(watched), signal.SIGTERM, seconds, lambda: quietly(log.warning)(message))


def _on_broken_pipe(console: rich.console.Console) -> None:
    """Discard all further output of a console, and of everything else that writes to stdout and stderr."""
    console.quiet = True
    drop_output()


def drop_output() -> None:
    """Discard all further output of this process."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(devnull, descriptor)
    os.close(devnull)


def supervisors() -> list[psutil.Process]:
    """Return the processes from this one's parent up to its worker, the worker last; empty if this one is orphaned.

    Without a worker among the ancestors (`serve()`, a container of its own) it is the parent alone.
    """
    parents = psutil.Process().parents()
    for index, parent in enumerate(parents):
        if is_worker(parent):
            return parents[: index + 1]
    # A worker makes its child a session leader. A session leader whose parent is process 1 was reparented: an orphan.
    if os.getppid() == 1 and os.getsid(0) == os.getpid():
        return []
    return parents[:1]


def is_worker(process: psutil.Process) -> bool:
    """Return True if a process is `prefect worker start …`."""
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    return any(pair == ("worker", "start") for pair in itertools.pairwise(arguments))


def _wait_for_end(watched: list[psutil.Process]) -> None:
    parent = os.getppid()
    while os.getppid() == parent and all(is_running(one.pid, one.create_time()) for one in watched):
        time.sleep(POLL_SECONDS)
