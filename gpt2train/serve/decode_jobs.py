"""Jobs of the batcher: continuations, sampled together, and beam searches, each with several rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gpt2train.data.tokenizer import Tokenizer
from gpt2train.inference.beam_search import Beam, beam_steps
from gpt2train.inference.sequence import TokenScore, TokenSequence, sample_next
from gpt2train.inference.settings import BeamSettings


@dataclass(frozen=True)
class TokenDelta:
    """New text and tokens of a continuation since the previous delta."""

    text: str
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...]


class Continuation:
    """Sampled continuation of a prompt, in one row; `streams` to send an event per token instead of one at the end."""

    width = 1

    def __init__(self, sequence: TokenSequence, streams: bool = False) -> None:
        self.sequence, self.streams = sequence, streams
        self.error: Exception | None = None
        """Reason for which the job ended early."""
        self.prompt = sequence.prompt
        self._sent = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.sequence.tokens)

    def delta(self) -> TokenDelta:
        """Return the text and tokens generated since the last call."""
        start, self._sent = self._sent, len(self.sequence.tokens)
        tokens, scores = self.sequence.tokens[start:], self.sequence.scores[start : self._sent]
        return TokenDelta(self.sequence.pop_delta(), tuple(tokens), tuple(scores))


class BeamSearch:
    """Beam search; `beams` holds the results when it is done.

    Without `end`, the id of the token that ends a beam, the tokenizer's `<|endoftext|>` does.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        settings: BeamSettings,
        context: int,
        tokenizer: Tokenizer,
        end: int | None = None,
        excluded: Tensor | None = None,
    ) -> None:
        self.prompt, self.width = prompt, settings.beams
        self.error: Exception | None = None
        """Reason for which the job ended early."""
        self.beams: list[Beam] = []
        self._steps = beam_steps(context - len(prompt), settings, tokenizer, end, excluded)
        next(self._steps)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the results."""
        return sum(len(beam.tokens) for beam in self.beams)

    def advance(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Advance the search by one token.

        Args:
            logits: logits [rows, vocab] of its rows; after the prompt it has one row.

        Returns:
            The rows that continue, where a row listed twice is copied, and the next token of each; both empty when
            the search is done.
        """
        try:
            return self._steps.send(logits)
        except StopIteration as stop:
            self.beams = stop.value
            return [], []


Job = Continuation | BeamSearch


def advance(jobs: Sequence[Job], rows: Sequence[Sequence[int]], logits: Tensor) -> list[list[tuple[int, int]]]:
    """Advance every job by one token. An error ends the job in which it occurs, and is kept as the job's `error`.

    Args:
        jobs: jobs to advance.
        rows: rows of the logits that belong to each job.
        logits: logits [rows, vocab].

    Returns:
        (row, next token) pairs of each job's rows that continue.
    """
    result: list[list[tuple[int, int]]] = [[] for _ in jobs]
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
