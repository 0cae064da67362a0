"""GPU slots as global concurrency limits of Prefect, shown and configured on the server's Concurrency page.

There is one limit per GPU, `gpt2train HOST GPU 0`, created if it is missing. A slot is held by a lease. If a run dies,
the server frees its slot within 90 s, when the lease expires; the next run on the same machine frees it at once, since
it finds the lease in the lock file of `tasks.core.gpu_queue`. A server that lost its leases (by default they are only
in memory) would keep such a slot for ever, so slots beyond the number of live lock holders on this machine are freed.
Errors of the server never stop a training: the lock files alone keep trainings apart.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectException
from prefect.runtime import flow_run

from flows.compat.prefect import acquire_lease, renew_lease
from flows.orchestration.server import is_embedded
from flows.ui.artifact_publisher import ArtifactPublisher
from gpt2train.store.process import Heartbeat
from gpt2train.store.progress import format_duration
from tasks.core.gpu_queue import QueueMessage, Slot, gpu_slot

log = logging.getLogger("gpt2train")

LEASE_SECONDS = 60.0  # Prefect's shortest
RENEW_SECONDS = 20.0
STOP_SECONDS = 2.0  # longest wait for a renewal that is under way when the training ends
POLL_SECONDS = 2.0
ANSWER_SECONDS = 10.0  # of one request, which Prefect's client repeats; a training must not wait long for a server
STALE_SECONDS = 90.0  # lease time plus the server's interval of checks for expired leases
SERVER_ERRORS = (httpx.HTTPError, PrefectException, OSError, ValueError)  # ValueError: an answer of another version
ARTIFACT = "gpu-queue"  # key of the artifact that shows the wait on the run page


@contextlib.contextmanager
def prefect_slot(devices: Sequence[str], max_jobs: int, run: str, publisher: ArtifactPublisher) -> Iterator[None]:
    """Hold the GPU slots of a training, in the lock files of this machine and in the limits of a permanent server.

    The wait is shown in the log and on the run page. The embedded server of a command keeps no slots: no other run
    uses it, and the slot of a killed command would block the next one until its lease expires (60 s).

    Args:
        devices: names of the devices of this machine that the training occupies; empty if it occupies none.
        max_jobs: number of trainings that may share a device.
        run: run folder, shown to those who wait.
        publisher: publisher of the run page.
    """
    holder = f"{flow_run.name} at work in {run}" if flow_run.id else run
    started_at = time.monotonic()

    def on_wait(reason: str) -> None:
        log.info("waiting for a GPU slot: %s; launch.max_jobs_per_gpu allows more trainings at a time", reason)
        publisher.publish(ARTIFACT, lambda: f"**Waiting for a GPU slot:** {reason}.\n", "waiting for a GPU slot")

    with gpu_slot(devices, max_jobs, holder, on_wait) as local_slot:
        run_id = UUID(flow_run.id) if flow_run.id else None
        on_server = bool(devices) and not is_embedded()
        slots = server_slots(devices, max_jobs, local_slot, run_id, on_wait) if on_server else contextlib.nullcontext()
        with slots:
            if publisher.has(ARTIFACT):
                text = f"waited {format_duration(time.monotonic() - started_at)} for a slot on {' and '.join(devices)}"
                log.info(text)
                publisher.publish(ARTIFACT, lambda: f"Training began after the run {text}.\n", text)
            yield


@contextlib.contextmanager
def server_slots(
    devices: Sequence[str], max_jobs: int, local_slot: Slot, run: UUID | None, on_wait: QueueMessage
) -> Iterator[None]:
    """Wait for a slot of the concurrency limit of each device, and hold the slots.

    A limit below `max_jobs` is raised to it, except 0, which an operator sets to pause all trainings. Leases of killed
    runs that the slot of this machine found are released first.
    """
    names = [f"gpt2train {socket.gethostname()} {device}" for device in devices]
    settings = {"timeout": ANSWER_SECONDS}
    with get_client(sync_client=True, httpx_settings=settings) as client, contextlib.ExitStack() as held:
        try:
            for name in names:
                _ensure_limit(client, name, max_jobs)
            for stale_lease in local_slot.stale_leases:
                with contextlib.suppress(ValueError):  # any user of the machine can write these files
                    client.release_concurrency_slots_with_lease(UUID(stale_lease))
            lease = _acquire(client, names, local_slot.other_jobs, run, on_wait)
            held.enter_context(_renewed(client, names, lease))
            local_slot.record_lease(str(lease))
        except SERVER_ERRORS as error:
            log.warning("the Prefect server keeps no GPU slots (%s); the lock files of this machine still do", error)
        yield


def _ensure_limit(client: SyncPrefectClient, name: str, max_jobs: int) -> None:
    try:
        limit = client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        with contextlib.suppress(ObjectAlreadyExists, httpx.HTTPStatusError):  # another run created it meanwhile
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=max_jobs))
        return
    if 0 < limit.limit < max_jobs:
        client.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(limit=max_jobs))


def _acquire(
    client: SyncPrefectClient, names: list[str], other_jobs: int, run: UUID | None, on_wait: QueueMessage
) -> UUID:
    """Wait for one slot of every limit and return their common lease."""
    since, notified = time.monotonic(), False
    while not (lease := acquire_lease(client, names, LEASE_SECONDS, run)):
        if not notified:
            on_wait(f"the server's concurrency limit {' and '.join(names)} has no free slot")
            notified = True
        if time.monotonic() - since > STALE_SECONDS:
            _free_stale_slots(client, names, other_jobs)
            since = time.monotonic()
        time.sleep(POLL_SECONDS)
    return lease


def _free_stale_slots(client: SyncPrefectClient, names: list[str], other_jobs: int) -> None:
    """Free the slots beyond `other_jobs`, the number of other live trainings on this machine."""
    for name in names:
        limit: Any = client.read_global_concurrency_limit_by_name(name)
        if limit.active_slots > other_jobs:
            client.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(active_slots=other_jobs))
            log.warning("%s: freed %d slots of runs that ended", name, limit.active_slots - other_jobs)


@contextlib.contextmanager
def _renewed(client: SyncPrefectClient, names: list[str], lease: UUID) -> Iterator[None]:
    """Renew a lease until the block ends, then release its slots."""
    lost = threading.Event()

    def renew() -> bool:
        with contextlib.suppress(*SERVER_ERRORS):  # the server may be restarting
            if not renew_lease(client, lease, LEASE_SECONDS):
                lost.set()
        return not lost.is_set()

    heartbeat = Heartbeat(renew, RENEW_SECONDS, "gpu-slot-lease")
    try:
        yield
    finally:
        heartbeat.stop(STOP_SECONDS)
        with contextlib.suppress(*SERVER_ERRORS):
            if lost.is_set():  # a server that lost the lease counts its slots as taken
                client.release_concurrency_slots(names, 1, 1.0)
            else:
                client.release_concurrency_slots_with_lease(lease)
