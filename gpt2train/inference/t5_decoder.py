"""Batched decoder of an encoder-decoder: the encoder reads a prompt once, the decoder writes the continuation."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.errors import UserError
from gpt2train.model.cache import Cache, Prefill, Step
from gpt2train.model.families import context_length
from gpt2train.model.t5 import T5, KeyValue
from gpt2train.model.t5_family import options_of


class T5Decoder:
    """Decoder of a T5 on one device (`gpt2train.inference.decoder.Decoder`), or of one process's share of its heads.

    A prompt is the encoder's sequence, and a row's tokens are the prompt and what the decoder has written. The keys and
    values of the encoder's output are computed once per prompt and block.

    Args:
        model: the model, in evaluation mode.
        rows: maximum number of sequences.
        context: maximum number of tokens per sequence; None for the context of encoder and decoder together.
        project: function from the last hidden states [rows, hidden] to the logits [rows, vocab]; by default the output
            projection of the model.

    Raises:
        UserError: the model does not know the token with which the decoder begins.
    """

    def __init__(
        self, model: T5, rows: int, context: int | None = None, project: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.model, self.shape, self.rows = model, model.shape, rows
        whole = context_length(model.shape)
        self.context = min(context or whole, whole)
        self.start = options_of(self.shape).start_id
        if self.start < 0:
            raise UserError(
                "the model does not name the token with which its decoder begins; set model.options.start_id"
            )
        self.project = project or self._whole_logits
        layers, weight = self.shape.layers - model.encoder_layers, model.wte.weight
        heads = model.decoder_bias.weight.shape[1]  # of this process
        sizes = (layers, heads, self.shape.head_dim, rows, self.context, weight.dtype, weight.device)
        self.memory, self.cache = Cache(*sizes), Cache(*sizes)

    @property
    def lengths(self) -> Sequence[int]:
        """Current number of tokens of each row, its prompt included."""
        pairs = zip(self.memory.lengths, self.cache.lengths, strict=True)
        return [prompt + written - 1 for prompt, written in pairs]  # the first token of the decoder is not counted

    @torch.inference_mode()
    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read a non-empty prompt per new row and return the logits of its first written token, [prompts, vocab]."""
        lengths = [len(prompt) for prompt in prompts]
        tokens = torch.full((len(prompts), max(lengths)), self.start)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        device = self.cache.device
        real = torch.tensor(lengths, device=device)
        keys = self.model.memory_keys(self.model.encode(tokens.to(device), real))
        for prefill, (key, value) in zip(self.memory.prefill(lengths), keys, strict=True):
            prefill.extend(key, value)
        first = torch.full((len(prompts), 1), self.start, device=device)
        return self._logits(first, torch.zeros_like(first), keys, real, self.cache.prefill([1] * len(prompts)))

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row, in order, and return the logits after it, [rows, vocab]."""
        device, rows, longest = self.cache.device, len(tokens), max(self.memory.lengths)
        positions = torch.tensor(self.cache.lengths, device=device)[:, None]
        keys = [(key[:rows, :, :longest], value[:rows, :, :longest]) for key, value in self.memory.layers]
        real = torch.tensor(self.memory.lengths, device=device)
        return self._logits(torch.tensor(tokens, device=device)[:, None], positions, keys, real, self.cache.step())

    def select(self, sources: Sequence[int]) -> None:
        """Replace row i by the former row `sources[i]`; rows not listed are dropped, rows listed twice are copied."""
        self.memory.select(sources)
        self.cache.select(sources)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Refuse: a T5 does not predict its prompt.

        Raises:
            UserError: always.
        """
        raise UserError("an encoder-decoder reads the prompt with its encoder and has no scores of it; leave them out")

    def _logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        keys: Sequence[KeyValue],
        lengths: Tensor,
        cache: Sequence[Prefill | Step],
    ) -> Tensor:
        return self.project(self.model.decode(tokens, positions, keys, lengths, cache)[:, 0])

    def _whole_logits(self, hidden: Tensor) -> Tensor:
        matrix = self.model.output_weight[: self.shape.vocab]  # without the padding rows of the vocabulary
        return F.linear(hidden, matrix).float().cpu()
