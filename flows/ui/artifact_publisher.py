"""Publisher of a flow run's artifacts: a thread that creates each one once and then updates it in place.

Prefect keeps every version of a created artifact, and every event with its payload. A loss curve of 100 kB every ten
seconds would add 0.9 GB per day. So an artifact is created once per flow run and key and updated in place from then on,
without an event: a run of a week leaves one curve.

Steps never wait for the server here and continue when it does not answer: a failed update must not stop a run.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.runtime import flow_run, task_run

from flows.compat.prefect import update_artifact
from gpt2train.errors import redact, redact_values

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

log = logging.getLogger("gpt2train")

POLL_SECONDS = 0.5
UPDATE_SECONDS = 2.0  # minimum time between two updates; each is a request of 20-50 ms
MIN_INTERVAL_FACTOR = 20  # minimum interval = 20 x render time, so rendering takes at most 5 % of a core
RETRY_SECONDS = 30.0
CLOSE_SECONDS = 30.0  # for the last writes; Prefect's client tries each for a minute when its server is gone

Kind = Literal["markdown", "progress", "table"]


@dataclass
class _Entry:
    kind: Kind
    flow_run_id: UUID
    task_run_id: UUID | None
    render: Callable[[], Any]
    description: str
    seconds: float
    changed: bool = True
    due: float = 0.0
    id: UUID | None = None


class ArtifactPublisher:
    """Artifacts of one flow run. Call `publish` from any thread with the run's context, and `close` at the end."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def publish(
        self,
        key: str,
        render: Callable[[], Any],
        description: str,
        *,
        kind: Kind = "markdown",
        of_step: bool = True,
        seconds: float = UPDATE_SECONDS,
    ) -> None:
        """Create the artifact of a key, or replace its content. No-op outside a flow run.

        Args:
            key: key of the artifact: lower-case letters, digits and dashes.
            render: function that returns the data. It is called in the publisher's thread when the next update is
                due; only the newest one is called.
            description: one line of text.
            kind: type of the artifact in Prefect.
            of_step: True attaches the artifact to the running step, False to the whole flow run.
            seconds: minimum time between two updates.
        """
        run = flow_run.id
        if run is None:  # a step outside a flow
            return
        step = UUID(str(task_run.id)) if of_step and task_run.id else None
        with self._lock:
            if key in self._entries:
                entry = self._entries[key]
                entry.render, entry.description, entry.changed = render, description, True
            else:
                self._entries[key] = _Entry(kind, UUID(str(run)), step, render, description, seconds)
            if self._thread is None:
                self._stop.clear()
                # Prefect's client finds its settings in the context variables.
                run_in_context = contextvars.copy_context().run
                self._thread = threading.Thread(target=run_in_context, args=(self._run,), daemon=True)
                self._thread.start()

    def has(self, key: str) -> bool:
        """Return True if the key has an artifact."""
        return key in self._entries

    def close(self) -> None:
        """Write all changed artifacts and end the thread; what takes longer than `CLOSE_SECONDS` is not waited for."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                log.warning("the last artifacts were not written within %d s; the files are complete", CLOSE_SECONDS)
            self._thread = None

    def _run(self) -> None:
        try:
            with get_client(sync_client=True) as client:
                while not self._stop.wait(POLL_SECONDS):
                    self._write_due(client, time.monotonic())
                self._write_due(client, float("inf"))
        except Exception as error:  # noqa: BLE001 - of Prefect's client, which the result of the run does not need
            log.warning("the run page is not updated any more: %s: %s", type(error).__name__, error)

    def _write_due(self, client: "SyncPrefectClient", now: float) -> None:
        with self._lock:
            due = [(key, entry) for key, entry in self._entries.items() if entry.changed and entry.due <= now]
        for key, entry in due:
            with self._lock:
                render, description, entry.changed = entry.render, entry.description, False
            start, first = time.thread_time(), entry.id is None  # the first rendering also imports the plot library
            try:
                self._write(client, key, entry, render(), description)
                rendering = 0.0 if first else time.thread_time() - start
                wait = max(entry.seconds, MIN_INTERVAL_FACTOR * rendering)
            except Exception as error:  # noqa: BLE001 - of the server or of a picture: neither may end the other artifacts
                log.debug("the artifact %s was not written: %s", key, error)
                entry.changed, wait = True, RETRY_SECONDS
            entry.due = time.monotonic() + wait

    def _write(self, client: "SyncPrefectClient", key: str, entry: _Entry, data: Any, description: str) -> None:
        data, description = redact_values(data), redact(description)
        if entry.id is not None:
            update_artifact(client, entry.id, data, description)
            return
        runs = {"flow_run_id": entry.flow_run_id, "task_run_id": entry.task_run_id}
        created = ArtifactCreate(key=key, type=entry.kind, description=description, data=data, **runs)
        entry.id = client.create_artifact(created).id
