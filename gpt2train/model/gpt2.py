"""GPT-2: pre-LN blocks, learned positions; as published tanh-GELU, biases, tied input and output embeddings.

Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; layer order and names of the
OpenAI code.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.model.cache import Prefill, Step
from gpt2train.model.causal_lm import CausalLM, SelfAttention
from gpt2train.model.gpt2_family import options_of
from gpt2train.model.shape import Shape

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}


class Attention(SelfAttention):
    """Causal self-attention with a fused projection.

    The rows of `qkv` are ordered [head, (q, k, v), head_dim]: a contiguous slice of rows holds whole heads, as a
    column-parallel split requires, and it is Megatron's order since checkpoint version 2.
    """

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__(shape.head_dim, dropout)
        width, bias = shape.heads * shape.head_dim, options_of(shape).bias
        self.qkv = nn.Linear(shape.hidden, 3 * width, bias=bias)
        self.proj = nn.Linear(width, shape.hidden, bias=bias)

    def forward(self, x: Tensor, cache: Prefill | Step | None = None, mask: Tensor | None = None) -> Tensor:
        """Attend over the hidden states [batch, length, hidden] and, with a cache, over all earlier tokens."""
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).view(batch, length, -1, 3, self.head_dim).transpose(1, 2).unbind(3)
        return self.proj(self.attend(query, key, value, cache, mask))


class Block(nn.Module):
    """One pre-LN transformer block: x + attention(ln_1(x)), then x + mlp(ln_2(x))."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        chosen = options_of(shape)
        self.activation = ACTIVATIONS[chosen.activation]
        self.ln_1 = nn.LayerNorm(shape.hidden, bias=chosen.bias)
        self.attn = Attention(shape, dropout)
        self.ln_2 = nn.LayerNorm(shape.hidden, bias=chosen.bias)
        self.up = nn.Linear(shape.hidden, chosen.inner, bias=chosen.bias)
        self.down = nn.Linear(chosen.inner, shape.hidden, bias=chosen.bias)
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        cache: Prefill | Step | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Apply attention and MLP to the hidden states [batch, length, hidden]; the positions are in them already."""
        x = x + self.drop(self.attn(self.ln_1(x), cache, mask))
        return x + self.drop(self.down(self.activation(self.up(self.ln_2(x)))))


class GPT2(CausalLM):
    """The language model."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__(shape)
        self.wte = nn.Embedding(shape.padded_vocab, shape.hidden)
        self.wpe = nn.Embedding(shape.context, shape.hidden)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleDict({str(i): Block(shape, dropout) for i in range(shape.layers)})
        self.ln_f = nn.LayerNorm(shape.hidden, bias=options_of(shape).bias)
        if not self.tied:
            self.lm_head = nn.Linear(shape.hidden, shape.padded_vocab, bias=False)

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute the input of the first block: token and position embeddings, after dropout."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.drop(self.wte(tokens) + self.wpe(positions))
