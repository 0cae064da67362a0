"""Which flow run works in an output folder, so that the next one finds out about one that was killed.

A flow whose process was killed together with its worker, or with its machine, reports nothing: in Prefect's list it
runs for ever. But an output folder has one run at a time (`tasks/lock.py`). Whoever holds the lock and finds another
run's name there knows that this one is over, and says so.
"""

import json
import logging
import os
import socket
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from tasks.storage import Folder

log = logging.getLogger("gpt2train")

HOLDER = ".flow-run"


def take_over(root: Folder) -> None:
    """Write this flow run's name into an output folder that it has locked; report the one before, if it was killed.

    A run whose process is gone becomes Crashed, or Cancelled where that was asked for. Nothing outside a flow run.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    mine = str(context.flow_run.id)
    before = _read(root)
    if before.get("flow_run") not in (None, mine):
        _report(before)
    holder = {"flow_run": mine, "host": socket.gethostname(), "pid": os.getpid()}
    root.write_bytes(HOLDER, json.dumps(holder).encode())


def _read(root: Folder) -> dict[str, str]:
    try:
        found = json.loads(root.read_bytes(HOLDER))
        return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}
    except (FileNotFoundError, ValueError):
        return {}


def _report(holder: dict[str, str]) -> None:
    """Give a run that still counts as running its end; one that another server knows is that server's."""
    cause = f"process {holder.get('pid')} on {holder.get('host')} was killed"
    try:
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(holder["flow_run"])  # type: ignore[arg-type]  # text goes into the address
            if alive(run):
                end = report(client, run, cause)
                log.warning("flow run %s is %s now: %s", run.name, end.lower(), cause)
    except ObjectNotFound:
        pass
    except (httpx.HTTPError, ValueError) as error:
        log.warning("could not see to flow run %s, which may be over: %s", holder["flow_run"], error)


def alive(run: FlowRun) -> bool:
    """Whether a run counts as running."""
    return run.state is not None and run.state.type in (StateType.RUNNING, StateType.CANCELLING)


def report(client: SyncPrefectClient, run: FlowRun, cause: str) -> str:
    """Give a run its end: Crashed, or Cancelled where that was asked for; the state's name.

    Args:
        cause: which process is gone, on which machine, and how it went.
    """
    end: State[Any] = Crashed(message=f"{cause}; run again to go on from what is committed")
    if run.state is not None and run.state.type == StateType.CANCELLING:
        end = Cancelled(message=cause)
    client.set_flow_run_state(run.id, end, force=True)
    return str(end.name)
