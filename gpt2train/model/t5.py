"""T5 as published: an encoder and a decoder with relative position biases, RMSNorm and no biases.

Sources: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"; the
gated MLP and the head of T5 1.1 by Shazeer 2020, "GLU Variants Improve Transformer". Scores are not divided by
sqrt(head_dim). All blocks of a stack share one table of position biases.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.errors import UserError
from gpt2train.model.cache import Cache, Prefill, Step
from gpt2train.model.causal_lm import CausalLM, FinalNorm, InnerDropout, SelfAttention
from gpt2train.model.shape import Shape
from gpt2train.model.t5_family import options_of

KeyValue = tuple[Tensor, Tensor]


def position_buckets(distance: Tensor, bidirectional: bool, buckets: int, max_distance: int) -> Tensor:
    """Number of the bias of each relative position, int64 from 0 to `buckets` - 1.

    Half of the numbers are for single positions, the other half for ranges that grow with the distance, up to
    `max_distance`. In the encoder each direction has one half of all.

    Args:
        distance: int64, position of the key minus that of the query; above 0 counts as 0 unless `bidirectional`.
        bidirectional: True in the encoder.
        buckets: number of biases.
        max_distance: distance from which on all positions have the same bias.
    """
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    single = buckets // 2
    scale = math.log(max_distance / single)
    # Order and precision of the operations are those of the published code, since the result is rounded down.
    far = single + (torch.log(distance.float() / single) / scale * (buckets - single)).long()
    return first + torch.where(distance < single, distance, far.clamp(max=buckets - 1))


class Attention(SelfAttention):
    """Attention of queries to keys and values of the same or of another sequence."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__(shape.head_dim, dropout)
        width = shape.heads * shape.head_dim
        self.q = nn.Linear(shape.hidden, width, bias=False)
        self.k = nn.Linear(shape.hidden, width, bias=False)
        self.v = nn.Linear(shape.hidden, width, bias=False)
        self.proj = nn.Linear(width, shape.hidden, bias=False)

    def keys_values(self, x: Tensor) -> KeyValue:
        """Keys and values [batch, heads, length, head_dim] of the hidden states [batch, length, hidden]."""
        return self._split(self.k(x)), self._split(self.v(x))

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from the hidden states [batch, length, hidden] to keys and values.

        Args:
            x: hidden states.
            key: [batch, heads, keys, head_dim].
            value: like `key`.
            mask: numbers that are added to the scores, or bool, [batch or 1, heads or 1, length or 1, keys].
        """
        query = self._split(self.q(x))
        if mask is not None and mask.is_floating_point():
            mask = mask.to(query.dtype)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=1.0)
        return self.proj(y.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        # -1: the heads of this process, all of them or, under tensor parallelism, a part.
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Block(nn.Module):
    """One pre-norm block: attention to its own sequence, in the decoder then to the encoder's, and MLP, each added."""

    def __init__(self, shape: Shape, dropout: float, decoder: bool) -> None:
        super().__init__()
        chosen, width = options_of(shape), shape.hidden
        # The fused norm of rms_norm.py saves 4 % of a step on a CPU, but its rounding moves the logits of an untied T5
        # to 1.1e-5 of their standard deviation from those of transformers; 1e-5 is promised.
        self.ln_1 = nn.RMSNorm(width, eps=chosen.norm_eps)
        self.attn = Attention(shape, dropout)
        self.ln_cross = nn.RMSNorm(width, eps=chosen.norm_eps) if decoder else None
        self.cross = Attention(shape, dropout) if decoder else None
        self.ln_2 = nn.RMSNorm(width, eps=chosen.norm_eps)
        self.gate = nn.Linear(width, chosen.inner, bias=False) if chosen.activation == "gated-gelu" else None
        self.up = nn.Linear(width, chosen.inner, bias=False)
        self.down = nn.Linear(chosen.inner, width, bias=False)
        self.drop, self.inner_drop = nn.Dropout(dropout), InnerDropout(dropout)

    def forward(
        self,
        x: Tensor,
        bias: Tensor,
        memory: Tensor | KeyValue | None = None,
        memory_mask: Tensor | None = None,
        cache: Prefill | Step | None = None,
    ) -> Tensor:
        """Apply attention and MLP to the hidden states [batch, length, hidden].

        The bias has the position biases and the mask, and is added to the scores. The memory is the encoder's output,
        or keys and values of it, for the decoder.
        """
        h = self.ln_1(x)
        key, value = self.attn.keys_values(h)
        if cache is not None:
            key, value, _ = cache.extend(key, value)
        x = x + self.drop(self.attn(h, key, value, bias))
        if self.ln_cross is not None and self.cross is not None and memory is not None:
            h = self.ln_cross(x)
            key, value = self.cross.keys_values(memory) if isinstance(memory, Tensor) else memory
            x = x + self.drop(self.cross(h, key, value, memory_mask))
        h = self.ln_2(x)
        inner = F.relu(self.up(h)) if self.gate is None else F.gelu(self.gate(h), approximate="tanh") * self.up(h)
        return x + self.drop(self.down(self.inner_drop(inner)))


class T5(CausalLM):
    """The encoder-decoder, or one pipeline stage of it.

    Stages of the encoder send its hidden states [batch, context, hidden]. Stages of the decoder send the encoder's
    output and the decoder's hidden states, one behind the other, [batch, context + decoder_context, hidden].
    """

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__(shape)
        chosen = options_of(shape)
        self.encoder_layers = first = chosen.encoder_layers
        self.wte = nn.Embedding(shape.padded_vocab, shape.hidden)
        self.encoder_bias = nn.Embedding(chosen.buckets, shape.heads)
        self.decoder_bias = nn.Embedding(chosen.buckets, shape.heads)
        self.blocks = nn.ModuleDict({str(i): Block(shape, dropout, i >= first) for i in range(shape.layers)})
        self.encoder_norm = FinalNorm(shape.hidden, eps=chosen.norm_eps)
        self.ln_f = FinalNorm(shape.hidden, eps=chosen.norm_eps)
        self.drop = nn.Dropout(dropout)
        if not self.tied:
            self.lm_head = nn.Linear(shape.hidden, shape.padded_vocab, bias=False)

    def forward(  # type: ignore[override]  # of a model with two sequences
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        decoder_tokens: Tensor,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of every position of the decoder, or with `targets` the summed loss.

        Args:
            tokens: int64 [batch, encoder length]; in a pipeline stage without the first block what the stage before
                returns.
            targets: int64 [batch, decoder length]; positions with -100 are ignored.
            decoder_tokens: int64 [batch, decoder length], inputs of the decoder.
            lengths: int64 [batch], tokens of each row of the encoder without its padding; by default all.

        Returns:
            Logits [batch, decoder length, padded_vocab], or the float32 sum over the targets of -log p. Hidden states
            in a pipeline stage without the head.
        """
        x, start = tokens, max(self.layers.start, self.encoder_layers)
        own = decoder_tokens.shape[1] // self.slices
        memory, y = x, None
        if self.layers.start > self.encoder_layers:
            memory, y = x.split([x.shape[1] - own, own], 1)
        elif self.layers.start < self.encoder_layers:
            memory = self.encode(tokens, lengths)
        if self.layers.stop <= self.encoder_layers:
            return memory
        if y is None:
            y = self.drop(self.wte(decoder_tokens))
        entered, positions = self.enter(memory), torch.arange(decoder_tokens.shape[1], device=y.device)[None]
        bias = self.position_bias(positions, decoder_tokens.shape[1], decoder=True)
        mask = padding_mask(lengths, entered.shape[1])
        for layer in range(start, self.layers.stop):
            y = self.blocks[str(layer)](y, bias, entered, mask)
        if not self.has_head:
            return torch.cat((memory, y), 1)
        y = self.final(y)
        if targets is None:
            return self.project(y, self.output_weight)
        return self.losses(y, targets, {})

    def encode(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Apply the encoder's blocks to int64 [batch, length] or hidden states, and after the last block its norm."""
        x = self.drop(self.wte(tokens)) if self.has_embeddings else tokens
        length = tokens.shape[1] if self.has_embeddings else tokens.shape[1] * self.slices
        bias = self.position_bias(torch.arange(length, device=x.device)[None], length, decoder=False)
        if (mask := padding_mask(lengths, length)) is not None:
            bias = bias.masked_fill(~mask, -torch.inf)
        for layer in range(self.layers.start, min(self.layers.stop, self.encoder_layers)):
            x = self.blocks[str(layer)](x, bias)
        return self.drop(self.encoder_norm(x)) if self.encoder_layers - 1 in self.layers else x

    def hidden(self, *_: Any, **__: Any) -> Tensor:
        """Raise a UserError: a T5 does not predict its prompt."""
        raise UserError("an encoder-decoder reads the prompt with its encoder and has no scores of it; leave them out")

    def new_cache(self, rows: int, context: int) -> "T5Cache":  # type: ignore[override]
        """Empty cache; UserError if the model does not know the token with which the decoder begins."""
        if options_of(self.shape).start_id < 0:
            raise UserError("the model names no token with which its decoder begins; set model.options.start_id")
        weight = self.wte.weight
        sizes = (self.shape.layers - self.encoder_layers, self.kv_heads, self.shape.head_dim, rows, context)
        return T5Cache(*(Cache(*sizes, weight.dtype, weight.device) for _ in range(2)))

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: "T5Cache") -> Tensor:  # type: ignore[override]
        """Read a prompt per new row with the encoder, and return the hidden state before the first token to write."""
        real = torch.tensor(lengths, device=cache.device)
        memory, decoder = self.encode(tokens, real), list(self.blocks.values())[self.encoder_layers :]
        keys = [block.get_submodule("cross").keys_values(memory) for block in decoder]  # type: ignore[operator]
        for prefill, (key, value) in zip(cache.memory.prefill(lengths), keys, strict=True):
            prefill.extend(key, value)
        first = torch.full((len(lengths), 1), options_of(self.shape).start_id, device=cache.device)
        return self._decode(first, torch.zeros_like(first), keys, real, cache.written.prefill([1] * len(lengths)))

    def step(self, tokens: Tensor, cache: "T5Cache") -> Tensor:  # type: ignore[override]
        """Write one token, int64 [rows], to every row, and return the last hidden states [rows, hidden]."""
        rows, lengths = len(tokens), cache.memory.lengths
        positions = torch.tensor(cache.written.lengths, device=cache.device)[:, None]
        keys = [(key[:rows, :, : max(lengths)], value[:rows, :, : max(lengths)]) for key, value in cache.memory.layers]
        real = torch.tensor(lengths, device=cache.device)
        return self._decode(tokens[:, None], positions, keys, real, cache.written.step())

    def _decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        memory: Sequence[KeyValue],
        lengths: Tensor,
        cache: Sequence[Prefill | Step],
    ) -> Tensor:
        """Compute the last hidden states [batch, hidden] of one more token of each row.

        Tokens and positions are int64 [batch, 1]; the memory has keys and values of the encoder's output, and the cache
        those of the decoder, for each of its blocks.
        """
        x = self.wte(tokens)
        bias = self.position_bias(positions, int(positions.max()) + 1, decoder=True)
        mask = padding_mask(lengths, memory[0][0].shape[2])
        for number, block in enumerate(list(self.blocks.values())[self.encoder_layers :]):
            x = block(x, bias, memory[number], mask, cache[number])
        return self.final(x)[:, 0]

    def final(self, x: Tensor) -> Tensor:
        """Compute the input of the output projection from the decoder's last hidden states."""
        x = self.enter(self.drop(self.ln_f(x)))
        return x * self.shape.hidden**-0.5 if self.tied else x

    def position_bias(self, queries: Tensor, keys: int, *, decoder: bool) -> Tensor:
        """Biases of the heads, float [batch or 1, heads, length, keys]; in the decoder -inf for later positions.

        Args:
            queries: int64 [batch or 1, length], positions of the queries.
            keys: number of keys, whose positions are 0, 1, 2 …
            decoder: True for the decoder.
        """
        chosen = options_of(self.shape)
        distance = torch.arange(keys, device=queries.device) - queries[:, :, None]
        numbers = position_buckets(distance, not decoder, chosen.buckets, chosen.max_distance)
        table = self.decoder_bias if decoder else self.encoder_bias
        bias: Tensor = table(numbers).permute(0, 3, 1, 2)
        return bias.masked_fill((distance > 0)[:, None], -torch.inf) if decoder else bias

    def sent_length(self, layer: int, context: int) -> int:
        """Length in tokens of what the stage before `layer` sends."""
        return context + (options_of(self.shape).decoder_context if layer > self.encoder_layers else 0)


class T5Cache:
    """Keys and values of a batch: those of the encoder's output, computed once per prompt, and of what was written.

    A row's tokens are the prompt and what the decoder has written.
    """

    def __init__(self, memory: Cache, written: Cache) -> None:
        self.memory, self.written, self.device = memory, written, memory.device

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        pairs = zip(self.memory.lengths, self.written.lengths, strict=True)
        return [prompt + written - 1 for prompt, written in pairs]  # the first token of the decoder is not counted

    def select(self, sources: Sequence[int]) -> None:
        """Replace, drop, move and copy rows, as `Cache.select`."""
        self.memory.select(sources)
        self.written.select(sources)


def padding_mask(lengths: Tensor | None, keys: int) -> Tensor | None:
    """Mask of the encoder's positions, bool [batch, 1, 1, keys], false for padding; None without lengths."""
    if lengths is None:
        return None
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None]
