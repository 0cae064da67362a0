"""Continuous batching: one thread drives a batch of a decoder, which requests join and leave between its steps."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpt2train.inference.batch import Batch, Continuation, Job, TokenDelta
from gpt2train.inference.decoder import Decoder
from gpt2train.serve.errors import RETRY, ApiError, from_job_error, late

log = logging.getLogger(__name__)

Event = tuple[int, TokenDelta | None] | ApiError


@dataclass(eq=False)
class Ticket:
    """Request: its jobs, and the event loop that waits for them.

    `events` receives (job number, delta) while a streaming job runs, (job number, None) when a job is done, and an
    exception if the request ends early.
    """

    jobs: Sequence[Job]
    seconds: float
    """Time limit from now on, in seconds."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    events: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    """True once the client has left or the deadline has passed."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds


@dataclass(eq=False)
class Slot:
    """Job in the queue or in the decoder."""

    ticket: Ticket
    number: int
    job: Job


class Batcher:
    """Scheduler that runs jobs on a decoder, as many at a time as fit.

    Only its thread uses the decoder, which begins without rows. At most `queue` sequences wait; at most
    `prefill_tokens` of prompts, with padding, are read between two steps, but always one prompt. An error of a job,
    outside of the decoder, ends its request alone. If the decoder fails, whose rows are then unknown, `on_failure` is
    called from the thread, and every request is refused.
    """

    def __init__(self, decoder: Decoder, queue: int = 256, prefill_tokens: int = 512) -> None:
        self.decoder, self.queue, self.prefill_tokens = decoder, queue, prefill_tokens
        self.on_failure: Callable[[], None] = lambda: None
        self._batch = Batch(decoder)
        self.failure: BaseException | None = None
        self.steps = 0
        self._iteration_start: float | None = None  # start of the current iteration
        self._change = threading.Condition()
        self._waiting: deque[Slot] = deque()
        self._running: list[Slot] = []
        self._events: list[tuple[Ticket, Event]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for a row."""
        return sum(slot.job.width for slot in list(self._waiting))

    @property
    def rows(self) -> int:
        """Number of rows in use."""
        return sum(slot.job.width for slot in list(self._running))

    @property
    def accepting(self) -> bool:
        """True if requests are accepted."""
        return self.failure is None and not self._closing

    @property
    def iteration_seconds(self) -> float:
        """Seconds since the start of the current iteration; grows while a decoder hangs."""
        since = self._iteration_start
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Queue all jobs of a request, or none.

        Raises:
            ApiError: the queue has no space for all of them, now or ever, or requests are no longer accepted.
        """
        with self._change:
            if not self.accepting:
                raise ApiError(503, "the server is shutting down", headers=RETRY)
            width, most = sum(job.width for job in ticket.jobs), self.queue + self.decoder.rows
            if width > most:  # also of an empty queue: a 503 would be retried forever
                raise ApiError(400, f"{width} sequences (prompts x n) are above {most}, all that this server queues")
            if self.waiting + width > self.queue + max(self.decoder.rows - self.rows, 0):
                raise ApiError(503, "the queue is full; try again in a moment", headers=RETRY)
            self._waiting.extend(Slot(ticket, number, job) for number, job in enumerate(ticket.jobs))
            self._change.notify()

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a request; its rows are freed before the next step."""
        with self._change:
            ticket.cancelled = True
            self._change.notify()

    def close(self, seconds: float = 10.0) -> None:
        """Stop the thread; requests that are still waiting get an error."""
        with self._change:
            self._closing = True
            self._change.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while True:
                with self._change:
                    self._change.wait_for(lambda: self._closing or self._waiting or self._running)
                    if self._closing:
                        break
                self._iteration_start = time.monotonic()
                self._iterate()
                self._iteration_start = None
        except BaseException as error:  # whatever it is, waiting requests must get an answer
            self.failure = error
            log.critical("decoder failed, server stops: %s: %s", type(error).__name__, error, exc_info=True)
        self._end()

    def _end(self) -> None:
        """Send an error to all waiting requests."""
        with self._change:
            self._closing = True
            slots = [*self._waiting, *self._running]
            self._waiting.clear()
            self._running = []
        reason = "the model failed while it generated" if self.failure else "the server is shutting down"
        error = ApiError(500 if self.failure else 503, reason)
        self._events += [(ticket, error) for ticket in dict.fromkeys(slot.ticket for slot in slots)]
        self._deliver_events()
        if self.failure:
            self.on_failure()

    def _iterate(self) -> None:
        """Run one iteration: evict, admit and prefill, step all rows, deliver events."""
        self._evict()
        if new := self._admit():
            self._report(new, self._batch.join([slot.job for slot in new]))
            self._deliver_events()  # first tokens, one step earlier
        if self._running:
            self.steps += 1
            self._report(list(self._running), self._batch.step())
        self._deliver_events()

    def _evict(self) -> None:
        """Remove the jobs of cancelled requests and of requests past their deadline."""
        now = time.monotonic()
        with self._change:
            slots = [*self._waiting, *self._running]
            for ticket in dict.fromkeys(slot.ticket for slot in slots):
                if not ticket.cancelled and now > ticket.deadline:
                    ticket.cancelled = True
                    self._events.append((ticket, late(ticket.seconds)))
            if not any(slot.ticket.cancelled for slot in slots):
                return
            self._waiting = deque(slot for slot in self._waiting if not slot.ticket.cancelled)
            self._running = [slot for slot in self._running if not slot.ticket.cancelled]
        self._batch.drop(slot.job for slot in slots if slot.ticket.cancelled)

    def _admit(self) -> list[Slot]:
        """Take jobs from the head of the queue, as many as free rows and `prefill_tokens` allow."""
        taken: list[Slot] = []
        longest = 0
        with self._change:
            free = self.decoder.rows - self.rows
            while self._waiting and self._waiting[0].job.width <= free:
                longest = max(longest, len(self._waiting[0].job.prompt))
                if taken and longest * (len(taken) + 1) > self.prefill_tokens:
                    break
                taken.append(self._waiting.popleft())
                free -= taken[-1].job.width
            self._running += taken
        return taken

    def _report(self, slots: Sequence[Slot], ended: Sequence[Job]) -> None:
        """Finish the jobs that have ended, and stream the new tokens of the others."""
        for slot in slots:
            (self._finish if slot.job in ended else self._stream)(slot)

    def _finish(self, slot: Slot) -> None:
        with self._change:
            self._running.remove(slot)
            if slot.job.error and not slot.ticket.cancelled:
                slot.ticket.cancelled = True  # its other jobs are evicted before the next step
                self._events.append((slot.ticket, from_job_error(slot.job.error)))
                return
        self._stream(slot)
        self._events.append((slot.ticket, (slot.number, None)))

    def _stream(self, slot: Slot) -> None:
        """Send the new tokens of a job to a client that wants each as it comes."""
        if isinstance(slot.job, Continuation) and slot.job.streams:
            self._events.append((slot.ticket, (slot.number, slot.job.delta())))

    def _deliver_events(self) -> None:
        """Deliver the collected events, waking each event loop once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Event]]] = {}
        for ticket, event in self._events:
            by_loop.setdefault(ticket.loop, []).append((ticket, event))
        self._events = []
        for loop, events in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, events)


def _deliver(events: Sequence[tuple[Ticket, Event]]) -> None:
    for ticket, event in events:
        ticket.events.put_nowait(event)
