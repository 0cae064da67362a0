"""Decoder-only language model: what all families of the registry have in common.

This module contains no distributed code: parallelism is applied from outside, by the names of the parameters
(`gpt2train.model.families`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.errors import UserError
from gpt2train.model.cache import Cache, Prefill, Step
from gpt2train.model.families import MODELS, is_tied, on_stage
from gpt2train.model.family_check import check_model, check_specification
from gpt2train.model.loss import IGNORE, LOGIT_ROWS, chunked_cross_entropy, soft_cap, softmax_terms
from gpt2train.model.shape import Shape
from gpt2train.plugins import load


def document_mask(documents: Tensor) -> Tensor:
    """Attention mask, bool [batch, 1, length, length], true for earlier tokens of the same document.

    Documents are the numbers of those of the tokens, [batch, length].
    """
    return (documents[:, None, :, None] == documents[:, None, None, :]).tril()


class SelfAttention(nn.Module):
    """Base class of causal self-attention; a family adds the projections.

    The number of heads follows from the tensors, so that a shard of the heads needs no change in a family.
    """

    def __init__(self, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.head_dim, self.dropout = head_dim, dropout

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, cache: Prefill | Step | None, mask: Tensor | None
    ) -> Tensor:
        """Attend over the given tokens and, with a cache, over all earlier ones.

        Args:
            query: [batch, heads, length, head_dim].
            key: [batch, kv_heads, length, head_dim]; `kv_heads` divides `heads`.
            value: like `key`.
            cache: KV cache of the layer, which is extended.
            mask: bool mask; None for causal attention.

        Returns:
            [batch, length, heads * head_dim].
        """
        length = query.shape[2]
        if cache is not None:
            key, value, mask = cache.extend(key, value)
        y = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None and length > 1,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return y.transpose(1, 2).flatten(2)


class InnerDropout(nn.Dropout):
    """Dropout of a part of the width: the heads, or the MLP's inner numbers, that a process has."""


class FinalNorm(nn.RMSNorm):
    """RMSNorm after which the model itself calls `CausalLM.enter`, since dropout comes between."""


class CausalLM(nn.Module):
    """Decoder-only language model, or one pipeline stage of it.

    `has_embeddings` and `has_head` are True if the model holds the embeddings and the head, as a whole model does. A
    pipeline stage (`keep_layers`) without the embeddings takes hidden states as input, and one without the head returns
    hidden states.

    A family creates, after `super().__init__(shape)`:

        wte        nn.Embedding [padded_vocab, hidden], the token embedding
        blocks     nn.ModuleDict of blocks, keyed by the layer number, so that a pipeline stage keeps the names;
                   block(x, cache, mask, positions) maps hidden states to hidden states
        ln_f       last norm, nn.LayerNorm or nn.RMSNorm
        lm_head    nn.Linear [padded_vocab, hidden] without bias, unless the output projection is `wte` itself (tied)

    and may have further modules, which a pipeline stage keeps as the family's specification says (`on_stage`). If
    blocks of a stage read the token ids too (`lookups`), its `reads_ids` is True.

    `build_model` turns a model with `shape.labels` into a sequence classifier: `score`, nn.Linear [labels, hidden]
    without bias, takes the place of the output projection and reads the last token of each sample, as in the classes
    `…ForSequenceClassification` of transformers.
    """

    wte: nn.Embedding
    blocks: nn.ModuleDict
    ln_f: nn.Module

    def __init__(self, shape: Shape, softcap: float = 0.0) -> None:
        super().__init__()
        self.shape, self.tied, self.softcap = shape, is_tied(shape), softcap
        self.has_embeddings = self.has_head = True
        self.layers = range(shape.layers)  # of this stage
        # Functions of (hidden states, output weight) and (hidden states, output weight, targets, z_loss=0). Vocabulary
        # parallelism replaces them.
        self.project: Callable[[Tensor, Tensor], Tensor] = F.linear
        self.cross_entropy: Callable[..., Tensor] = partial(chunked_cross_entropy, vocab=shape.vocab, softcap=softcap)
        self.stream: torch.dtype | None = None  # of the residual stream; None for that of the embeddings
        self.z_loss = 0.0  # of a training (`gpt2train.model.loss.chunked_cross_entropy`)
        # Tensor parallelism replaces these: entry to a region with all tokens, and slices of a sequence outside of it.
        self.enter: Callable[[Tensor], Tensor] = lambda x: x
        self.slices = 1
        self.kv_heads = MODELS[shape.family].kv_heads(shape)  # those of this process
        # Functions of (logits, targets, **extra) of an objective of its own (`gpt2train.model.objectives`).
        self.own_loss: Callable[..., Tensor] | None = None
        self.scores: Callable[..., Tensor] | None = None

    @property
    def reads_ids(self) -> bool:
        """True if blocks of this stage read the token ids."""
        return False

    @property
    def output_weight(self) -> Tensor:
        """Weight of the output projection, [padded_vocab, hidden]."""
        return self.wte.weight if self.tied else self.get_parameter("lm_head.weight")

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        cache: Sequence[Prefill | Step] | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        ids: Tensor | None = None,
        head: Callable[[Tensor], Tensor] | None = None,
        **extra: Tensor,
    ) -> Tensor:
        """Compute the logits of every position, or of every sample in a classifier, or with `targets` the summed loss.

        Args:
            tokens: int64 [batch, length], length <= context; hidden states [batch, length, hidden] in a pipeline stage
                without the embeddings.
            targets: int64 [batch, length], in a classifier [batch]; those of -100 are ignored.
            cache: KV cache of each layer (`gpt2train.model.cache`).
            positions: int64 [batch or 1, length]; by default 0, 1, 2 …
            documents: int64 [batch, length] document number of each token, to restrict attention to earlier tokens of
                the same document; not together with a cache.
            ids: int64 [batch, length] token ids, for a pipeline stage without the embeddings that `reads_ids`.
            head: function of the last hidden states whose result is returned in the place of logits; it can use the
                parameters, which FSDP gathers for the forward alone.
            extra: further tensors of the batch: those of the loss of an objective of its own, and for a classifier
                `lengths`, int64 [batch], tokens of each sample without the padding on the right, by default all.

        Returns:
            Logits [batch, length, padded_vocab], in a classifier float32 [batch, labels], or the float32 sum over the
            targets of -log p (not the mean: sums add up over micro-batches and ranks, means do not), in training with
            `z_loss` a vector of it and the second term, or the loss of the objective. In evaluation mode, if the
            objective has scores, [1 + sums] in `sum_dtype`: the loss and the scores.
            Hidden states in a pipeline stage without the head.
        """
        x = self.hidden(tokens, cache, positions, documents, ids)
        if not self.has_head:
            return x
        if self.shape.labels:
            return self._classified(x, targets, extra)
        if targets is None:
            return self.cap(self.project(x, self.output_weight)) if head is None else head(x)
        return self.losses(x, targets, extra)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits after some of the last hidden states, float32 [..., vocab], without the padding rows.

        They are whole on every process of a tensor-parallel group.
        """
        return self.cap(F.linear(hidden, self.output_weight[: self.shape.vocab])).float()

    def log_probs(
        self, hidden: Tensor, targets: Tensor, rows: Tensor | None = None, chunk: int = LOGIT_ROWS
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of each target after its hidden state, and True where it is the most likely token.

        Args:
            hidden: some of the last hidden states, [states, hidden].
            targets: int64 [targets], token ids.
            rows: int64 [targets], row of `hidden` before each target; by default each target has its own.
            chunk: hidden states whose logits are in memory at a time.

        Returns:
            float32 [targets] and bool [targets], whole on every process of a tensor-parallel group.
        """
        weight = self.output_weight[: self.shape.vocab]
        chosen, top, total, best = softmax_terms(hidden, weight, targets, rows, self.cap, chunk)
        return chosen - (total.log() + top), best == targets

    def cap(self, logits: Tensor) -> Tensor:
        """Apply the soft cap, if the model has one, to logits of the output projection."""
        return soft_cap(logits, self.softcap)

    def losses(self, x: Tensor, targets: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
        """Compute the summed loss, and in evaluation mode the scores, from the last hidden states."""
        z_loss = self.z_loss if self.training else 0.0
        if self.own_loss is None and (self.training or self.scores is None):
            return self.cross_entropy(x, self.output_weight, targets, z_loss=z_loss)
        logits = self.cap(self.project(x, self.output_weight)[..., : self.shape.vocab])
        return self._with_scores(
            logits, targets, extra, lambda: self.cross_entropy(x, self.output_weight, targets, z_loss=z_loss)
        )

    def _with_scores(
        self, logits: Tensor, targets: Tensor, extra: Mapping[str, Tensor], usual: Callable[[], Tensor]
    ) -> Tensor:
        """Compute the objective's own loss, by default the `usual` one, and in evaluation mode its scores after it."""
        loss = usual() if self.own_loss is None else self.own_loss(logits, targets, **extra)
        if self.training or self.scores is None:
            return loss
        scores = self.scores(logits, targets, **extra)
        return torch.cat((loss.to(scores.dtype)[None], scores))

    def _classified(self, x: Tensor, targets: Tensor | None, extra: Mapping[str, Tensor]) -> Tensor:
        """Logits of the last token of each sample, or with `targets` as `losses`."""
        lengths = extra.get("lengths")
        last = x[:, -1] if lengths is None else x[torch.arange(len(x), device=x.device), lengths - 1]
        logits: Tensor = self.get_submodule("score")(last).float()
        if targets is None:
            return logits
        usual = partial(F.cross_entropy, logits, targets, ignore_index=IGNORE, reduction="sum")
        return self._with_scores(logits, targets, extra, usual)

    def hidden(
        self,
        tokens: Tensor,
        cache: Sequence[Prefill | Step] | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> Tensor:
        """Compute the last hidden states [batch, length, hidden], for callers that need the logits of few positions."""
        x = self.embed(tokens, positions) if self.has_embeddings else tokens
        x = x if self.stream is None else x.to(self.stream)
        mask = None if documents is None else document_mask(documents)
        placed = self.positions(positions, x.shape[1] * self.slices, x)
        more: Mapping[str, tuple[Tensor, ...]] = {}
        if self.reads_ids:
            if (ids := tokens if self.has_embeddings else ids) is None:
                raise ValueError("blocks of this pipeline stage read the token ids, which were not given")
            more = self.lookups(ids)
        for i, (layer, block) in enumerate(self.blocks.items()):
            x = block(x, cache[i] if cache else None, mask, placed, *more.get(layer, ()))
        return self.ln_f(x) if self.has_head else x

    def new_cache(self, rows: int, context: int) -> Cache:
        """Empty KV cache of this stage, for `rows` sequences of up to `context` tokens."""
        like = next(self.parameters())
        return Cache(len(self.blocks), self.kv_heads, self.shape.head_dim, rows, context, like.dtype, like.device)

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: Cache) -> Tensor:
        """Add rows to a cache, and return the last hidden state after the last token of each, [rows, hidden].

        Args:
            tokens: int64 [rows, longest], padded on the right.
            lengths: number of tokens of each row.
            cache: cache of `new_cache`.
        """
        hidden = self.hidden(tokens, cache.prefill(lengths))
        return hidden[range(len(lengths)), [length - 1 for length in lengths]]

    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Add one token, int64 [rows], to every row of a cache, and return the last hidden states [rows, hidden]."""
        positions = torch.tensor(cache.lengths, device=cache.device)[:, None]
        return self.hidden(tokens[:, None], cache.step(), positions)[:, 0]

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute the input of the first block: by default the token embedding."""
        return self.wte(tokens)

    def positions(self, positions: Tensor | None, length: int, like: Tensor) -> Any:
        """Return the last argument of every block: by default the positions themselves.

        Args:
            positions: positions of the tokens, if they are not 0, 1, 2 …
            length: number of tokens.
            like: input of the first block, for device and dtype.
        """
        return positions

    def lookups(self, ids: Tensor) -> Mapping[str, tuple[Tensor, ...]]:
        """Return further arguments of some blocks, by the names of these in `blocks`: what they read by the token ids.

        Args:
            ids: int64 [batch, length], under sequence parallelism too.
        """
        return {}

    def sent_length(self, layer: int, context: int) -> int:
        """Length in tokens of what the stage before `layer` sends to the stage that begins with it."""
        return context

    def replace_head(self) -> Self:
        """Replace the output projection by the output layer of a sequence classifier, in place."""
        if hasattr(self, "lm_head"):
            del self.lm_head
        self.score = nn.Linear(self.shape.hidden, self.shape.labels, bias=False)
        return self

    def keep_layers(self, layers: range) -> Self:
        """Reduce the model, in place, to the pipeline stage of some layers.

        The stage of the first layer keeps the embeddings, that of the last layer the head, unless the family says
        otherwise (`on_stage`). Parameters keep their names. The whole model has one tied `wte`; the first and the last
        stage have a copy each.
        """
        self.layers = layers
        self.has_embeddings, self.has_head = layers.start == 0, layers.stop == self.shape.layers
        for name in [name for name in self.blocks if int(name) not in layers]:
            del self.blocks[name]
        outside = [name for name, _ in self.named_parameters() if not name.startswith("blocks.")]
        for module in {name.rpartition(".")[0] for name in outside if not on_stage(name, self.shape, layers)}:
            above, _, last = module.rpartition(".")
            delattr(self.get_submodule(above), last)
        return self


def build_model(shape: Shape, dropout: float = 0.0) -> CausalLM:
    """Create the model of a shape's family, on torch's default device, with undefined weights.

    Raises:
        UserError: the family's class cannot be imported, or differs from the specification of the family.
    """
    check_specification(shape)
    name = MODELS[shape.family].model
    model = load(name)(shape, dropout)
    if not isinstance(model, CausalLM):
        raise UserError(f"model family {shape.family}: {name} is not a subclass of CausalLM")
    if shape.labels:
        model.replace_head()
    check_model(model, shape)
    return model
