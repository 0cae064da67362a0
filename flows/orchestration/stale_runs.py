"""Detection of stale flow runs: each run writes its id into the output folder, and reports a killed predecessor.

A flow whose process was killed together with its worker or its machine reports nothing: Prefect lists it as running
for ever. But an output folder has one run at a time (`tasks/core/output_lock.py`). A run that holds the lock and finds
the id of another run in the folder knows that the other run has ended, and reports it as Crashed.
"""

import contextlib
import json
import logging
import os
import socket
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from tasks.core.storage import Folder

log = logging.getLogger("gpt2train")

HOLDER_FILE = ".flow-run"


def claim_output(root: Folder, flow_run: UUID) -> None:
    """Write a flow run's id into the output folder, whose lock it holds, and report the previous run if it was killed.

    The previous run becomes Crashed, or Cancelled if its cancellation was requested.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        previous = json.loads(root.read_bytes(HOLDER_FILE))
        if isinstance(previous, dict) and previous.get("flow_run") not in (None, str(flow_run)):
            _report(previous)
    holder = {"flow_run": str(flow_run), "host": socket.gethostname(), "pid": os.getpid()}
    root.write_bytes(HOLDER_FILE, json.dumps(holder).encode())


def _report(holder: dict[str, Any]) -> None:
    """Report the end of a run that the server lists as running; a run of another server is ignored."""
    cause = f"process {holder.get('pid')} on {holder.get('host')} was killed"
    try:
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(holder["flow_run"])  # a str works in the URL
            if is_active(run):
                end = report_end(client, run, cause)
                log.warning("flow run %s is now %s: %s", run.name, end.lower(), cause)
    except ObjectNotFound:
        pass
    except (httpx.HTTPError, ValueError) as error:
        log.warning("could not check the previous flow run %s, which may have died: %s", holder["flow_run"], error)


def is_active(run: FlowRun) -> bool:
    """Return True if the server lists a run as Running or Cancelling."""
    return run.state is not None and run.state.type in (StateType.RUNNING, StateType.CANCELLING)


def report_end(client: SyncPrefectClient, run: FlowRun, cause: str) -> str:
    """Set the final state of a dead run: Crashed, or Cancelled if its cancellation was requested.

    The cause names process, machine and reason, for the state's message. Returns the name of the state.
    """
    end: State[Any] = Crashed(message=f"{cause}; run again to resume")
    if run.state is not None and run.state.type == StateType.CANCELLING:
        end = Cancelled(message=cause)
    client.set_flow_run_state(run.id, end, force=True)
    return str(end.name)
