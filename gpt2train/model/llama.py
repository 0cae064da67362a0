"""Llama and its relatives: pre-RMSNorm blocks, rotary positions, grouped-query attention, SwiGLU or ReLU².

Sources: Touvron et al. 2023, "Llama 2"; Su et al. 2021, "RoFormer" (rotary positions); Ainslie et al. 2023, "GQA";
Shazeer 2020, "GLU Variants Improve Transformer"; So et al. 2021, "Primer" (ReLU²); Yang et al. 2025, "Qwen3 Technical
Report" (norm of queries and keys). The order of dimensions in a head is that of `transformers`, half by half.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.model.cache import Prefill, Step
from gpt2train.model.causal_lm import CausalLM, SelfAttention
from gpt2train.model.llama_family import options_of
from gpt2train.model.shape import Shape


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate pairs of numbers of each head by angles that grow with the position.

    Args:
        x: [batch, heads, length, head_dim]; number i is paired with number i + head_dim / 2.
        positions: [batch or 1, length].
        theta: base of the frequencies.
    """
    half = x.shape[-1] // 2
    # The arithmetic of transformers, since a rounding error of a frequency grows with the position.
    frequencies = 1.0 / theta ** (torch.arange(0, 2 * half, 2, dtype=torch.float32, device=x.device) / (2 * half))
    angles = positions[:, None, :, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.split(half, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(SelfAttention):
    """Grouped-query attention with rotary positions, and norms of queries and keys if wanted."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        chosen = options_of(shape)
        super().__init__(chosen.head_dim, dropout)
        self.theta = chosen.rope_theta
        q_width, kv_width = (heads * chosen.head_dim for heads in (shape.heads, chosen.kv_heads))
        qkv_bias, proj_bias = chosen.attention_bias != "none", chosen.attention_bias == "all"
        self.q = nn.Linear(shape.hidden, q_width, bias=qkv_bias)
        self.k = nn.Linear(shape.hidden, kv_width, bias=qkv_bias)
        self.v = nn.Linear(shape.hidden, kv_width, bias=qkv_bias)
        self.q_norm = nn.RMSNorm(chosen.head_dim, eps=chosen.norm_eps) if chosen.qk_norm else None
        self.k_norm = nn.RMSNorm(chosen.head_dim, eps=chosen.norm_eps) if chosen.qk_norm else None
        self.proj = nn.Linear(q_width, shape.hidden, bias=proj_bias)

    def forward(
        self,
        x: Tensor,
        cache: Prefill | Step | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attend over the hidden states [batch, length, hidden] and, with a cache, over all earlier tokens."""
        # -1: the heads of this process, all of them or, under tensor parallelism, a part.
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        if positions is None:
            positions = torch.arange(query.shape[2], device=x.device)[None]
        if self.q_norm is not None and self.k_norm is not None:
            # Under autocast in float32: torch has no fused norm of half-precision numbers with a float32 weight.
            dtype, wide = query.dtype, self.q_norm.weight.dtype
            query, key = self.q_norm(query.to(wide)).to(dtype), self.k_norm(key.to(wide)).to(dtype)
        query, key = (rotate(x, positions, self.theta) for x in (query, key))
        return self.proj(self.attend(query, key, value, cache, mask))


class Block(nn.Module):
    """One pre-norm block: x + attention(ln_1(x)), then x + mlp(ln_2(x))."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        chosen = options_of(shape)
        inner, bias = chosen.inner, chosen.mlp_bias
        self.ln_1 = nn.RMSNorm(shape.hidden, eps=chosen.norm_eps)
        self.attn = Attention(shape, dropout)
        self.ln_2 = nn.RMSNorm(shape.hidden, eps=chosen.norm_eps)
        self.gate = nn.Linear(shape.hidden, inner, bias=bias) if chosen.activation == "swiglu" else None
        self.up = nn.Linear(shape.hidden, inner, bias=bias)
        self.down = nn.Linear(inner, shape.hidden, bias=bias)
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        cache: Prefill | Step | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Apply attention and MLP to the hidden states [batch, length, hidden]."""
        x = x + self.drop(self.attn(self.ln_1(x), cache, mask, positions))
        h = self.ln_2(x)
        h = F.relu(self.up(h)).square() if self.gate is None else F.silu(self.gate(h)) * self.up(h)
        return x + self.drop(self.down(h))


class Llama(CausalLM):
    """The language model."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__(shape)
        self.wte = nn.Embedding(shape.padded_vocab, shape.hidden)
        self.blocks = nn.ModuleDict({str(i): Block(shape, dropout) for i in range(shape.layers)})
        self.ln_f = nn.RMSNorm(shape.hidden, eps=options_of(shape).norm_eps)
        if not self.tied:
            self.lm_head = nn.Linear(shape.hidden, shape.padded_vocab, bias=False)
