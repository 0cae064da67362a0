"""A model over several processes that answers as one: the first process is told, all others follow it.

The first process says each call to all, as a few int64 numbers over gloo, and then does its share of it as the others
do (`gpt2train.parallel.part`). Nothing that is said is executed or unpickled: a kind and lists of numbers. While nobody
asks, it says now and then that it is there: who waits then neither runs into its timeout nor misses a process that
hangs. A waiting process sleeps in the kernel.
"""

import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum, auto
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.errors import RunError
from gpt2train.lifeline import LOST_CONTACT
from gpt2train.logs import last_words
from gpt2train.model.shape import Shape
from gpt2train.parallel import meeting
from gpt2train.parallel.part import Part
from gpt2train.rank import is_lost_contact

FRAME = 64  # numbers of the first message; what is longer comes in a second one
BEATS = 4  # signs of life within a timeout
GRACE = 3.0  # seconds from the loss of a process until this one ends, in which requests can be answered


class Kind(IntEnum):
    """What the first process says."""

    OPEN = auto()
    ADD = auto()
    STEP = auto()
    SELECT = auto()
    LOGITS = auto()
    SCORE = auto()
    BEAT = auto()
    END = auto()


class Line:
    """Lists of numbers from the first process to all; for all processes to make together."""

    def __init__(self, timeout: timedelta) -> None:
        self.group = dist.new_group(timeout=timeout, backend="gloo")

    def say(self, kind: int, lists: Sequence[Sequence[int]]) -> None:
        """Tell all others."""
        numbers = [kind, 0, len(lists), *map(len, lists), *(number for one in lists for number in one)]
        numbers[1] = len(numbers)
        message = torch.tensor(numbers + [0] * (FRAME - len(numbers)))
        self._broadcast(message[:FRAME])
        if len(numbers) > FRAME:
            self._broadcast(message[FRAME:])

    def hear(self) -> tuple[int, list[list[int]]]:
        """Wait for what the first process says."""
        message = torch.empty(FRAME, dtype=torch.int64)
        self._broadcast(message)
        kind, length, count = message[:3].tolist()
        if length > FRAME:
            rest = torch.empty(length - FRAME, dtype=torch.int64)
            self._broadcast(rest)
            message = torch.cat((message, rest))
        lengths, at, lists = message[3 : 3 + count].tolist(), 3 + count, []
        for size in lengths:
            lists.append(message[at : at + size].tolist())
            at += size
        return kind, lists

    def meet(self) -> None:
        """Wait until all are here."""
        dist.all_reduce(torch.zeros(1), group=self.group)

    def _broadcast(self, message: Tensor) -> None:
        dist.broadcast(message, group=self.group, group_src=0)


@torch.inference_mode()
def perform(part: Part, line: Line, kind: int, lists: Sequence[Sequence[int]]) -> Tensor | None:
    """This process's share of what was said; an answer on the first process, where there is one."""
    match kind:
        case Kind.OPEN:
            part.open(*lists[0])
        case Kind.ADD:
            return part.add([len(prompt) for prompt in lists], _padded(lists))
        case Kind.STEP:
            return part.step(torch.tensor(lists[0])[:, None])
        case Kind.SELECT:
            part.select(lists[0])
        case Kind.LOGITS:
            return part.logits(torch.tensor(lists[0])[None])
        case Kind.SCORE:
            *sequences, rows, places, targets = lists
            return part.score(_padded(sequences), *map(torch.tensor, (rows, places, targets)))
        case Kind.BEAT:
            line.meet()
    return None


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for row, numbers in enumerate(rows):
        tokens[row, : len(numbers)] = torch.tensor(numbers)
    return tokens


def follow(part: Part, line: Line) -> None:
    """Do this process's share of every call until the first process ends."""
    while True:
        kind, lists = line.hear()
        if kind == Kind.END:
            return
        perform(part, line, kind, lists)


class Lost(RunError):
    """Another process of the model is gone or hangs: it cannot answer any more."""


class Team:
    """The model as its first process sees it; may be used by several threads.

    When a process is lost, every call raises `Lost`, and this process ends with exit code 3 within seconds: the
    processes cannot be made whole again, and a service that stayed would only refuse.
    """

    def __init__(self, part: Part, line: Line, timeout: timedelta) -> None:
        self.shape: Shape = part.shape
        self.lost: str | None = None
        self.current: ParallelDecoder | None = None
        self._part, self._line = part, line
        self._lock, self._over = threading.Lock(), threading.Event()
        self._pause = timeout.total_seconds() / BEATS
        self._said = time.monotonic()
        self._heart = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._heart.start()

    def decoder(self, rows: int, context: int | None = None) -> "ParallelDecoder":
        """Room for so many rows; a decoder that was made before is over."""
        return ParallelDecoder(self, rows, min(context or self.shape.context, self.shape.context))

    def score(
        self,
        sequences: Sequence[Sequence[int]],
        rows: Sequence[int],
        places: Sequence[int],
        targets: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of each target after a place of a sequence, and whether it is the likeliest one there."""
        found = cast(Tensor, self.tell(Kind.SCORE, [*sequences, rows, places, targets]))
        return found[:, 0].float(), found[:, 1] > 0

    def tell(self, kind: Kind, lists: Sequence[Sequence[int]]) -> Tensor | None:
        """Let all processes do something together.

        Raises:
            Lost: one of them is gone, or gave no sign of life in time.
        """
        with self._lock:
            if self.lost:
                raise Lost(self.lost)
            try:
                self._line.say(kind, lists)
                answer = perform(self._part, self._line, kind, lists)
            except (RuntimeError, dist.DistError) as error:
                if not is_lost_contact(error):
                    raise
                raise self._lose(error) from error
            self._said = time.monotonic()
            return answer

    def close(self) -> None:
        """Let the others end.

        Raises:
            Lost: one of them had gone unnoticed.
        """
        self._over.set()
        self._heart.join()
        if not self.lost:
            self.tell(Kind.END, [])

    def _lose(self, error: BaseException) -> Lost:
        names = meeting.silent(True) if "timed out" in str(error).lower() else None
        who = f"{meeting.ranks(names)} gave no sign of life" if names else "another process of the model is gone"
        self.lost = f"{who}; nothing can be answered any more"
        last = threading.Timer(GRACE, _end, (self.lost,))
        last.daemon = True
        last.start()
        return Lost(self.lost)

    def _beat(self) -> None:
        while not self._over.wait(max(0.01, self._said + self._pause - time.monotonic())):
            if time.monotonic() - self._said < self._pause:
                continue
            try:
                self.tell(Kind.BEAT, [])
            except Lost:
                return


def _end(message: str) -> None:
    last_words(f"error: {message}\n")
    os._exit(LOST_CONTACT)


class ParallelDecoder:
    """A `gpt2train.generate.decoder.Decoder` whose model and rows lie on several processes."""

    def __init__(self, team: Team, rows: int, context: int) -> None:
        self.shape, self.rows, self.context = team.shape, rows, context
        self.lengths: list[int] = []
        self._team = team
        team.tell(Kind.OPEN, [[rows, context]])
        team.current = self

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        answer = self._tell(Kind.ADD, prompts)
        self.lengths += map(len, prompts)
        return cast(Tensor, answer)

    def step(self, tokens: Sequence[int]) -> Tensor:
        answer = self._tell(Kind.STEP, [tokens])
        self.lengths = [length + 1 for length in self.lengths]
        return cast(Tensor, answer)

    def select(self, sources: Sequence[int]) -> None:
        self._tell(Kind.SELECT, [sources])
        self.lengths = [self.lengths[source] for source in sources]

    def logits(self, tokens: Sequence[int]) -> Tensor:
        return cast(Tensor, self._tell(Kind.LOGITS, [tokens]))

    def _tell(self, kind: Kind, lists: Sequence[Sequence[int]]) -> Tensor | None:
        if self._team.current is not self:
            raise RuntimeError("this decoder is over: another one was made of the same model")
        return self._team.tell(kind, lists)
