"""The artifacts of a run page: each is one row that is written in place, seldom, and by a thread of its own.

Prefect keeps every version of an artifact that is created, and every event with what it carries. A loss curve of
100 kB every ten seconds would leave 0.9 GB a day behind. So an artifact is created once a flow run and key and written
over from then on, without an event: a run of a week leaves one curve.

Steps never wait for the server here, and go on when it does not answer: what a page shows is no reason to stop.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run, task_run

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

log = logging.getLogger("gpt2train")

LOOK_SECONDS = 0.5
UPDATE_SECONDS = 2.0  # least time between two versions: each is a call of 20-50 ms
SHARE = 20  # what takes a second of a core to make is made at most every 20 s
RETRY_SECONDS = 30.0

Kind = Literal["markdown", "progress", "table"]


@dataclass
class _Entry:
    kind: Kind
    flow_run_id: UUID
    task_run_id: UUID | None
    make: Callable[[], Any]
    description: str
    changed: bool = True
    due: float = 0.0
    seconds: float = UPDATE_SECONDS
    id: UUID | None = None


class Page:
    """What the page of one flow run shows; `put` from any thread that knows its run, `close` at the end."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def put(
        self,
        key: str,
        make: Callable[[], Any],
        description: str,
        *,
        kind: Kind = "markdown",
        of_step: bool = True,
        seconds: float = UPDATE_SECONDS,
    ) -> None:
        """Show something, or show it anew, in place of what the key showed so far.

        Args:
            key: lower-case letters, digits and dashes; one artifact each.
            make: makes the data when it is due; called in the page's thread, the newest one alone.
            description: one line.
            of_step: belongs to the step that is running; False: to the whole flow run.
            seconds: least time between two versions.
        """
        run = flow_run.id
        if run is None:  # a step that is run without a flow
            return
        step = task_run.id if of_step else None
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._entries[key] = _Entry(kind, UUID(str(run)), UUID(str(step)) if step else None, make, description)
                self._entries[key].seconds = seconds
            else:
                entry.make, entry.description, entry.changed = make, description, True
            if self._thread is None:
                self._stop.clear()
                # In a copy of this context, by which Prefect's client finds its settings.
                work = contextvars.copy_context().run
                self._thread = threading.Thread(target=work, args=(self._publish,), daemon=True)
                self._thread.start()

    def shows(self, key: str) -> bool:
        """Whether there is something under this key."""
        return key in self._entries

    def close(self) -> None:
        """Write what has changed, and end."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _publish(self) -> None:
        with get_client(sync_client=True) as client:
            while not self._stop.wait(LOOK_SECONDS):
                self._write_due(client, time.monotonic())
            self._write_due(client, float("inf"))

    def _write_due(self, client: "SyncPrefectClient", now: float) -> None:
        with self._lock:
            due = [(key, entry) for key, entry in self._entries.items() if entry.changed and entry.due <= now]
        for key, entry in due:
            with self._lock:
                make, description, entry.changed = entry.make, entry.description, False
            began, first = time.thread_time(), entry.id is None  # the first time also imports what draws
            try:
                self._write(client, key, entry, make(), description)
                wait = entry.seconds if first else max(entry.seconds, SHARE * (time.thread_time() - began))
            except (httpx.HTTPError, PrefectException, OSError, ValueError) as error:  # not worth a training
                log.debug("the artifact %s was not written: %s", key, error)
                entry.changed, wait = True, RETRY_SECONDS
            entry.due = time.monotonic() + wait

    def _write(self, client: "SyncPrefectClient", key: str, entry: _Entry, data: Any, description: str) -> None:
        if entry.id is None:
            created = ArtifactCreate(
                key=key,
                type=entry.kind,
                description=description,
                data=data,
                flow_run_id=entry.flow_run_id,
                task_run_id=entry.task_run_id,
            )
            entry.id = client.create_artifact(created).id
            return
        update = ArtifactUpdate(data=data, description=description).model_dump(mode="json", exclude_unset=True)
        # Not `update_artifact`, which sends an event with the whole data besides.
        client.request("PATCH", "/artifacts/{id}", json=update, path_params={"id": entry.id})
