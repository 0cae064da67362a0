"""A model that goes on with many sequences at once: what generation, scoring and the server drive.

A `Decoder` is told tokens and answers logits; it draws nothing, knows no text, and does not know when a sequence ends.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.generate.lean import LeanStep
from gpt2train.model.cache import Cache
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.shape import Shape


class Decoder(Protocol):
    """Rows of sequences. Logits are float32 [rows, vocab] on the CPU, of the vocabulary proper."""

    shape: Shape
    rows: int
    """Sequences that fit in."""
    context: int
    """Tokens that fit into a sequence."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row now."""

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Append a row for each prompt (none empty); logits after the last token of each, [prompts, vocab]."""

    def step(self, tokens: Sequence[int]) -> Tensor:
        """One more token for every row, in order; logits after it, [rows, vocab]."""

    def select(self, sources: Sequence[int]) -> None:
        """Row i becomes what row `sources[i]` was. Rows that are not named are gone, one named twice is copied."""

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits after every token of one sequence, [tokens, vocab]; rows are left as they are."""


class Opened(Protocol):
    """A model that is not this process's alone, of which decoders are made."""

    shape: Shape

    def decoder(self, rows: int, context: int | None = None) -> Decoder:
        """Room for so many rows of so many tokens, with no rows in it."""


def decoder_of(model: GPT2 | Opened, rows: int, context: int | None = None) -> Decoder:
    """Room for so many rows of so many tokens, with no rows in it, wherever the model lies."""
    return LocalDecoder(model, rows, context) if isinstance(model, GPT2) else model.decoder(rows, context)


class LocalDecoder:
    """The decoder of a model that lies whole on one device.

    Args:
        model: in evaluation mode.
        rows: sequences that fit in.
        context: tokens that fit into a sequence; the model's where not given.
    """

    def __init__(self, model: GPT2, rows: int, context: int | None = None) -> None:
        self.model, self.shape, self.rows = model, model.shape, rows
        self.context = min(context or model.shape.context, model.shape.context)
        weight = model.wte.weight
        shape = model.shape
        self.cache = Cache(shape.layers, shape.heads, shape.head_dim, rows, self.context, weight.dtype, weight.device)
        self.lean = LeanStep(model, self.cache)

    @property
    def lengths(self) -> Sequence[int]:
        return self.cache.lengths

    @torch.inference_mode()
    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        lengths = [len(prompt) for prompt in prompts]
        tokens = torch.zeros(len(prompts), max(lengths), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        hidden = self.model.hidden(tokens.to(self.cache.device), self.cache.begin(lengths))
        return self._logits(hidden[range(len(prompts)), [length - 1 for length in lengths]])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        return self.lean(tokens).float().cpu()

    def select(self, sources: Sequence[int]) -> None:
        self.cache.select(sources)

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        return self._logits(self.model.hidden(torch.tensor([tokens], device=self.cache.device))[0])

    def _logits(self, hidden: Tensor) -> Tensor:
        matrix = self.model.wte.weight[: self.shape.vocab]  # a row that pads the vocabulary is never drawn
        return F.linear(hidden, matrix).float().cpu()
