"""Turns at the GPUs as concurrency limits of Prefect: seen on the server's Concurrency page, and set there.

A limit is made when it is missing, one a GPU: `gpt2train HOST GPU 0`. It is held by a lease, so that the server takes
it back from a run that died, within a minute and a half; the next run on the same machine gives it back at once, for it
finds the lease in the file of `tasks.turns`. A server that forgot its leases (they lie in its memory unless it is told
otherwise) would keep such a slot for ever; the files know better, so a slot that no process of this machine stands for
is freed. What goes wrong with the server stops no training: the files hold it apart from others by themselves.
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
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.runtime import flow_run

from flows.server import is_embedded
from flows.show.pace import clock
from flows.show.page import Page
from gpt2train.config import TrainSettings
from tasks.launch.settings import LaunchSettings
from tasks.turns import Turn, Waiting, places_of, turn

log = logging.getLogger("gpt2train")

LEASE_SECONDS = 60.0  # Prefect's shortest
RENEW_SECONDS = 20.0
LOOK_SECONDS = 2.0
STALE_SECONDS = 90.0  # a lease and the server's look for those that ran out; longer, and nobody holds the slot
SERVER_SILENT = (httpx.HTTPError, OSError)


def limit_of(place: str) -> str:
    """Name of the limit for a place of this machine."""
    return f"gpt2train {socket.gethostname()} {place}"


@contextlib.contextmanager
def prefect_turn(train: TrainSettings, launch: LaunchSettings, run: str, page: Page) -> Iterator[None]:
    """A training's turn on this machine: by the files of the machine and by the limits of a server that lasts.

    What is waited for is told in the log and on the run page. A command's own server keeps no turns: nobody else asks
    it, and the slot of a command that was killed would hold up the next one for the minute of its lease.
    """
    places = places_of(train, launch)
    who = f"{flow_run.name} at work in {run}" if flow_run.id else run
    began = time.monotonic()

    def waiting(what: str) -> None:
        log.info("waiting for a turn: %s; launch.share lets more than one train at a time", what)
        page.put("turn", lambda: f"**Waiting for a turn to train:** {what}.\n", "waiting for a turn to train")

    with turn(places, launch.share, who, waiting) as here:
        mine = UUID(flow_run.id) if flow_run.id else None
        with slots([] if is_embedded() else places, launch.share, here, mine, waiting):
            if page.shows("turn"):
                words = f"waited {clock(time.monotonic() - began)} for a turn on {' and '.join(places)}"
                log.info(words)
                page.put("turn", lambda: f"Training began after the run {words}.\n", words)
            yield


@contextlib.contextmanager
def slots(places: Sequence[str], share: int, here: Turn, run: UUID | None, waiting: Waiting) -> Iterator[None]:
    """Wait for a slot of the limit of each place, and hold it.

    Args:
        places: on this machine; their files are held.
        share: how many may be at one place; a limit that allows fewer is raised, but for 0, by which an operator lets
            nothing begin.
        here: the turn on this machine; a killed run's slot, of which it knows, is given back first.
        run: the flow run.
        waiting: told what is waited for.
    """
    names = [limit_of(place) for place in places]
    if not names:
        yield
        return
    with contextlib.ExitStack() as held:
        client = held.enter_context(get_client(sync_client=True))
        lease: UUID | None = None
        try:
            for name in names:
                _make(client, name, share)
            for left in here.left:
                with contextlib.suppress(ValueError):  # anyone on the machine can write there
                    client.release_concurrency_slots_with_lease(UUID(left))
            lease = _acquire(client, names, here.others, run, waiting)
            here.note(str(lease))
        except SERVER_SILENT as error:
            log.warning("the Prefect server keeps no turns (%s); those on this machine are kept all the same", error)
        if lease is not None:
            held.callback(_release, client, names, lease, _keep(held, lease))
        yield


def _make(client: SyncPrefectClient, name: str, share: int) -> None:
    try:
        limit = client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        with contextlib.suppress(ObjectAlreadyExists, httpx.HTTPStatusError):  # another run made it in between
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=share))
        return
    if 0 < limit.limit < share:
        client.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(limit=share))


def _acquire(
    client: SyncPrefectClient, names: list[str], others: int, run: UUID | None, waiting: Waiting
) -> UUID | None:
    """The lease of a slot of every limit."""
    holder = ConcurrencyLeaseHolder(type="flow_run", id=run) if run else None
    since, told = time.monotonic(), False
    while True:
        try:
            answer = client.increment_concurrency_slots_with_lease(names, 1, "concurrency", LEASE_SECONDS, holder)
            return UUID(answer.json()["lease_id"])
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (422, 423):  # more than the limit allows at all; taken
                raise
        if not told:
            waiting(f"the server's concurrency limit {' and '.join(names)} has no free slot")
            told = True
        if time.monotonic() - since > STALE_SECONDS:
            _free(client, names, others)
            since = time.monotonic()
        time.sleep(LOOK_SECONDS)


def _free(client: SyncPrefectClient, names: list[str], others: int) -> None:
    """Count anew who holds slots: the others on this machine whose process lives."""
    for name in names:
        limit: Any = client.read_global_concurrency_limit_by_name(name)
        if limit.active_slots > others:
            log.warning("%s: %d slots are held by runs that ended; freed", name, limit.active_slots - others)
            client.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(active_slots=others))


def _keep(held: contextlib.ExitStack, lease: UUID) -> threading.Event:
    """Renew a lease from a thread until the stack is left; the event tells that the server forgot it."""
    stop, lost = threading.Event(), threading.Event()

    def renew() -> None:
        with get_client(sync_client=True) as client:
            while not stop.wait(RENEW_SECONDS):
                try:
                    client.renew_concurrency_lease(lease, LEASE_SECONDS)
                except httpx.HTTPStatusError as error:
                    if error.response.status_code == 410:
                        lost.set()
                        return
                except SERVER_SILENT:
                    continue  # a server that restarts; the next try may reach it

    thread = threading.Thread(target=renew, name="turns", daemon=True)
    thread.start()
    held.callback(thread.join, 2.0)
    held.callback(stop.set)
    return lost


def _release(client: SyncPrefectClient, names: list[str], lease: UUID, lost: threading.Event) -> None:
    """Give the slots back; also those whose lease the server forgot, which it would count as taken."""
    with contextlib.suppress(*SERVER_SILENT):
        if lost.is_set():
            client.release_concurrency_slots(names, 1, 1.0)
        else:
            client.release_concurrency_slots_with_lease(lease)
