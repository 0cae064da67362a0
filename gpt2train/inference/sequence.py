"""State of one continuation: prompt, generated tokens, settings, random stream, text and end."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpt2train.data.tokenizer import Tokenizer, encode_ordinary
from gpt2train.errors import RunError
from gpt2train.inference.sampling import rng_for, sample
from gpt2train.inference.settings import SamplingSettings
from gpt2train.inference.text_stream import TextStream

Stop = Literal["end", "stop", "length", "context"]
"""Reason of a continuation's end: `<|endoftext|>`, a stop token or string, `max_new_tokens`, or a full context."""


@dataclass(frozen=True)
class TokenScore:
    """Natural log-probability of a token, and (id, log-probability) of the most likely tokens there, best first."""

    log_prob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenSequence:
    """Prompt and its continuation.

    The caller adds `context_tokens` to a `Decoder`, passes the logits to `sample_next`, and steps the decoder with the
    last of `tokens`, until `finished` is set.

    Args:
        prompt: token ids, at least one.
        settings: settings of this sequence.
        context: context length of the model, in tokens.
        tokenizer: decodes the text; without it there is no text, and stop strings are ignored.
        end: id of `<|endoftext|>`; None continues past it.
        prompt_index: index of the prompt in its list; with `sample` and the seed it selects the random stream.
        sample: index of this continuation among those of the prompt.
        excluded: ids that are never sampled, int64.

    Raises:
        ValueError: the prompt is empty, it fills the context and no window is set, or the window is not smaller than
            the context.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        context: int,
        tokenizer: Tokenizer | None = None,
        end: int | None = None,
        prompt_index: int = 0,
        sample: int = 0,
        excluded: Tensor | None = None,
    ) -> None:
        self.prompt, self.settings, self.context = list(prompt), settings, context
        check_prompt(len(self.prompt), settings, context)
        self.end, self.prompt_index, self.sample, self.excluded = end, prompt_index, sample, excluded
        self.tokens: list[int] = []
        """Generated tokens, including the one that ended the sequence."""
        self.scores: list[TokenScore] = []
        """Scores of `tokens`, with `log_probs`."""
        self.prompt_scores: list[TokenScore] = []
        """Scores of the prompt's tokens after the first, with `prompt_log_probs`."""
        self.finished: Stop | None = None if settings.max_new_tokens else "length"
        self._stream = None if tokenizer is None else TextStream(tokenizer, settings.stop)
        self._rng = rng_for(settings.seed, prompt_index, sample)
        self._uniform: float | None = None
        self._top_p = settings.top_p
        self._colon = self._newline = -1
        if settings.prevent_newline_after_colon and tokenizer is not None:
            colon, newline = encode_ordinary(tokenizer, [":", "\n"])
            if colon and newline:  # a tokenizer may drop line feeds
                self._colon, self._newline = colon[-1], newline[-1]

    @property
    def length(self) -> int:
        """Number of tokens, including the prompt."""
        return len(self.prompt) + len(self.tokens)

    @property
    def context_tokens(self) -> list[int]:
        """Tokens that the model reads: all of them, or, if the context is full, the latest `context - window`."""
        kept = self.context - self.settings.window
        everything = [*self.prompt, *self.tokens]
        return everything if len(everything) < self.context else everything[-kept:]

    @property
    def text(self) -> str:
        """Generated text up to a stop; whole characters only while the sequence is unfinished."""
        return "" if self._stream is None else self._stream.text

    def pop_delta(self) -> str:
        """Return the text that became final since the last call; joined at the end, the pieces are `text`."""
        return "" if self._stream is None else self._stream.pop_delta()

    def sample_next(self, logits: Tensor) -> int:
        """Sample the next token from its logits [vocab], append it and return it."""
        return sample_next([self], logits[None])[0]

    def score_prompt(self, logits: Tensor) -> None:
        """Set `prompt_scores`; if a window cut the prompt, only its remaining part is scored.

        Args:
            logits: logits after each token of the prompt, [tokens, vocab].
        """
        read = self.context_tokens[: len(logits)]
        self.prompt_scores = score_tokens(logits[:-1], read[1:], self.settings.top_log_probs)

    def _next_uniform(self) -> float:
        """Return the random number of the next token: the same one until a token is accepted."""
        if self._uniform is None:
            self._uniform = self._rng.random()
        return self._uniform

    def _accept(self, token: int, score: TokenScore | None) -> None:
        ends = token == self.end or token in self.settings.stop_tokens
        if self._stream is not None and not ends:
            self._stream.add(token)  # first: if it fails, the sequence has no new token
        self.tokens.append(token)
        self._uniform = None
        self._top_p = max(self._top_p * self.settings.top_p_decay, self.settings.top_p_bound)
        if score is not None:
            self.scores.append(score)
        if ends:
            self._finish("end" if token == self.end else "stop")
        elif self._stream is not None and self._stream.stopped:
            self._finish("stop")
        elif len(self.tokens) >= self.settings.max_new_tokens:
            self._finish("length")
        elif self.length >= self.context and not self.settings.window:
            self._finish("context")

    def _finish(self, reason: Stop) -> None:
        if self.finished is None:
            self.finished = reason
            if self._stream is not None:
                self._stream.end()


def check_prompt(tokens: int, settings: SamplingSettings, context: int) -> None:
    """Check that a prompt leaves space in the context and that the window is smaller than the context, in tokens.

    Raises:
        ValueError: it does not; the message continues a text such as `prompt 3 `.
    """
    if not tokens:
        raise ValueError("is empty")
    if settings.window >= context:
        raise ValueError(f"has a window of {settings.window} tokens, the model's context is {context}; give less")
    longest = context - 1 if settings.max_new_tokens else context
    if tokens > longest and not settings.window:
        raise ValueError(
            f"has {tokens} tokens, the model's context is {context}; shorten it to {longest} or fewer, or give a window"
        )


def sample_next(sequences: Sequence[TokenSequence], logits: Tensor) -> list[int]:
    """Sample the next token of every sequence from its row of logits [sequences, vocab] and append it.

    A sequence's token does not depend on the other sequences. After an error a sequence has its new token or is as it
    was before, so that the call can be repeated with the others.

    Returns:
        The new token of each sequence.

    Raises:
        RunError: the logits are not finite.
    """
    allowed = _allowed(sequences, logits)
    best = allowed.max(1)
    if not all(map(math.isfinite, best.values.tolist())):
        raise RunError("the model gives numbers that are not finite: its weights are damaged or its training diverged")
    tokens = best.indices.tolist()
    groups: dict[int, list[int]] = defaultdict(list)
    for row, sequence in enumerate(sequences):
        if not sequence.settings.greedy:
            groups[sequence.settings.top_k].append(row)
    for top_k, rows in groups.items():
        drawn = sample(
            allowed if len(rows) == len(sequences) else allowed[rows],
            [sequences[row].settings.temperature for row in rows],
            top_k,
            [sequences[row]._top_p for row in rows],
            [sequences[row]._next_uniform() for row in rows],
        )
        for row, token in zip(rows, drawn, strict=True):
            tokens[row] = token
    scores: dict[int, TokenScore] = {}
    scored = [row for row, sequence in enumerate(sequences) if sequence.settings.log_probs]
    if scored:
        max_top = max(sequences[row].settings.top_log_probs for row in scored)
        found = score_tokens(logits[scored], [tokens[row] for row in scored], max_top)
        scores = dict(zip(scored, found, strict=True))
    for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
        score = scores.get(row)
        if score is not None:
            score = TokenScore(score.log_prob, score.top[: sequence.settings.top_log_probs])
        sequence._accept(token, score)
    return tokens


def score_tokens(logits: Tensor, tokens: Sequence[int], top: int = 0) -> list[TokenScore]:
    """Score one token per row of logits [tokens, vocab], with the `top` most likely tokens of the row."""
    log_probs = logits.log_softmax(1)
    own = log_probs.gather(1, torch.tensor(tokens, dtype=torch.int64)[:, None])[:, 0].tolist()
    if not top:
        return [TokenScore(value) for value in own]
    best = log_probs.topk(min(top, logits.shape[1]), 1)
    pairs = [tuple(zip(i, v, strict=True)) for i, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [TokenScore(value, top) for value, top in zip(own, pairs, strict=True)]


def _allowed(sequences: Sequence[TokenSequence], logits: Tensor) -> Tensor:
    """Return logits [sequences, vocab] that are -inf for what a sequence excludes, and for a newline after a colon."""
    excluded: list[tuple[int, Tensor | int]] = [
        (row, sequence.excluded) for row, sequence in enumerate(sequences) if sequence.excluded is not None
    ]
    excluded += [(row, one._newline) for row, one in enumerate(sequences) if _last(one) == one._colon]
    if excluded:
        logits = logits.clone()
        for row, ids in excluded:
            logits[row, ids] = -torch.inf
    return logits


def _last(sequence: TokenSequence) -> int:
    return sequence.tokens[-1] if sequence.tokens else sequence.prompt[-1]
