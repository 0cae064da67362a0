"""Batch of jobs in one decoder: continuations, which are sampled together, and others, each with several rows.

A job takes logits and returns tokens; jobs join and end independently.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gpt2train.inference.decoder import Decoder
from gpt2train.inference.sequence import TokenScore, TokenSequence, sample_next

Pairs = Sequence[tuple[int, int]]
"""Rows of a decoder, each with the token that follows."""


class Job(Protocol):
    """Work of a batch on one prompt."""

    prompt: Sequence[int]
    width: int
    """Largest number of rows."""
    error: Exception | None
    """Reason for which the job ended early."""

    @property
    def context_tokens(self) -> Sequence[int]:
        """Tokens to read before the first step."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens generated so far."""

    def advance(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Advance by one token.

        Args:
            logits: logits [rows, vocab] of its rows; after the prompt it has one row.

        Returns:
            The rows that continue, where a row listed twice is copied, and the next token of each; both empty when
            the job is done.
        """


@dataclass(frozen=True)
class TokenDelta:
    """New text and tokens of a continuation since the previous delta."""

    text: str
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...]


class Continuation:
    """Sampled continuation of a prompt, in one row; `streams` to send an event per token instead of one at the end."""

    width: int = 1

    def __init__(self, sequence: TokenSequence, streams: bool = False) -> None:
        self.sequence, self.streams = sequence, streams
        self.error: Exception | None = None
        self.prompt: Sequence[int] = sequence.prompt
        self._sent = 0

    @property
    def context_tokens(self) -> Sequence[int]:
        """Tokens to read: the last ones of a text that is longer than the context."""
        return self.sequence.context_tokens

    @property
    def num_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.sequence.tokens)

    def advance(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Sample one token by itself; `gpt2train.inference.batch.advance` samples those of several together."""
        self.sequence.sample_next(logits[0])
        return ([], []) if self.sequence.finished else ([0], [self.sequence.tokens[-1]])

    def read(self, decoder: Decoder) -> bool:
        """Score the prompt if its log-probabilities are wanted; return True if no token is left to generate."""
        if self.sequence.settings.prompt_log_probs:
            logits = decoder.logits(self.context_tokens)
            try:
                self.sequence.score_prompt(logits)
                if self.sequence.settings.max_new_tokens == 1:  # scoring clients ask for one token and drop it
                    self.sequence.sample_next(logits[-1])
            except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs go on
                self.error = error
        return self.sequence.finished is not None or self.error is not None

    def delta(self) -> TokenDelta:
        """Return the text and tokens generated since the last call."""
        start, self._sent = self._sent, len(self.sequence.tokens)
        tokens, scores = self.sequence.tokens[start:], self.sequence.scores[start : self._sent]
        return TokenDelta(self.sequence.pop_delta(), tuple(tokens), tuple(scores))


class Batch:
    """Running jobs of a decoder.

    Attributes:
        running: rows of each job, with the token that follows.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.running: dict[Job, Pairs] = {}

    @property
    def free(self) -> int:
        """Number of rows that can join now."""
        return self.decoder.rows - sum(job.width for job in self.running)

    def join(self, jobs: Sequence[Job]) -> list[Job]:
        """Read the prompts of jobs of at most `free` rows, generate the first token of each; return those that end."""
        over = [job for job in jobs if isinstance(job, Continuation) and job.read(self.decoder)]
        return over + self._read([job for job in jobs if job not in over])

    def step(self) -> list[Job]:
        """Generate one more token for every row, and return the jobs that end."""
        lengths, context = self.decoder.lengths, self.decoder.context
        # Only with a window, of which the latest tokens are read again; the other jobs take a normal step.
        full = [job for job, pairs in self.running.items() if any(lengths[row] == context for row, _ in pairs)]
        self.drop(full)
        ended: list[Job] = []
        if self.running:
            tokens = [0] * len(self.decoder.lengths)
            for row, token in (pair for pairs in self.running.values() for pair in pairs):
                tokens[row] = token
            jobs, logits = list(self.running), self.decoder.step(tokens)
            rows = [[row for row, _ in pairs] for pairs in self.running.values()]
            ended = self._keep(dict(zip(jobs, advance(jobs, rows, logits), strict=True)))
        return ended + self._read(full)

    def drop(self, jobs: Iterable[Job]) -> None:
        """Drop jobs; those that do not run are ignored."""
        if found := [job for job in jobs if job in self.running]:
            self._keep({job: pairs for job, pairs in self.running.items() if job not in found})

    def _read(self, jobs: Sequence[Job]) -> list[Job]:
        if not jobs:
            return []
        first = len(self.decoder.lengths)
        logits = self.decoder.add([job.context_tokens for job in jobs])
        continued = advance(jobs, [[row] for row in range(len(jobs))], logits)
        moved = [[(first + row, token) for row, token in pairs] for pairs in continued]
        return self._keep(self.running | dict(zip(jobs, moved, strict=True)))

    def _keep(self, kept: Mapping[Job, Pairs]) -> list[Job]:
        """Keep the rows of these jobs alone, and return the jobs without any."""
        self.running = {job: pairs for job, pairs in kept.items() if pairs}
        ended = [job for job, pairs in kept.items() if not pairs]
        sources = [row for pairs in self.running.values() for row, _ in pairs]
        if sources == list(range(len(self.decoder.lengths))):  # most steps: every row goes on where it is
            return ended
        at = row_targets(sources)
        if sorted(sources) != list(range(len(self.decoder.lengths))):
            moved = [0] * len(sources)
            for source, row in zip(sources, at, strict=True):
                moved[row] = source
            self.decoder.select(moved)
        rows = iter(at)
        self.running = {job: [(next(rows), token) for _, token in pairs] for job, pairs in self.running.items()}
        return ended


def advance(jobs: Sequence[Job], rows: Sequence[Sequence[int]], logits: Tensor) -> list[Pairs]:
    """Advance every job by one token. An error ends the job in which it occurs, and is kept as the job's `error`.

    Args:
        jobs: jobs to advance.
        rows: rows of the logits that belong to each job.
        logits: logits [rows, vocab].

    Returns:
        (row, next token) pairs of each job's rows that continue.
    """
    result: list[Pairs] = [[] for _ in jobs]
    continuations = [(number, job.sequence) for number, job in enumerate(jobs) if isinstance(job, Continuation)]
    if continuations:
        own_rows = [rows[number][0] for number, _ in continuations]
        part = logits if own_rows == list(range(len(logits))) else logits[own_rows]
        for (number, sequence), row, error in zip(
            continuations, own_rows, _sample([sequence for _, sequence in continuations], part), strict=True
        ):
            jobs[number].error = error
            if sequence.finished is None and error is None:
                result[number] = [(row, sequence.tokens[-1])]
    for number, job in enumerate(jobs):
        if not isinstance(job, Continuation):
            try:
                sources, following = job.advance(logits[list(rows[number])])
            except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs go on
                job.error, sources, following = error, [], []
            result[number] = [(rows[number][source], token) for source, token in zip(sources, following, strict=True)]
    return result


def _sample(sequences: Sequence[TokenSequence], logits: Tensor) -> list[Exception | None]:
    """Sample the next token of every sequence; return the error of each, None for the others."""
    lengths = [len(sequence.tokens) for sequence in sequences]
    try:
        sample_next(sequences, logits)
    except Exception as error:  # noqa: BLE001 - of one sequence: the others take their tokens one by one
        if len(sequences) == 1:
            return [error]
        return [
            None if len(sequence.tokens) > length else _sample([sequence], logits[row : row + 1])[0]
            for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True))
        ]
    return [None] * len(sequences)


def row_targets(kept: Iterable[int]) -> list[int]:
    """Return the new index of each kept row when all other rows are dropped; as many rows as possible do not move.

    A decoder's rows have no gaps, and moving a row copies its whole cache: when the first of 32 rows ends, the last one
    moves there instead of 31 rows moving up.

    An index that is listed twice is copied.
    """
    rows = list(kept)
    targets = [-1] * len(rows)
    free = set(range(len(rows)))
    for number, row in enumerate(rows):
        if row in free:
            targets[number] = row
            free.remove(row)
    gaps = iter(sorted(free))
    return [target if target >= 0 else next(gaps) for target in targets]
