"""Continuous batching: one thread drives a decoder, and sequences join and leave between its steps.

A job (`gpt2train.serve.jobs`) takes logits and answers tokens; the batcher gives it rows of the decoder while it runs.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpt2train.generate.decoder import Decoder
from gpt2train.serve.jobs import Continuation, Job, News, advance, arrange

log = logging.getLogger(__name__)


class Busy(Exception):
    """The queue is full."""


class Expired(Exception):
    """The request's time is over."""


class Broken(Exception):
    """The decoder failed or the server ends; nothing more is generated."""


Event = tuple[int, News | None] | Exception


@dataclass(eq=False)
class Ticket:
    """A request: its jobs, and the event loop that waits for them.

    `events` gets (job, news) while a job that streams runs, (job, None) when it is done, an exception where
    all end early.
    """

    jobs: Sequence[Job]
    deadline: float
    """Of time.monotonic()."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    events: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)
    left: bool = False
    """Whether nobody waits any more."""


@dataclass(eq=False)
class _Place:
    """A job in the queue or in the decoder, with the rows it holds there now and the tokens that come next in them."""

    ticket: Ticket
    number: int
    job: Job
    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Batcher:
    """Runs jobs on a decoder, as many at a time as fit.

    Args:
        queue: sequences that may wait.
        prefill_tokens: prompt tokens, padding included, read between two steps; one prompt at least.
        on_failure: called from the thread where the decoder fails; after that every request is refused.
    """

    def __init__(
        self,
        decoder: Decoder,
        queue: int = 256,
        prefill_tokens: int = 512,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.decoder, self.queue, self.prefill_tokens, self.on_failure = decoder, queue, prefill_tokens, on_failure
        self.failure: BaseException | None = None
        self.steps = 0
        self._since: float | None = None  # when the present turn began
        self._change = threading.Condition()
        self._waiting: deque[_Place] = deque()
        self._running: list[_Place] = []
        self._events: list[tuple[Ticket, Event]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a row."""
        return sum(place.job.width for place in list(self._waiting))

    @property
    def rows(self) -> int:
        """Rows that are taken."""
        return sum(place.job.width for place in list(self._running))

    @property
    def works(self) -> bool:
        """Whether requests are taken."""
        return self.failure is None and not self._closing

    @property
    def turn_seconds(self) -> float:
        """How long the present turn has taken: a decoder that hangs shows here."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Put all jobs of a request into the queue, or none.

        Raises:
            Busy: they do not fit in.
            Broken: nothing is taken any more.
        """
        with self._change:
            if not self.works:
                raise Broken("the server is ending")
            width = sum(job.width for job in ticket.jobs)
            if self.waiting + width > self.queue + max(self.decoder.rows - self.rows, 0):
                raise Busy("the queue is full; try again in a moment")
            self._waiting.extend(_Place(ticket, number, job) for number, job in enumerate(ticket.jobs))
            self._change.notify()

    def leave(self, ticket: Ticket) -> None:
        """Forget a request; its rows are free before the next step."""
        with self._change:
            ticket.left = True
            self._change.notify()

    def close(self, seconds: float = 10.0) -> None:
        """End the thread; whoever still waits is told so."""
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
                self._since = time.monotonic()
                self._turn()
                self._since = None
        except BaseException as error:  # whatever it was, those who wait must hear of it
            self.failure = error
            log.critical("the decoder failed, the service ends: %s: %s", type(error).__name__, error, exc_info=True)
        self._end()

    def _end(self) -> None:
        """Tell everybody that nothing more comes."""
        with self._change:
            self._closing = True
            places = [*self._waiting, *self._running]
            self._waiting.clear()
            self._running = []
        reason = "the model failed while it generated" if self.failure else "the server is ending"
        self._events += [(ticket, Broken(reason)) for ticket in dict.fromkeys(place.ticket for place in places)]
        self._tell()
        if self.failure:
            self.on_failure()

    def _turn(self) -> None:
        """Let go, take in, one step for everybody, and tell of it."""
        self._let_go()
        new = self._take_in()
        if new:
            self._begin(new)
            self._tell()  # of first tokens, a step earlier
        if self._running:
            self._step()
        self._tell()

    def _let_go(self) -> None:
        """Take out the jobs of those who left or whose time is over."""
        now = time.monotonic()
        with self._change:
            places = [*self._waiting, *self._running]
            for ticket in dict.fromkeys(place.ticket for place in places):
                if not ticket.left and now > ticket.deadline:
                    ticket.left = True
                    self._events.append((ticket, Expired()))
            if not any(place.ticket.left for place in places):
                return
            self._waiting = deque(place for place in self._waiting if not place.ticket.left)
        with self._change:
            self._running = [place for place in self._running if not place.ticket.left]
        self._settle([[*zip(place.rows, place.tokens, strict=True)] for place in self._running])

    def _take_in(self) -> list[_Place]:
        """The jobs at the head of the queue that fit in, no more prompt tokens than are read at once."""
        taken: list[_Place] = []
        longest = 0
        with self._change:
            free = self.decoder.rows - self.rows
            while self._waiting and self._waiting[0].job.width <= free:
                longest = max(longest, len(self._waiting[0].job.prompt))
                if taken and longest * (len(taken) + 1) > self.prefill_tokens:
                    break
                taken.append(self._waiting.popleft())
                free -= taken[-1].job.width
            self._running += taken  # as yet without rows
        return taken

    def _begin(self, new: list[_Place]) -> None:
        """Read prompts, and the first token of each."""
        going = []
        for place in new:
            if isinstance(place.job, Continuation):
                sequence = place.job.sequence
                if sequence.settings.prompt_log_probs:
                    logits = self.decoder.logits(place.job.prompt)
                    sequence.score_prompt(logits)
                    if sequence.settings.max_new_tokens == 1:  # what scores texts over HTTP asks for, and drops
                        sequence.take(logits[-1])
                if sequence.finished:
                    self._finish(place)
                    continue
            going.append(place)
        if going:
            first = len(self.decoder.lengths)
            logits = self.decoder.add([place.job.prompt for place in going])
            others = [place for place in self._running if place.rows]
            kept = [[*zip(place.rows, place.tokens, strict=True)] for place in others]
            made = advance([place.job for place in going], [[i] for i in range(len(going))], logits)
            kept += [[(first + row, token) for row, token in pairs] for pairs in made]
            self._go_on(others + going, kept)

    def _step(self) -> None:
        """One more token for every row."""
        self.steps += 1
        tokens = [0] * len(self.decoder.lengths)
        for place in self._running:
            for row, token in zip(place.rows, place.tokens, strict=True):
                tokens[row] = token
        places = list(self._running)
        made = advance([place.job for place in places], [place.rows for place in places], self.decoder.step(tokens))
        self._go_on(places, made)

    def _go_on(self, places: Sequence[_Place], kept: Sequence[list[tuple[int, int]]]) -> None:
        """Keep the rows that go on, with their next tokens, and finish what has none."""
        for place, pairs in zip(places, kept, strict=True):
            if not pairs:
                self._finish(place)
            elif isinstance(place.job, Continuation) and place.job.streams:
                self._events.append((place.ticket, (place.number, place.job.news())))
        self._settle([pairs for pairs in kept if pairs])

    def _settle(self, kept: Sequence[list[tuple[int, int]]]) -> None:
        """Make the rows named in `kept`, of each running job, all that there are."""
        sources = [row for pairs in kept for row, _ in pairs]
        at = arrange(sources)
        if sorted(sources) != list(range(len(self.decoder.lengths))):
            moved = [0] * len(sources)
            for source, row in zip(sources, at, strict=True):
                moved[row] = source
            self.decoder.select(moved)
        rows = iter(at)
        for place, pairs in zip(self._running, kept, strict=True):
            place.rows, place.tokens = [next(rows) for _ in pairs], [token for _, token in pairs]

    def _finish(self, place: _Place) -> None:
        with self._change:
            self._running.remove(place)
        if isinstance(place.job, Continuation) and place.job.streams:
            self._events.append((place.ticket, (place.number, place.job.news())))
        self._events.append((place.ticket, (place.number, None)))

    def _tell(self) -> None:
        """Wake the event loop once for all that happened in a turn."""
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
