"""Llama and its relatives: pre-RMSNorm blocks, rotary positions, grouped-query attention, SwiGLU or ReLU².

Sources: Touvron et al. 2023, "Llama 2"; Su et al. 2021, "RoFormer" (rotary positions); Ainslie et al. 2023, "GQA";
Shazeer 2020, "GLU Variants Improve Transformer"; So et al. 2021, "Primer" (ReLU²); Yang et al. 2025, "Qwen3 Technical
Report" (norm of queries and keys); Zhou et al. 2024, "Value Residual Learning", and Jordan et al. 2024,
"modded-nanogpt" (value embeddings, norm of the embedding).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.model.cache import Prefill, Step
from gpt2train.model.causal_lm import CausalLM, SelfAttention
from gpt2train.model.device import product_dtype
from gpt2train.model.llama_family import blocks_of_table, options_of
from gpt2train.model.rms_norm import RMSNorm
from gpt2train.model.rope_scaling import parse_rope_scaling
from gpt2train.model.rotary import Rotation, rotate, rotation, scaled_frequencies
from gpt2train.model.shape import Shape


class Attention(SelfAttention):
    """Grouped-query attention with rotary positions, and norms of queries and keys if wanted."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        chosen = options_of(shape)
        super().__init__(chosen.head_dim, dropout)
        q_width, kv_width = (heads * chosen.head_dim for heads in (shape.heads, chosen.kv_heads))
        qkv_bias, proj_bias = chosen.attention_bias != "none", chosen.attention_bias == "all"
        self.q = nn.Linear(shape.hidden, q_width, bias=qkv_bias)
        self.k = nn.Linear(shape.hidden, kv_width, bias=qkv_bias)
        self.v = nn.Linear(shape.hidden, kv_width, bias=qkv_bias)
        self.q_norm = RMSNorm(chosen.head_dim, eps=chosen.norm_eps) if chosen.qk_norm else None
        self.k_norm = RMSNorm(chosen.head_dim, eps=chosen.norm_eps) if chosen.qk_norm else None
        self.proj = nn.Linear(q_width, shape.hidden, bias=proj_bias)

    def forward(
        self,
        x: Tensor,
        cache: Prefill | Step | None,
        mask: Tensor | None,
        positions: Rotation,
        added: Tensor | None = None,
    ) -> Tensor:
        """Attend over the hidden states [batch, length, hidden] and, with a cache, over all earlier tokens.

        `added` has value embeddings [batch, length, width of the values]; the others are as of `SelfAttention.attend`.
        """
        query, key, value = self.q(x), self.k(x), self.v(x)
        if added is not None:
            value = value + added
        # -1: the heads of this process, all of them or, under tensor parallelism, a part.
        query, key, value = (heads.unflatten(-1, (-1, self.head_dim)) for heads in (query, key, value))
        if self.q_norm is not None and self.k_norm is not None:
            # Under autocast in float32: torch has no fused norm of half-precision numbers with a float32 weight.
            dtype, wide = query.dtype, self.q_norm.weight.dtype
            query, key = self.q_norm(query.to(wide)).to(dtype), self.k_norm(key.to(wide)).to(dtype)
        query, key = rotate(query, positions), rotate(key, positions)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        return self.proj(self.attend(query, key, value, cache, mask))


class Block(nn.Module):
    """One pre-norm block: x + attention(ln_1(x)), then x + mlp(ln_2(x))."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        chosen = options_of(shape)
        inner, bias = chosen.inner, chosen.mlp_bias
        self.ln_1 = RMSNorm(shape.hidden, eps=chosen.norm_eps)
        self.attn = Attention(shape, dropout)
        self.ln_2 = RMSNorm(shape.hidden, eps=chosen.norm_eps)
        self.gate = nn.Linear(shape.hidden, inner, bias=bias) if chosen.activation == "swiglu" else None
        self.up = nn.Linear(shape.hidden, inner, bias=bias)
        self.down = nn.Linear(inner, shape.hidden, bias=bias)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, *arguments: Any) -> Tensor:
        """Apply attention and MLP to the hidden states [batch, length, hidden]; further arguments as of `Attention`."""
        x = x + self.drop(self.attn(self.ln_1(x), *arguments))
        h = self.ln_2(x)
        h = F.relu(self.up(h)).square() if self.gate is None else F.silu(self.gate(h)) * self.up(h)
        return x + self.drop(self.down(h))


class Llama(CausalLM):
    """The language model."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        chosen = options_of(shape)
        super().__init__(shape, chosen.logit_softcap)
        self.embedding_norm, self.norm_eps = chosen.embedding_norm, chosen.norm_eps
        self.theta, self.scaling = chosen.rope_theta, parse_rope_scaling(chosen.rope_scaling)
        self.wte = nn.Embedding(shape.padded_vocab, shape.hidden)
        tables, width = range(chosen.value_embeddings), chosen.kv_heads * chosen.head_dim
        self.values = nn.ModuleDict({str(table): nn.Embedding(shape.padded_vocab, width) for table in tables})
        self.blocks = nn.ModuleDict({str(i): Block(shape, dropout) for i in range(shape.layers)})
        self.ln_f = RMSNorm(shape.hidden, eps=chosen.norm_eps)
        if not self.tied:
            self.lm_head = nn.Linear(shape.hidden, shape.padded_vocab, bias=False)

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute the input of the first block: the token embedding, or its norm."""
        x = super().embed(tokens, positions)
        return F.rms_norm(x, x.shape[-1:], eps=self.norm_eps) if self.embedding_norm else x

    def positions(self, positions: Tensor | None, length: int, like: Tensor) -> Rotation:
        """Compute the rotation of queries and keys, once for all blocks."""
        if positions is None:
            positions = torch.arange(length, device=like.device)[None]
        elif self.scaling is not None and self.scaling.rope_type == "dynamic":
            length = int(positions.max()) + 1
        return self.rotation(positions, length, product_dtype(like))

    def rotation(self, positions: Tensor, length: int, dtype: torch.dtype) -> Rotation:
        """Compute the rotation at some positions, where the longest text has `length` tokens."""
        frequencies, scale = scaled_frequencies(self.shape.head_dim, self.theta, self.scaling, length, positions.device)
        return rotation(positions, frequencies, scale, dtype)

    @property
    def reads_ids(self) -> bool:
        """True if blocks of this stage have value embeddings."""
        return len(self.values) > 0

    def lookups(self, ids: Tensor) -> Mapping[str, tuple[Tensor, ...]]:
        """Look up the value embeddings, once for both blocks of a table."""
        found: dict[str, tuple[Tensor, ...]] = {}
        for table, rows in self.values.items():
            added = rows(ids)
            added = added.to(product_dtype(added))
            found |= {str(layer): (added,) for layer in blocks_of_table(self.shape, int(table))}
        return found
