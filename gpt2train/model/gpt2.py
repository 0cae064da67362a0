"""GPT-2 as published: pre-LN blocks, learned positions, tanh-GELU, tied input and output embeddings.

Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; layer order and names of the
OpenAI code. This module contains no distributed code: parallelism is applied from outside.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.model.cache import Prefill, Step
from gpt2train.model.loss import chunked_cross_entropy
from gpt2train.model.shape import Shape


def document_mask(documents: Tensor) -> Tensor:
    """Attention mask, bool [batch, 1, length, length], true for earlier tokens of the same document.

    Args:
        documents: [batch, length] document number of each token.
    """
    return (documents[:, None, :, None] == documents[:, None, None, :]).tril()


class Attention(nn.Module):
    """Causal self-attention.

    The rows of the fused `qkv` projection are ordered [head, (q, k, v), head_dim]: a contiguous slice of rows holds
    whole heads, as a column-parallel split requires, and it is Megatron's order since checkpoint version 2.
    """

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.dropout = dropout
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.proj = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, x: Tensor, cache: Prefill | Step | None = None, mask: Tensor | None = None) -> Tensor:
        """Attend over the hidden states [batch, length, hidden] and, with a cache, over all earlier tokens."""
        batch, length, _ = x.shape
        # The number of heads follows from the width, so that a shard of the heads needs no change here.
        query, key, value = self.qkv(x).view(batch, length, -1, 3, self.head_dim).transpose(1, 2).unbind(3)
        if cache is not None:
            key, value, mask = cache.extend(key, value)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None and length > 1
        )
        return self.proj(y.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    """One pre-LN transformer block: x + attention(ln_1(x)), then x + mlp(ln_2(x))."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.hidden)
        self.attn = Attention(shape, dropout)
        self.ln_2 = nn.LayerNorm(shape.hidden)
        self.up = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.down = nn.Linear(4 * shape.hidden, shape.hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: Prefill | Step | None = None, mask: Tensor | None = None) -> Tensor:
        """Apply attention and MLP to the hidden states [batch, length, hidden]."""
        x = x + self.drop(self.attn(self.ln_1(x), cache, mask))
        return x + self.drop(self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh")))


class GPT2(nn.Module):
    """The language model. The output projection is the token embedding `wte` itself (tied).

    `has_embeddings` and `has_head` are True if the model holds the embeddings and the head, as a whole model does. A
    pipeline stage (`keep_layers`) without the embeddings takes hidden states as input, and one without the head returns
    hidden states.
    """

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.has_embeddings = self.has_head = True
        self.wte = nn.Embedding(shape.padded_vocab, shape.hidden)
        self.wpe = nn.Embedding(shape.context, shape.hidden)
        self.drop = nn.Dropout(dropout)
        # Keyed by layer number, so that a pipeline stage that keeps layers 4..7 keeps their names too.
        self.blocks = nn.ModuleDict({str(i): Block(shape, dropout) for i in range(shape.layers)})
        self.ln_f = nn.LayerNorm(shape.hidden)
        # Functions of (hidden states, weight of wte) and (hidden states, weight of wte, targets). Vocabulary
        # parallelism replaces them.
        self.project: Callable[[Tensor, Tensor], Tensor] = F.linear
        self.cross_entropy: Callable[[Tensor, Tensor, Tensor], Tensor] = partial(
            chunked_cross_entropy, vocab=shape.vocab
        )

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        cache: Sequence[Prefill | Step] | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of every position, or with `targets` the summed loss.

        Args:
            tokens: int64 [batch, length], length <= context; hidden states [batch, length, hidden] in a pipeline stage
                without the embeddings.
            targets: int64 [batch, length]; positions with -100 are ignored.
            cache: KV cache of each layer (`gpt2train.model.cache`).
            positions: int64 [batch or 1, length]; by default 0, 1, 2 …
            documents: int64 [batch, length] document number of each token, to restrict attention to earlier tokens of
                the same document; not together with a cache.

        Returns:
            Logits [batch, length, padded_vocab], or the float32 sum over the targets of -log p (not the mean: sums
            add up over micro-batches and ranks, means do not). Hidden states in a pipeline stage without the head.
        """
        x = self.hidden(tokens, cache, positions, documents)
        if not self.has_head:
            return x
        if targets is None:
            return self.project(x, self.wte.weight)
        return self.cross_entropy(x, self.wte.weight, targets)

    def hidden(
        self,
        tokens: Tensor,
        cache: Sequence[Prefill | Step] | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Compute the last hidden states [batch, length, hidden], for callers that need the logits of few positions."""
        x = self.embed(tokens, positions) if self.has_embeddings else tokens
        mask = None if documents is None else document_mask(documents)
        for i, block in enumerate(self.blocks.values()):
            x = block(x, cache[i] if cache else None, mask)
        return self.ln_f(x) if self.has_head else x

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute the input of the first block: token and position embeddings, after dropout."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.drop(self.wte(tokens) + self.wpe(positions))

    def keep_layers(self, layers: range) -> "GPT2":
        """Reduce the model, in place, to the pipeline stage of some layers.

        The stage of the first layer keeps the embeddings, that of the last layer the head. Parameters keep their names.
        The whole model has one tied `wte`; the first and the last stage have a copy each.
        """
        self.has_embeddings, self.has_head = layers.start == 0, layers.stop == self.shape.layers
        for name in [name for name in self.blocks if int(name) not in layers]:
            del self.blocks[name]
        if not self.has_embeddings:
            del self.wpe, self.drop
        if not self.has_head:
            del self.ln_f
        if not (self.has_embeddings or self.has_head):
            del self.wte
        return self
