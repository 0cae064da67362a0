"""One more token of every row with as few calls as it takes: the step of `LocalDecoder`, for the whole plain model.

At small sizes a step is not computing but calling: of the 0.9 ms that a step of 2.6 million parameters takes through
the modules, more than half went into Python and into views. Here the operations of a block follow each other flat, add
in place, and keep key and value by one copy. `GPT2.hidden` with `gpt2train.model.cache.Step` is the plain twin.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.model.cache import Cache
from gpt2train.model.gpt2 import GPT2, Block

Linear = Callable[[Tensor], Tensor]


class LeanStep:
    """The model's step, bound to its weights and to a cache.

    Args:
        model: whole and plain: no part of it replaced, everything on one device.
        cache: what its rows read and extend.
    """

    def __init__(self, model: GPT2, cache: Cache) -> None:
        self.model, self.cache = model, cache
        packed = cache.rows > 1 and can_pack(model.wte.weight)
        shape, self.dtype = model.shape, model.wte.weight.dtype
        self.blocks = [_Block(block, packed) for block in model.blocks.values()]
        self.head = bind(model.wte.weight[: shape.vocab], None, packed)  # a row that pads the vocabulary is never drawn
        self.norm = (shape.hidden,), model.ln_f.weight, model.ln_f.bias, model.ln_f.eps

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int]) -> Tensor:
        """Logits [rows, vocab] after one more token of every row."""
        cache, heads, head_dim = self.cache, self.model.shape.heads, self.model.shape.head_dim
        rows, lengths = len(tokens), cache.lengths
        longest = max(lengths) + 1
        at = torch.tensor(lengths, device=cache.device)
        equal = min(lengths) + 1 == longest
        mask, places = None, None
        if not equal:  # a mask of numbers, since attention would make one of a bool mask in every layer
            beyond = torch.arange(longest, device=cache.device) > at[:, None]
            mask = torch.zeros(beyond.shape, dtype=self.dtype, device=cache.device).masked_fill_(beyond, -torch.inf)
            mask = mask[:, None, None]
            # Of row r and head h the vector (r * heads + h) * context + length.
            first = torch.arange(0, rows * heads * cache.context, cache.context, device=cache.device)
            places = (first.view(rows, heads) + at[:, None]).view(-1)
        x = F.embedding(torch.tensor(tokens, device=cache.device), self.model.wte.weight)
        x = x + F.embedding(at, self.model.wpe.weight)
        attend, split = F.scaled_dot_product_attention, (rows, heads, 3, head_dim)
        for block, (keys, values) in zip(self.blocks, cache.layers, strict=True):
            qkv = block.qkv(torch.layer_norm(x, *block.ln_1)).view(split)
            query, key, value = qkv.split(1, 2)
            if places is None:
                keys[:rows, :, longest - 1 : longest] = key
                values[:rows, :, longest - 1 : longest] = value
            else:
                keys.view(-1, head_dim).index_copy_(0, places, key.reshape(-1, head_dim))
                values.view(-1, head_dim).index_copy_(0, places, value.reshape(-1, head_dim))
            y = attend(query, keys[:rows, :, :longest], values[:rows, :, :longest], attn_mask=mask)
            x += block.proj(y.view(rows, -1))
            y = F.gelu(block.up(torch.layer_norm(x, *block.ln_2)), approximate="tanh")
            x += block.down(y)
        cache.lengths = [length + 1 for length in lengths]
        return self.head(torch.layer_norm(x, *self.norm))


class _Block:
    """A block's weights, bound."""

    def __init__(self, block: nn.Module, packed: bool) -> None:
        assert isinstance(block, Block)
        self.ln_1, self.ln_2 = _norm(block.ln_1), _norm(block.ln_2)
        self.qkv = bind(block.attn.qkv.weight, block.attn.qkv.bias, packed)
        self.proj = bind(block.attn.proj.weight, block.attn.proj.bias, packed)
        self.up = bind(block.up.weight, block.up.bias, packed)
        self.down = bind(block.down.weight, block.down.bias, packed)


def _norm(layer: nn.LayerNorm) -> tuple[Any, ...]:
    return layer.normalized_shape, layer.weight, layer.bias, layer.eps


def bind(weight: Tensor, bias: Tensor | None, packed: bool) -> Linear:
    """x -> x @ weight.T + bias.

    With `packed` several rows go through a copy of the weight in the order in which oneDNN reads it. MKL's product of
    few rows brings the weight into its own order at every call, and takes 1.3 to 3 times as long (8 rows, one core).
    """

    def plain(x: Tensor) -> Tensor:
        return torch._C._nn.linear(x, weight, bias)

    if not packed:
        return plain
    ordered = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
    multiply = torch.ops.mkldnn._linear_pointwise

    def product(x: Tensor) -> Tensor:
        return plain(x) if len(x) == 1 else multiply(x, ordered, bias, "none", [], "")

    return product


def can_pack(weight: Tensor) -> bool:
    """Whether this torch has oneDNN's packed product, for weights of this kind and place."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
