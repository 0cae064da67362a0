"""Decoding step of the family llama with as few calls as possible, for an unsharded model on one device.

The reference implementation is `Llama.hidden` with `gpt2train.model.cache.Step`. The query heads that share keys are
taken as several queries of one head, so that keys and values are never repeated.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.compat.torch import can_pack_linear, pack_linear
from gpt2train.inference.fast_decode_step import NewTokens, bind
from gpt2train.model.cache import Cache
from gpt2train.model.llama import Block, Llama
from gpt2train.model.llama_family import options_of

Products = Callable[[Tensor], Sequence[Tensor]]


class FastLlamaStep:
    """Decoding step bound to a model's weights and to a KV cache.

    Args:
        model: unsharded model on one device, none of whose modules is replaced.
        cache: KV cache that the step reads and extends.
    """

    def __init__(self, model: Llama, cache: Cache) -> None:
        self.model, self.cache = model, cache
        packed = cache.rows > 1 and can_pack_linear(model.wte.weight)
        shape, self.dtype = model.shape, model.wte.weight.dtype
        self.kv_heads = options_of(shape).kv_heads
        self.blocks = [_Block(block, packed) for block in model.blocks.values()]
        self.head = bind(model.output_weight[: shape.vocab], None, packed)  # without the padding rows of the vocabulary
        self.norm = _norm(model.ln_f)

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row and return the logits after it, [rows, vocab]."""
        new, head_dim, rows = NewTokens(self.cache, self.dtype), self.model.shape.head_dim, len(tokens)
        cos, sin = self.model.rotation(new.positions, new.longest, self.dtype)  # [rows, 1, head_dim]
        ids = torch.tensor(tokens, device=self.cache.device)
        x, added = F.embedding(ids, self.model.wte.weight), self.model.lookups(ids)
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


class _Block:
    """Bound weights of one block."""

    def __init__(self, block: nn.Module, packed: bool) -> None:
        assert isinstance(block, Block)
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
    assert isinstance(layer, nn.RMSNorm)
    return layer.normalized_shape, layer.weight, layer.eps


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
