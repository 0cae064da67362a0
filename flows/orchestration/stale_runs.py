"""Detection of stale flow runs: each run writes its id into the output folder, and reports a killed predecessor.

A flow whose process was killed together with its worker or its machine reports nothing: Prefect lists it as running
for ever. But an output folder has one run at a time (`store/output_lock.py`). A run that holds the lock and finds
the id of another run in the folder knows that the other run has ended, and reports it as Crashed.
"""

import contextlib
import datetime
import json
import logging
import os
import socket
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelled, Crashed

from flows.compat.prefect import brief_client
from gpt2train.store.folder import Folder

log = logging.getLogger("gpt2train")

HOLDER_FILE = ".flow-run"
QUERY_SECONDS = 20.0  # for the server's answer about the previous run
CANCELLING_SECONDS = 540.0  # for a worker that lives to report the end of a cancelled run


def claim_output(root: Folder, flow_run: UUID) -> None:
    """Write a flow run's id into the output folder, whose lock it holds, and report the previous run if it was killed.

    The previous run becomes Crashed, or Cancelled if its cancellation was requested.
    """
    previous = _holder(root)
    if previous.get("flow_run") not in (None, str(flow_run)):
        _report(previous)
    holder = {"flow_run": str(flow_run), "host": socket.gethostname(), "pid": os.getpid()}
    root.write_bytes(HOLDER_FILE, json.dumps(holder).encode())


def is_claimed(root: Folder, flow_run: UUID) -> bool:
    """Return True if the last run in the output folder is this one, in a process that it had before."""
    return _holder(root).get("flow_run") == str(flow_run)


def _holder(root: Folder) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        found = json.loads(root.read_bytes(HOLDER_FILE))
        return found if isinstance(found, dict) else {}
    return {}


def _report(holder: dict[str, Any]) -> None:
    """Report the end of a run that the server lists as running; a run of another server is ignored."""
    cause = f"process {holder.get('pid')} on {holder.get('host')} was killed"
    try:
        with brief_client(QUERY_SECONDS) as client:
            run = client.read_flow_run(holder["flow_run"])  # a str works in the URL
            if is_active(run) and not _is_reported_by_others(run):
                end = report_end(client, run, cause)
                log.warning("flow run %s is now %s: %s", run.name, end.lower(), cause)
    except ObjectNotFound:
        pass
    except (httpx.HTTPError, PrefectException, OSError, ValueError) as error:
        log.warning("could not check the previous flow run %s, which may have died: %s", holder["flow_run"], error)


def _is_reported_by_others(run: FlowRun) -> bool:
    """Return True for a run that was cancelled a moment ago: its worker or its crash reporter sets the final state."""
    if run.state is None or not is_cancelling(run):
        return False
    age = datetime.datetime.now(datetime.UTC) - run.state.timestamp
    return age.total_seconds() < CANCELLING_SECONDS


def is_active(run: FlowRun) -> bool:
    """Return True if the server lists a run as Running or Cancelling."""
    return run.state is not None and run.state.type in (StateType.RUNNING, StateType.CANCELLING)


def is_cancelling(run: FlowRun) -> bool:
    """Return True if the server lists a run as Cancelling."""
    return run.state is not None and run.state.type == StateType.CANCELLING


def report_end(client: SyncPrefectClient, run: FlowRun, cause: str) -> str:
    """Set the final state of a dead run: Crashed, or Cancelled if its cancellation was requested.

    The cause names process, machine and reason, for the state's message. Returns the name of the state.
    """
    end: State[Any] = Crashed(message=f"{cause}; run again to resume")
    if is_cancelling(run):
        end = Cancelled(message="the run was cancelled, and its process has ended; run again to resume")
    client.set_flow_run_state(run.id, end, force=True)
    return str(end.name)
