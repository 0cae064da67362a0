"""What the batcher runs: continuations, which draw together, and searches, which take several rows each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer
from torch import Tensor

from gpt2train.generate.beam import Beam, beam_steps
from gpt2train.generate.sequence import TokenScore, TokenSequence, take
from gpt2train.generate.settings import BeamSettings


@dataclass(frozen=True)
class News:
    """What a continuation has made since it was last asked."""

    text: str
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...]


class Search(Protocol):
    """A job that decides itself how its rows go on."""

    prompt: Sequence[int]
    width: int
    """Rows it takes at most."""

    @property
    def made(self) -> int:
        """Tokens made so far."""

    def take(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Take the logits [rows, vocab] of its rows, after the prompt those of one row: which of them go on (one that
        is named twice is copied), and with what tokens. Nothing goes on where it is done."""


class Continuation:
    """A sequence that takes one row.

    Args:
        streams: whether its client wants to hear of every token, not of the end alone.
    """

    width = 1

    def __init__(self, sequence: TokenSequence, streams: bool = False) -> None:
        self.sequence, self.streams = sequence, streams
        self.prompt = sequence.prompt
        self._told = 0

    @property
    def made(self) -> int:
        """Tokens made so far."""
        return len(self.sequence.tokens)

    def news(self) -> News:
        """What was made since the last call."""
        start, self._told = self._told, len(self.sequence.tokens)
        return News(
            self.sequence.fresh(), tuple(self.sequence.tokens[start:]), tuple(self.sequence.scores[start : self._told])
        )


class BeamSearch:
    """A beam search; `beams` are its answers when it is done."""

    def __init__(
        self, prompt: Sequence[int], settings: BeamSettings, context: int, tokenizer: Tokenizer, end: int | None = None
    ) -> None:
        self.prompt, self.width = prompt, settings.beams
        self.beams: list[Beam] = []
        self._steps = beam_steps(context - len(prompt), settings, tokenizer, end)
        next(self._steps)

    @property
    def made(self) -> int:
        return sum(len(beam.tokens) for beam in self.beams)

    def take(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        try:
            return self._steps.send(logits)
        except StopIteration as over:
            self.beams = over.value
            return [], []


Job = Continuation | Search


def advance(jobs: Sequence[Job], rows: Sequence[Sequence[int]], logits: Tensor) -> list[list[tuple[int, int]]]:
    """Let every job take its rows of the logits [rows, vocab]; for each, the rows that go on and their next tokens."""
    result: list[list[tuple[int, int]]] = [[] for _ in jobs]
    plain = [(number, job.sequence) for number, job in enumerate(jobs) if isinstance(job, Continuation)]
    if plain:
        own = [rows[number][0] for number, _ in plain]
        part = logits if own == list(range(len(logits))) else logits[own]
        tokens = take([sequence for _, sequence in plain], part)
        for (number, sequence), row, token in zip(plain, own, tokens, strict=True):
            if sequence.finished is None:
                result[number] = [(row, token)]
    for number, job in enumerate(jobs):
        if not isinstance(job, Continuation):
            sources, following = job.take(logits[list(rows[number])])
            result[number] = [(rows[number][source], token) for source, token in zip(sources, following, strict=True)]
    return result


def arrange(wanted: Iterable[int]) -> list[int]:
    """Where each of the wanted rows goes when they become all there are: as many as can stay where they are.

    A decoder's rows lie without gaps, and to move one costs its whole cache: when the first of 32 rows ends, the last
    one takes its place instead of 31 moving up.
    """
    rows = list(wanted)
    places = [-1] * len(rows)
    free = set(range(len(rows)))
    for number, row in enumerate(rows):
        if row in free:
            places[number] = row
            free.remove(row)
    gaps = iter(sorted(free))
    return [place if place >= 0 else next(gaps) for place in places]
