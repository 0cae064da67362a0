"""Batched decoder with a KV cache, used by generation, scoring and the server.

A `Decoder` takes tokens and returns logits. It does not sample, has no tokenizer, and does not know when a sequence
ends.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.model.cache import Cache
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape
from gpt2train.plugins import load

DecodeStep = Callable[[Sequence[int]], Tensor]


class Decoder(Protocol):
    """Rows of sequences. Logits are float32 [rows, vocab] on the CPU, without the padding of the vocabulary."""

    shape: Shape
    rows: int
    """Maximum number of sequences."""
    context: int
    """Maximum number of tokens per sequence."""

    @property
    def lengths(self) -> Sequence[int]:
        """Current number of tokens of each row."""

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Append a row per non-empty prompt and return the logits after its last token, [prompts, vocab]."""

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row, in order, and return the logits after it, [rows, vocab]."""

    def select(self, sources: Sequence[int]) -> None:
        """Replace row i by the former row `sources[i]`; rows not listed are dropped, rows listed twice are copied."""

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits after every token of one sequence, [tokens, vocab]; the rows do not change."""


class OpenedModel(Protocol):
    """Model distributed over several processes, which creates its own decoders."""

    shape: Shape

    def decoder(self, rows: int, context: int | None = None) -> Decoder:
        """Create an empty decoder for `rows` sequences of up to `context` tokens."""


def decoder_of(model: CausalLM | OpenedModel, rows: int, context: int | None = None) -> Decoder:
    """Create an empty decoder for `rows` sequences of up to `context` tokens, for a local or a distributed model."""
    if not isinstance(model, CausalLM):
        return model.decoder(rows, context)
    decoder: Decoder = load(MODELS[model.shape.family].decoder)(model, rows, context)
    return decoder


class LocalDecoder:
    """Decoder of a model on one device.

    Args:
        model: the model, in evaluation mode.
        rows: maximum number of sequences.
        context: maximum number of tokens per sequence; None for the model's context.
    """

    def __init__(self, model: CausalLM, rows: int, context: int | None = None) -> None:
        self.model, self.shape, self.rows = model, model.shape, rows
        self.context = min(context or model.shape.context, model.shape.context)
        weight, shape = model.wte.weight, model.shape
        family = MODELS[shape.family]
        self.cache = Cache(
            shape.layers, family.kv_heads(shape), shape.head_dim, rows, self.context, weight.dtype, weight.device
        )
        self.decode_step: DecodeStep = (
            load(family.decode_step)(model, self.cache) if family.decode_step else self._plain_step
        )

    @property
    def lengths(self) -> Sequence[int]:
        return self.cache.lengths

    @torch.inference_mode()
    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        lengths = [len(prompt) for prompt in prompts]
        tokens = torch.zeros(len(prompts), max(lengths), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        hidden = self.model.hidden(tokens.to(self.cache.device), self.cache.prefill(lengths))
        return self._logits(hidden[range(len(prompts)), [length - 1 for length in lengths]])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        return self.decode_step(tokens).float().cpu()

    def select(self, sources: Sequence[int]) -> None:
        self.cache.select(sources)

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        return self._logits(self.model.hidden(torch.tensor([tokens], device=self.cache.device))[0])

    def _plain_step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row through the modules, and return the logits after it, [rows, vocab]."""
        device = self.cache.device
        positions = torch.tensor(self.cache.lengths, device=device)[:, None]
        hidden = self.model.hidden(torch.tensor(tokens, device=device)[:, None], self.cache.step(), positions)
        return self._logits(hidden[:, 0])

    def _logits(self, hidden: Tensor) -> Tensor:
        matrix = self.model.output_weight[: self.shape.vocab]  # without the padding rows of the vocabulary
        return self.model.cap(F.linear(hidden, matrix)).float().cpu()
