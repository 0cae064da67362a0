"""Decoding step of `LocalDecoder` with as few calls as possible, for an unsharded model on one device.

Small models are bound by call overhead: a step of 2.6 million parameters takes 0.9 ms through the modules, more than
half of it in Python and in views. Here the operations of a block are flat, add in place, and store key and value with
one copy. The reference implementation is `GPT2.hidden` with `gpt2train.model.cache.Step`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.compat.torch import can_pack_linear, pack_linear
from gpt2train.model.cache import Cache
from gpt2train.model.gpt2 import GPT2, Block

Linear = Callable[[Tensor], Tensor]


class FastDecodeStep:
    """Decoding step bound to a model's weights and to a KV cache.

    Args:
        model: unsharded model on one device, none of whose modules is replaced.
        cache: KV cache that the step reads and extends.
    """

    def __init__(self, model: GPT2, cache: Cache) -> None:
        self.model, self.cache = model, cache
        packed = cache.rows > 1 and can_pack_linear(model.wte.weight)
        shape, self.dtype = model.shape, model.wte.weight.dtype
        self.blocks = [_Block(block, packed) for block in model.blocks.values()]
        self.head = bind(model.output_weight[: shape.vocab], None, packed)  # without the padding rows of the vocabulary
        self.norm = _norm(model.ln_f)

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row and return the logits after it, [rows, vocab]."""
        cache, heads, head_dim = self.cache, self.model.shape.heads, self.model.shape.head_dim
        rows, lengths = len(tokens), cache.lengths
        longest = max(lengths) + 1
        position = torch.tensor(lengths, device=cache.device)
        equal = min(lengths) + 1 == longest
        mask, slots = None, None
        if not equal:  # an additive mask, since attention would convert a boolean one in every layer
            beyond = torch.arange(longest, device=cache.device) > position[:, None]
            mask = torch.zeros(beyond.shape, dtype=self.dtype, device=cache.device).masked_fill_(beyond, -torch.inf)
            mask = mask[:, None, None]
            # The new key of row r and head h is vector (r * heads + h) * context + length.
            first = torch.arange(0, rows * heads * cache.context, cache.context, device=cache.device)
            slots = (first.view(rows, heads) + position[:, None]).view(-1)
        x = F.embedding(torch.tensor(tokens, device=cache.device), self.model.wte.weight)
        x = x + F.embedding(position, self.model.wpe.weight)
        attend, split = F.scaled_dot_product_attention, (rows, heads, 3, head_dim)
        for block, (keys, values) in zip(self.blocks, cache.layers, strict=True):
            qkv = block.qkv(torch.layer_norm(x, *block.ln_1)).view(split)
            query, key, value = qkv.split(1, 2)
            if slots is None:
                keys[:rows, :, longest - 1 : longest] = key
                values[:rows, :, longest - 1 : longest] = value
            else:
                keys.view(-1, head_dim).index_copy_(0, slots, key.reshape(-1, head_dim))
                values.view(-1, head_dim).index_copy_(0, slots, value.reshape(-1, head_dim))
            y = attend(query, keys[:rows, :, :longest], values[:rows, :, :longest], attn_mask=mask)
            x += block.proj(y.view(rows, -1))
            x += block.down(block.activation(block.up(torch.layer_norm(x, *block.ln_2))))
        cache.lengths = [length + 1 for length in lengths]
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


def _norm(layer: nn.Module) -> tuple[Any, ...]:
    assert isinstance(layer, nn.LayerNorm)
    return layer.normalized_shape, layer.weight, layer.bias, layer.eps


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
