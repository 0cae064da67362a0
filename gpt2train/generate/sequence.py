"""One continuation on its way: what was read and drawn, its own settings, stream of draws, text and end."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from gpt2train.data.tokenizer import encode_ordinary
from gpt2train.errors import RunError
from gpt2train.generate.draw import draw, stream_of
from gpt2train.generate.settings import SamplingSettings
from gpt2train.generate.text import TextStream

Stop = Literal["end", "stop", "length", "context", "left"]
"""Why a continuation ended: at `<|endoftext|>`, a stop token or string, the length asked for, the context's end; or
whoever asked has left."""


@dataclass(frozen=True)
class TokenScore:
    """Natural log-probability of a token where it stands, and of the most likely ones there, the best first."""

    log_prob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenSequence:
    """A prompt that is continued.

    Whoever drives a `Decoder` reads `context_tokens` into it, lets `take` draw from the logits it answers, and gives it
    the last token of `tokens` next, until `finished` says why there is an end.

    Args:
        prompt: token ids, at least one.
        settings: of this sequence alone.
        context: tokens that the model sees at once.
        tokenizer: what makes the text; without it there is none, and no stop strings.
        end: id of `<|endoftext|>`; None goes on past it.
        place: the prompt's place in its list; with `sample` and the seed it fixes the stream of draws.
        sample: which continuation of the prompt this is.

    Raises:
        ValueError: the prompt is empty; it fills the context and no window was asked for, or the window leaves nothing
            of the context.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        context: int,
        tokenizer: Tokenizer | None = None,
        end: int | None = None,
        place: int = 0,
        sample: int = 0,
    ) -> None:
        self.prompt, self.settings, self.context = list(prompt), settings, context
        check_prompt(len(self.prompt), settings, context)
        self.end, self.place, self.sample = end, place, sample
        self.tokens: list[int] = []
        """Drawn so far, the one that ended it included."""
        self.scores: list[TokenScore] = []
        """Of each drawn token, with `log_probs`."""
        self.prompt_scores: list[TokenScore] = []
        """Of each token of the prompt after the first, with `prompt_log_probs`."""
        self.finished: Stop | None = None if settings.max_new_tokens else "length"
        self._stream = None if tokenizer is None else TextStream(tokenizer, settings.stop)
        self._chances = stream_of(settings.seed, place, sample)
        self._top_p = settings.top_p
        self._colon = self._newline = -1
        if settings.prevent_newline_after_colon and tokenizer is not None:
            (self._colon,), (self._newline,) = encode_ordinary(tokenizer, [":", "\n"])

    @property
    def length(self) -> int:
        """Tokens so far, the prompt's included."""
        return len(self.prompt) + len(self.tokens)

    @property
    def context_tokens(self) -> list[int]:
        """What the model reads to go on: everything, or the latest tokens that leave room for a window."""
        room = self.context - self.settings.window
        everything = [*self.prompt, *self.tokens]
        return everything if len(everything) < self.context else everything[-room:]

    @property
    def text(self) -> str:
        """Text of what was drawn, without what ended it; whole characters only while it goes on."""
        return "" if self._stream is None else self._stream.text

    def fresh(self) -> str:
        """Text that became sure since the last call; the pieces joined are `text` once it is finished."""
        return "" if self._stream is None else self._stream.fresh()

    def take(self, logits: Tensor) -> int:
        """Draw the next token from its logits [vocab] and append it."""
        return take([self], logits[None])[0]

    def score_prompt(self, logits: Tensor) -> None:
        """Keep the log-probabilities of the prompt's tokens, from the logits after each of them [tokens, vocab].

        Where a window cut the prompt, of the part that is left.
        """
        read = self.context_tokens[: len(logits)]
        self.prompt_scores = score_tokens(logits[:-1], read[1:], self.settings.top_log_probs)

    def leave(self) -> None:
        """End it here, for nobody waits for the rest."""
        self._finish("left")

    def _accept(self, token: int, score: TokenScore | None) -> None:
        self.tokens.append(token)
        self._top_p = max(self._top_p * self.settings.top_p_decay, self.settings.top_p_bound)
        if score is not None:
            self.scores.append(score)
        if token == self.end:
            self._finish("end")
        elif token in self.settings.stop_tokens:
            self._finish("stop")
        else:
            if self._stream is not None:
                self._stream.add(token)
            if self._stream is not None and self._stream.stopped:
                self._finish("stop")
            elif len(self.tokens) >= self.settings.max_new_tokens:
                self._finish("length")
            elif self.length >= self.context and not self.settings.window:
                self._finish("context")

    def _finish(self, why: Stop) -> None:
        if self.finished is None:
            self.finished = why
            if self._stream is not None:
                self._stream.end()


def check_prompt(tokens: int, settings: SamplingSettings, context: int) -> None:
    """Refuse a prompt of so many tokens that cannot be continued, or a window that leaves nothing.

    Raises:
        ValueError: in words that go after `prompt 3 `.
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


def take(sequences: Sequence[TokenSequence], logits: Tensor) -> list[int]:
    """Draw the next token of every sequence from its row of logits [sequences, vocab] and append it.

    What one draws does not depend on the others.

    Raises:
        RunError: logits are not finite, so that nothing can be drawn.
    """
    allowed = _without_newlines(sequences, logits)
    best = allowed.max(1)
    if not all(map(math.isfinite, best.values.tolist())):
        raise RunError("the model gives numbers that are not finite: its weights are damaged or its training diverged")
    tokens = best.indices.tolist()
    groups: dict[int, list[int]] = defaultdict(list)
    for row, sequence in enumerate(sequences):
        if not sequence.settings.greedy:
            groups[sequence.settings.top_k].append(row)
    for top_k, rows in groups.items():
        drawn = draw(
            allowed if len(rows) == len(sequences) else allowed[rows],
            [sequences[row].settings.temperature for row in rows],
            top_k,
            [sequences[row]._top_p for row in rows],
            [sequences[row]._chances.random() for row in rows],
        )
        for row, token in zip(rows, drawn, strict=True):
            tokens[row] = token
    scores: dict[int, TokenScore] = {}
    scored = [row for row, sequence in enumerate(sequences) if sequence.settings.log_probs]
    if scored:
        most = max(sequences[row].settings.top_log_probs for row in scored)
        found = score_tokens(logits[scored], [tokens[row] for row in scored], most)
        scores = dict(zip(scored, found, strict=True))
    for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
        score = scores.get(row)
        if score is not None:
            score = TokenScore(score.log_prob, score.top[: sequence.settings.top_log_probs])
        sequence._accept(token, score)
    return tokens


def score_tokens(logits: Tensor, tokens: Sequence[int], top: int = 0) -> list[TokenScore]:
    """Log-probability of one token for each row of logits [tokens, vocab], with the `top` most likely ones."""
    log_probs = logits.log_softmax(1)
    own = log_probs.gather(1, torch.tensor(tokens, dtype=torch.int64)[:, None])[:, 0].tolist()
    if not top:
        return [TokenScore(value) for value in own]
    best = log_probs.topk(min(top, logits.shape[1]), 1)
    pairs = [tuple(zip(i, v, strict=True)) for i, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [TokenScore(value, top) for value, top in zip(own, pairs, strict=True)]


def _without_newlines(sequences: Sequence[TokenSequence], logits: Tensor) -> Tensor:
    rows = [row for row, sequence in enumerate(sequences) if _last(sequence) == sequence._colon]
    if rows:
        logits = logits.clone()
        for row in rows:
            logits[row, sequences[row]._newline] = -torch.inf
    return logits


def _last(sequence: TokenSequence) -> int:
    return sequence.tokens[-1] if sequence.tokens else sequence.prompt[-1]
