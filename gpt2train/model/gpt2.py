"""GPT-2 as published: pre-LN blocks, learned positions, tanh-GELU, tied input and output embeddings.

Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; layer order and names of the
OpenAI code. Nothing here knows of distribution: parallelism is applied from outside.
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
    """Who may look at whom: bool [batch, 1, length, length], true for earlier tokens of the same document.

    Args:
        documents: [batch, length] number of each token's document.
    """
    return (documents[:, None, :, None] == documents[:, None, None, :]).tril()


class Attention(nn.Module):
    """Causal self-attention.

    The rows of the fused `qkv` projection are ordered [head, (q, k, v), head_dim]: a contiguous slice of rows holds
    whole heads, which is what a column-parallel split needs, and it is Megatron's order since checkpoint version 2.
    """

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.dropout = dropout
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.proj = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, x: Tensor, cache: Prefill | Step | None = None, mask: Tensor | None = None) -> Tensor:
        batch, length, _ = x.shape
        # The number of heads falls out of the width, so that a shard of the heads needs no change here.
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
        x = x + self.drop(self.attn(self.ln_1(x), cache, mask))
        return x + self.drop(self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh")))


class GPT2(nn.Module):
    """The language model. The output projection is the token embedding `wte` itself (tied).

    `begins` and `ends` say whether the embeddings and the head are here, as they are in a whole model. One that was cut
    (`keep_only`) takes hidden states where it does not begin, and gives hidden states where it does not end.
    """

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.begins = self.ends = True
        self.wte = nn.Embedding(shape.padded_vocab, shape.hidden)
        self.wpe = nn.Embedding(shape.context, shape.hidden)
        self.drop = nn.Dropout(dropout)
        # Keyed by layer number, so that a pipeline stage that keeps layers 4..7 keeps their names too.
        self.blocks = nn.ModuleDict({str(i): Block(shape, dropout) for i in range(shape.layers)})
        self.ln_f = nn.LayerNorm(shape.hidden)
        # Of (hidden states, weight of wte) or (…, targets): functions, so that a layout on which every process has a
        # part of the vocabulary can put its own in their place.
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
        """Logits of every position, or with `targets` the summed loss.

        Args:
            tokens: int64 [batch, length], length <= context; hidden states [batch, length, hidden] where the model does
                not begin.
            targets: int64 [batch, length]; -100 marks positions that do not count.
            cache: of each layer, what keeps its keys and values (`gpt2train.model.cache`).
            positions: int64 [batch or 1, length] where they are not 0, 1, 2 …
            documents: int64 [batch, length] number of each token's document, where a token may look at earlier tokens
                of its own document only; not together with a cache.

        Returns:
            Logits [batch, length, padded_vocab], or the float32 sum over the targets of -log p (not the mean: sums
            add up over micro-batches and ranks, means do not). Hidden states where the model does not end.
        """
        x = self.hidden(tokens, cache, positions, documents)
        if not self.ends:
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
        """The last hidden states [batch, length, hidden], for callers that want the logits of a few positions only."""
        x = self.embed(tokens, positions) if self.begins else tokens
        mask = None if documents is None else document_mask(documents)
        for i, block in enumerate(self.blocks.values()):
            x = block(x, cache[i] if cache else None, mask)
        return self.ln_f(x) if self.ends else x

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """What goes into the first block: token and position embedding, after dropout."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.drop(self.wte(tokens) + self.wpe(positions))

    def keep_only(self, layers: range) -> "GPT2":
        """Cut the model down to some of its layers; the first brings the embeddings along, the last the head.

        Parameters keep their names. Where the whole model has one tied `wte`, the two ends have one each.
        """
        self.begins, self.ends = layers.start == 0, layers.stop == self.shape.layers
        for name in [name for name in self.blocks if int(name) not in layers]:
            del self.blocks[name]
        if not self.begins:
            del self.wpe, self.drop
        if not self.ends:
            del self.ln_f
        if not (self.begins or self.ends):
            del self.wte
        return self
