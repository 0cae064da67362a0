"""Beam search with a length penalty.

Results and scores equal those of `transformers.generate(num_beams=…)`. Megatron-LM's server differs in three points: it
also compares finished candidates when it decides whether an unfinished one can still win, at the length limit it also
accepts unfinished candidates of a lower rank, and it accepts the padding rows of the vocabulary as tokens.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpt2train.data.tokenizer import Tokenizer, end_of_text_id
from gpt2train.errors import RunError, UserError
from gpt2train.inference.batch import Batch
from gpt2train.inference.decoder import Decoder
from gpt2train.inference.prompts import ids_without_token
from gpt2train.inference.sequence import Stop
from gpt2train.inference.settings import BeamSettings
from gpt2train.inference.text_stream import TextStream


@dataclass(frozen=True)
class Beam:
    """Finished continuation with its score; the tokens include the one that ended it."""

    tokens: tuple[int, ...]
    score: float
    stopped: Stop
    text: str = ""
    """Text without the token that ended it."""


def beam_search(
    decoder: Decoder,
    prompt: Sequence[int],
    settings: BeamSettings,
    tokenizer: Tokenizer | None = None,
    end: int | None = None,
) -> list[Beam]:
    """Find the `settings.beams` best continuations of one prompt, best first.

    Args:
        decoder: decoder without rows; it has none again after the search.
        prompt: token ids, at least one.
        settings: number of beams, length and scoring.
        tokenizer: decodes the texts; without `end`, its `<|endoftext|>` ends a beam.
        end: id of the token that ends a beam.

    Raises:
        UserError: the prompt fills the context, or the decoder has fewer rows than beams.
        RunError: the logits are not finite.
    """
    if len(prompt) >= decoder.context:
        raise UserError(f"the prompt has {len(prompt)} tokens, the context is {decoder.context}; give fewer")
    if settings.beams > decoder.rows:
        raise UserError(f"{settings.beams} beams are too many, at most {decoder.rows} can run together; give fewer")
    excluded = None if tokenizer is None else ids_without_token(decoder.shape, tokenizer, settings.stop_tokens)
    job, batch = BeamSearch(prompt, settings, decoder.context, tokenizer, end, excluded), Batch(decoder)
    batch.join([job])
    while batch.running:
        batch.step()
    if job.error:
        raise job.error
    return job.beams


class BeamSearch:
    """Beam search as a job of a batch; `beams` holds the results when it is done.

    Without `end`, the id of the token that ends a beam, the tokenizer's `<|endoftext|>` does.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        settings: BeamSettings,
        context: int,
        tokenizer: Tokenizer | None = None,
        end: int | None = None,
        excluded: Tensor | None = None,
    ) -> None:
        self.prompt = self.context_tokens = prompt
        self.width = settings.beams
        self.error: Exception | None = None
        self.beams: list[Beam] = []
        self._steps = beam_steps(context - len(prompt), settings, tokenizer, end, excluded)
        next(self._steps)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the results."""
        return sum(len(beam.tokens) for beam in self.beams)

    def advance(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Advance the search by one token, as `gpt2train.inference.batch.Job.advance`."""
        try:
            return self._steps.send(logits)
        except StopIteration as stop:
            self.beams = stop.value
            return [], []


def beam_steps(
    max_tokens: int,
    settings: BeamSettings,
    tokenizer: Tokenizer | None = None,
    end: int | None = None,
    excluded: Tensor | None = None,
) -> Generator[tuple[list[int], list[int]], Tensor, list[Beam]]:
    """Beam search as a coroutine, independent of the decoder, so that a search can share a decoder with others.

    Start it with `next`, then send logits [rows, vocab]; the first logits, after the prompt, have one row.

    Args:
        max_tokens: number of tokens that fit into the context after the prompt.
        settings: number of beams, length and scoring.
        tokenizer: decodes the texts; without `end`, its `<|endoftext|>` ends a beam.
        end: id of the token that ends a beam.
        excluded: ids that no beam takes, int64.

    Yields:
        The rows that continue, in the order of the next logits, and their next tokens.

    Returns:
        The best beams, best first.
    """
    if end is None and tokenizer is not None:
        end = end_of_text_id(tokenizer)
    beams = settings.beams
    stops = {*settings.stop_tokens, *(() if end is None else (end,))}
    # Enough candidates that `beams` of them continue even if every beam also ends with every stop token.
    num_candidates = max(2, 1 + len(stops)) * beams
    limit = min(settings.max_new_tokens, max_tokens)
    unfinished: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[Beam] = []
    logits = yield [], []
    for length in range(1, limit + 1):
        sums = logits.log_softmax(1) + torch.tensor([total for _, total in unfinished])[:, None]
        if excluded is not None:
            sums[:, excluded] = -torch.inf
        best = sums.view(-1).topk(min(num_candidates, sums.numel()))
        if not torch.isfinite(best.values[0]):
            raise RunError("the model gives numbers that are not finite: its weights are damaged")
        rows: list[int] = []
        following: list[tuple[tuple[int, ...], float]] = []
        for rank, (total, index) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            if total == -math.inf:  # fewer tokens are allowed than candidates are wanted
                break
            row, token = divmod(index, sums.shape[1])
            tokens = (*unfinished[row][0], token)
            if token in stops or length == limit:
                if rank < beams:  # candidates of a lower rank exist only so that enough beams continue
                    finished.append(Beam(tokens, total / length**settings.length_penalty, "length"))
            elif len(rows) < beams:
                rows.append(row)
                following.append((tokens, total))
        finished = sorted(finished, key=lambda beam: -beam.score)[:beams]
        if not following or _is_over(finished, following[0][1], length, limit, settings):
            break
        unfinished = following
        logits = yield rows, [tokens[-1] for tokens, _ in unfinished]
    return [_with_text(beam, stops, end, settings, tokenizer) for beam in finished]


def _is_over(finished: Sequence[Beam], best_open: float, length: int, limit: int, settings: BeamSettings) -> bool:
    """Return True if no unfinished beam can become a result under `settings.early_stopping`."""
    if len(finished) < settings.beams:
        return False
    if settings.early_stopping is True:
        return True
    reach = limit if settings.early_stopping == "never" and settings.length_penalty > 0 else length
    return best_open / reach**settings.length_penalty <= finished[-1].score


def _with_text(
    beam: Beam, stops: set[int], end: int | None, settings: BeamSettings, tokenizer: Tokenizer | None
) -> Beam:
    """Return the beam with its text and the reason of its end."""
    last = beam.tokens[-1]
    ended = last in stops
    stopped: Stop = "length" if len(beam.tokens) == settings.max_new_tokens else "context"
    if ended:
        stopped = "end" if last == end else "stop"
    kept = beam.tokens[:-1] if ended else beam.tokens
    return replace(beam, stopped=stopped, text="" if tokenizer is None else _text_of(kept, tokenizer))


def _text_of(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text as a continuation: `decode` drops the space before its first word, `TextStream` does not."""
    stream = TextStream(tokenizer)
    for token in tokens:
        stream.add(token)
    stream.end()
    return stream.text
