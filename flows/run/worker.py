"""The worker that started a flow run: when it is gone, the run ends too, and gently.

Prefect's process worker puts each flow run into a session of its own, so that `kill -9` of the worker leaves the flow
at work, where nobody can cancel it any more. Here the flow looks after its worker every second. Once it is gone the
flow sends itself SIGTERM: the training saves a checkpoint, Prefect's engine reports the run as crashed, all processes
end. A flow that cannot heed the signal is killed when its time is over, and its children end with it. A worker that is
asked to stop kills its flows before it ends; that is what the witness is for.
"""

import itertools
import logging
import os
import signal
import threading
import time

import psutil
from prefect.context import FlowRunContext

from flows.run.witness import call_witness
from gpt2train.errors import RunError

log = logging.getLogger("gpt2train")

LOOK_SECONDS = 1.0
REPORT_SECONDS = 15.0  # to tell the server how the run ended, beyond the time for the checkpoint
RUN = "PREFECT__FLOW_RUN_ID"  # in the environment of a process that was started for one flow run


def follow_worker(grace: float) -> None:
    """Let this flow run end when the worker that started it does. Nothing for a flow that was started by hand.

    Args:
        grace: seconds that a training has to save a checkpoint.

    Raises:
        RunError: the worker is gone already.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or str(context.flow_run.id) != os.environ.get(RUN):
        return
    watched = supervisors()
    if not watched:
        raise RunError("the worker that started this run is gone; start a worker, and run again")
    call_witness(str(context.flow_run.id), context.flow_run.run_count, watched[-1])
    threading.Thread(target=_watch, args=(watched, grace + REPORT_SECONDS), daemon=True).start()


def supervisors() -> list[psutil.Process]:
    """The processes between this one and its worker, the worker last: each is needed. None when it is orphaned.

    Where no worker is found (`serve()`, a container of its own), it is the parent alone.
    """
    parents = psutil.Process().parents()
    for index, parent in enumerate(parents):
        if is_worker(parent):
            return parents[: index + 1]
    # A worker makes its child the first of a session. Such a child of the first process of all was handed down.
    if os.getppid() == 1 and os.getsid(0) == os.getpid():
        return []
    return parents[:1]


def is_worker(process: psutil.Process) -> bool:
    """Whether a process is `prefect worker start …`."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return any(pair == ("worker", "start") for pair in itertools.pairwise(words))


def _watch(watched: list[psutil.Process], seconds: float) -> None:
    parent = os.getppid()
    while os.getppid() == parent and all(map(_runs, watched)):
        time.sleep(LOOK_SECONDS)
    log.warning("the worker that started this run is gone; the run saves what it has and ends")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
