"""Decoding steps of `LocalDecoder` with as few calls as possible, for an unsharded model on one device.

Small models are bound by call overhead: a step of 2.6 million parameters takes 0.9 ms through the modules, more than
half of it in Python and in views. Here the operations of a block are flat, add in place, and store key and value with
one copy. The references are `GPT2.hidden` and `Llama.hidden` with `gpt2train.model.cache.Step`. The query
heads of a Llama that share keys are taken as several queries of one head, so that keys and values are never repeated.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.compat.torch import can_pack_linear, pack_linear
from gpt2train.model.cache import Cache
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.gpt2 import GPT2, Block
from gpt2train.model.llama import Block as LlamaBlock
from gpt2train.model.llama import Llama
from gpt2train.model.llama_family import options_of

Linear = Callable[[Tensor], Tensor]
Products = Callable[[Tensor], Sequence[Tensor]]
M = TypeVar("M", bound=CausalLM)
B = TypeVar("B")


class NewTokens:
    """One more token of every row of a KV cache.

    Attributes:
        positions: int64 [rows], positions of the new tokens.
        longest: tokens of the longest row, with the new one.
    """

    def __init__(self, cache: Cache, dtype: torch.dtype) -> None:
        lengths, device = cache.lengths, cache.device
        self.cache, self.rows, self.longest = cache, len(lengths), max(lengths) + 1
        self.positions = torch.tensor(lengths, device=device)
        self.mask: Tensor | None = None
        self.slots: Tensor | None = None
        if min(lengths) + 1 == self.longest:
            return
        # An additive mask, since attention would convert a boolean one in every layer.
        beyond = torch.arange(self.longest, device=device) > self.positions[:, None]
        mask = torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, -torch.inf)
        self.mask = mask[:, None, None]
        # The new key of row r and head h is vector (r * heads + h) * context + length.
        heads, context = cache.layers[0][0].shape[1:3]
        first = torch.arange(0, self.rows * heads * context, context, device=device)
        self.slots = (first.view(self.rows, heads) + self.positions[:, None]).view(-1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, stored: tuple[Tensor, Tensor]) -> Tensor:
        """Store new keys and values, and attend over all of them.

        Args:
            query: [rows, kv_heads, heads / kv_heads, head_dim]; heads with the same keys are like several queries.
            key: [rows, kv_heads, 1, head_dim].
            value: like `key`.
            stored: keys and values of the layer in the cache.

        Returns:
            [rows, heads * head_dim].
        """
        rows, longest = self.rows, self.longest
        keys, values = stored
        if self.slots is None:
            keys[:rows, :, longest - 1 : longest] = key
            values[:rows, :, longest - 1 : longest] = value
        else:
            head_dim = key.shape[-1]
            keys.view(-1, head_dim).index_copy_(0, self.slots, key.reshape(-1, head_dim))
            values.view(-1, head_dim).index_copy_(0, self.slots, value.reshape(-1, head_dim))
        y = F.scaled_dot_product_attention(
            query, keys[:rows, :, :longest], values[:rows, :, :longest], attn_mask=self.mask
        )
        return y.reshape(rows, -1)

    def commit(self) -> None:
        """Count the new tokens, after the last layer."""
        self.cache.lengths = [length + 1 for length in self.cache.lengths]


class _FastStep(Generic[M, B]):
    """Decoding step, bound to a model's weights and to a KV cache.

    Args:
        model: unsharded model on one device, none of whose modules is replaced.
        cache: KV cache that the step reads and extends.
        bound: function that binds the weights of a block, for several rows in oneDNN's layout.
    """

    def __init__(self, model: M, cache: Cache, bound: Callable[[nn.Module, bool], B]) -> None:
        self.model, self.cache, self.dtype = model, cache, model.wte.weight.dtype
        packed = cache.rows > 1 and can_pack_linear(model.wte.weight)
        self.blocks = [bound(block, packed) for block in model.blocks.values()]
        # Without the padding rows of the vocabulary.
        self.head = bind(model.output_weight[: model.shape.vocab], None, packed)
        self.norm = _norm(model.ln_f)


class FastDecodeStep(_FastStep[GPT2, "_Block"]):
    """Decoding step of a GPT-2."""

    def __init__(self, model: GPT2, cache: Cache) -> None:
        super().__init__(model, cache, _Block)

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row and return the logits after it, [rows, vocab]."""
        shape, new = self.model.shape, NewTokens(self.cache, self.dtype)
        x = F.embedding(torch.tensor(tokens, device=self.cache.device), self.model.wte.weight)
        x = x + F.embedding(new.positions, self.model.wpe.weight)
        split = (len(tokens), shape.heads, 3, shape.head_dim)
        for block, stored in zip(self.blocks, self.cache.layers, strict=True):
            query, key, value = block.qkv(torch.layer_norm(x, *block.ln_1)).view(split).split(1, 2)
            x += block.proj(new.attend(query, key, value, stored))
            x += block.down(block.activation(block.up(torch.layer_norm(x, *block.ln_2))))
        new.commit()
        return self.head(torch.layer_norm(x, *self.norm))


class _Block:
    """Bound weights of one block."""

    def __init__(self, block: nn.Module, packed: bool) -> None:
        assert isinstance(block, Block)
        self.activation = block.activation
        self.ln_1, self.ln_2 = _norm(block.ln_1), _norm(block.ln_2)
        self.qkv = bind(block.attn.qkv.weight, block.attn.qkv.bias, packed)
        self.proj = bind(block.attn.proj.weight, block.attn.proj.bias, packed)
        self.up = bind(block.up.weight, block.up.bias, packed)
        self.down = bind(block.down.weight, block.down.bias, packed)


class FastLlamaStep(_FastStep[Llama, "_LlamaBlock"]):
    """Decoding step of a Llama."""

    def __init__(self, model: Llama, cache: Cache) -> None:
        super().__init__(model, cache, _LlamaBlock)
        self.kv_heads = options_of(model.shape).kv_heads

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row and return the logits after it, [rows, vocab]."""
        new, head_dim, rows = NewTokens(self.cache, self.dtype), self.model.shape.head_dim, len(tokens)
        cos, sin = self.model.rotation(new.positions, new.longest, self.dtype)  # [rows, 1, head_dim]
        ids = torch.tensor(tokens, device=self.cache.device)
        x, added = self.model.embed(ids), self.model.lookups(ids)
        split, grouped = (rows, -1, head_dim), (rows, self.kv_heads, -1, head_dim)
        for layer, (block, stored) in enumerate(zip(self.blocks, self.cache.layers, strict=True)):
            query, key, value = block.qkv(torch.rms_norm(x, *block.ln_1))
            if added:
                value = sum(added.get(str(layer), ()), value)
            query, key = query.reshape(split), key.reshape(split)
            if block.qk_norms is not None:
                query, key = torch.rms_norm(query, *block.qk_norms[0]), torch.rms_norm(key, *block.qk_norms[1])
            query = (query * cos).addcmul_(query.roll(head_dim // 2, -1), sin)
            key = (key * cos).addcmul_(key.roll(head_dim // 2, -1), sin)
            y = new.attend(query.view(grouped), key.unsqueeze(2), value.view(grouped), stored)
            x = x + block.proj(y)
            h = torch.rms_norm(x, *block.ln_2)
            if block.gate_up is not None:
                gate, up = block.gate_up(h)
                h = F.silu(gate).mul_(up)
            else:
                h = F.relu(block.up(h)).square_()
            x = x + block.down(h)
        new.commit()
        return self.model.cap(self.head(torch.rms_norm(x, *self.norm)))


class _LlamaBlock:
    """Bound weights of one block."""

    def __init__(self, block: nn.Module, packed: bool) -> None:
        assert isinstance(block, LlamaBlock)
        attention = block.attn
        self.ln_1, self.ln_2 = _norm(block.ln_1), _norm(block.ln_2)
        normed = attention.q_norm is not None
        self.qk_norms = (_norm(attention.q_norm), _norm(attention.k_norm)) if normed else None
        self.qkv = _bind_together((attention.q, attention.k, attention.v), packed)
        self.proj = bind(attention.proj.weight, attention.proj.bias, packed)
        self.gate_up = _bind_together((block.gate, block.up), packed) if block.gate is not None else None
        self.up = bind(block.up.weight, block.up.bias, packed and block.gate is None)
        self.down = bind(block.down.weight, block.down.bias, packed)


def _norm(layer: nn.Module | None) -> tuple[Any, ...]:
    assert isinstance(layer, nn.LayerNorm | nn.RMSNorm)
    bias = (layer.bias,) if isinstance(layer, nn.LayerNorm) else ()
    return layer.normalized_shape, layer.weight, *bias, layer.eps


def bind(weight: Tensor, bias: Tensor | None, packed: bool) -> Linear:
    """Return the function x -> x @ weight.T + bias.

    Args:
        weight: weight of the linear layer.
        bias: bias of the linear layer, if it has one.
        packed: for several rows, use a copy of the weight in oneDNN's own memory layout. MKL's product of few rows
            reorders the weight at every call and takes 1.3 to 3 times as long (8 rows, one core).
    """

    def plain(x: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    if not packed:
        return plain
    multiply = pack_linear(weight, bias, rows=8)

    def product(x: Tensor) -> Tensor:
        return plain(x) if len(x) == 1 else multiply(x)

    return product


def _bind_together(layers: Sequence[nn.Linear], packed: bool) -> Products:
    """Return the function x -> outputs of linear layers of the same input, in one product if they are packed.

    A packed layer is a copy anyway. For one row that would cost more than the calls that it saves.
    """

    def plain(x: Tensor) -> Sequence[Tensor]:
        return [F.linear(x, layer.weight, layer.bias) for layer in layers]

    if not packed:
        return plain
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    weights = tuple(layer.weight for layer in layers)
    multiply = pack_linear(torch.cat(weights), torch.cat(biases) if biases else None, rows=8)
    sizes = [layer.out_features for layer in layers]

    def product(x: Tensor) -> Sequence[Tensor]:
        return plain(x) if len(x) == 1 else multiply(x).split(sizes, -1)

    return product
