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
    """Beam search as a job of a batch; `beams` holds the results, best first, when it is done.

    Args:
        prompt: token ids, at least one.
        settings: number of beams, length and scoring.
        context: maximum tokens of a sequence.
        tokenizer: decodes the texts; without `end`, its `<|endoftext|>` ends a beam.
        end: id of the token that ends a beam.
        excluded: ids that no beam takes, int64.
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
        if end is None and tokenizer is not None:
            end = end_of_text_id(tokenizer)
        self._settings, self._tokenizer, self._end, self._excluded = settings, tokenizer, end, excluded
        self._stops = {*settings.stop_tokens, *(() if end is None else (end,))}
        self._steps = self._search(min(settings.max_new_tokens, context - len(prompt)))
        next(self._steps)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the results."""
        return sum(len(beam.tokens) for beam in self.beams)

    def advance(self, logits: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Advance the search by one token, as `gpt2train.inference.batch.Job.advance`."""
        try:
            return self._steps.send(logits)
        except StopIteration:
            return [], []

    def _search(self, limit: int) -> Generator[tuple[list[int], list[int]], Tensor, None]:
        """Take logits [rows, vocab], first those after the prompt, and yield what `advance` returns; set `beams`."""
        beams = self.width
        # Enough candidates that `beams` of them continue even if every beam also ends with every stop token.
        num_candidates = max(2, 1 + len(self._stops)) * beams
        unfinished: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        finished: list[Beam] = []
        logits = yield [], []
        for length in range(1, limit + 1):
            sums = logits.log_softmax(1) + torch.tensor([total for _, total in unfinished])[:, None]
            if self._excluded is not None:
                sums[:, self._excluded] = -torch.inf
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
                if token in self._stops or length == limit:
                    if rank < beams:  # candidates of a lower rank exist only so that enough beams continue
                        finished.append(Beam(tokens, total / length**self._settings.length_penalty, "length"))
                elif len(rows) < beams:
                    rows.append(row)
                    following.append((tokens, total))
            finished = sorted(finished, key=lambda beam: -beam.score)[:beams]
            if not following or _is_over(finished, following[0][1], length, limit, self._settings):
                break
            unfinished = following
            logits = yield rows, [tokens[-1] for tokens, _ in unfinished]
        self.beams = list(map(self._with_text, finished))

    def _with_text(self, beam: Beam) -> Beam:
        """Return the beam with its text and the reason of its end."""
        last = beam.tokens[-1]
        stopped: Stop = "length" if len(beam.tokens) == self._settings.max_new_tokens else "context"
        kept = beam.tokens
        if last in self._stops:
            stopped, kept = "end" if last == self._end else "stop", kept[:-1]
        return replace(beam, stopped=stopped, text="" if self._tokenizer is None else _text_of(kept, self._tokenizer))


def _is_over(finished: Sequence[Beam], best_open: float, length: int, limit: int, settings: BeamSettings) -> bool:
    """Return True if no unfinished beam can become a result under `settings.early_stopping`."""
    if len(finished) < settings.beams:
        return False
    if settings.early_stopping is True:
        return True
    reach = limit if settings.early_stopping == "never" and settings.length_penalty > 0 else length
    return best_open / reach**settings.length_penalty <= finished[-1].score


def _text_of(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text as a continuation: `decode` drops the space before its first word, `TextStream` does not."""
    stream = TextStream(tokenizer)
    for token in tokens:
        stream.add(token)
    stream.end()
    return stream.text
