"""One rank's shard of a distributed model for inference: some layers, and in each layer some heads.

Every rank receives the same calls in the same order (`gpt2train.inference.distributed_decoder`). Hidden states are sent
from stage to stage, the layers all-reduce over the tensor-parallel group, and rank 0 gathers the logits: every rank of
the last stage has those of its part of the vocabulary. A model with an encoder has one stage, and its own decoder.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.inference.decoder import Decoder
from gpt2train.inference.shard_loader import read_shard
from gpt2train.model.cache import Cache, Prefill, Step
from gpt2train.model.families import MODELS
from gpt2train.model.lazy_weights import LazyWeights, empty_model
from gpt2train.model.shape import Shape
from gpt2train.parallel.head_split import HeadSplit
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import PIPELINE, TENSOR, DistContext, make_mesh
from gpt2train.parallel.pipeline_stages import stage_layers
from gpt2train.parallel.tensor_parallel import apply_tensor_parallel
from gpt2train.plugins import load

LOGIT_ROWS = 1024  # rows of logits in memory at a time


class ModelShard:
    """Layers of this rank, and the KV cache of its heads; a collective object that every rank creates.

    Args:
        shape: shape of the whole model.
        layout: parallel layout of all ranks.
        dist_context: distributed context of this rank; its timeout applies to every communication.
    """

    def __init__(self, shape: Shape, layout: Layout, dist_context: DistContext) -> None:
        self.shape, self.device, self.layout = shape, dist_context.device, layout
        mesh = make_mesh(dist_context, layout)
        self.stage, self.pipeline_group = mesh[PIPELINE].get_local_rank(), mesh[PIPELINE].get_group()
        self.last: list[int] = mesh.mesh[-1].flatten().tolist()
        self.rank = dist_context.rank
        # Logits are gathered as float32 on the CPU over gloo, whatever backend the hidden states use.
        self.gather_group = dist.new_group(timeout=dist_context.timeout, backend="gloo")
        self.tp_rank = mesh[TENSOR].get_local_rank()
        self.layers = stage_layers(shape, layout.pp)[self.stage]
        self.model = empty_model(shape).keep_layers(self.layers).eval()
        apply_tensor_parallel(self.model, mesh[TENSOR], sequence_parallel=False)
        self.cache = self._cache(0, 0)
        self.has_encoder = len(MODELS[shape.family].lengths(shape)) > 1
        self.decoder: Decoder  # of a model with an encoder; it has a cache of its own

    def read(self, weights: LazyWeights) -> None:
        """Read the weights of this shard only.

        Args:
            weights: weights of the whole model.

        Raises:
            UserError: the weights do not have this shape, or cannot be read.
        """
        for name, weight in read_shard(weights, self.layers, self.layout.tp, self.tp_rank).items():
            module, _, last = name.rpartition(".")
            # Plain tensors instead of DTensors: no dispatch overhead, and the layers accept both.
            parameter = nn.Parameter(weight.to(self.device), requires_grad=False)
            setattr(self.model.get_submodule(module), last, parameter)

    def open(self, rows: int, context: int) -> None:
        """Replace the cache by an empty one for `rows` sequences of up to `context` tokens."""
        if self.has_encoder:

            def project(hidden: Tensor) -> Tensor | None:
                return self._gather_logits(hidden, len(hidden))

            self.decoder = load(MODELS[self.shape.family].decoder)(self.model, rows, context, project)
        else:
            self.cache = self._cache(rows, context)

    def add(self, lengths: Sequence[int], tokens: Tensor) -> Tensor | None:
        """Append rows and return the logits after the last token of each, on rank 0.

        Args:
            lengths: number of tokens of each row.
            tokens: token ids [rows, longest], padded on the right.
        """
        if self.has_encoder:
            return self.decoder.add([row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)])
        hidden = self._forward(tokens, self.cache.prefill(lengths))
        last = [length - 1 for length in lengths]
        return self._gather_logits(None if hidden is None else hidden[range(len(lengths)), last], len(lengths))

    def step(self, tokens: Tensor) -> Tensor | None:
        """Append one token to every row, [rows, 1], and return the logits after it, on rank 0."""
        if self.has_encoder:
            return self.decoder.step(tokens[:, 0].tolist())
        positions = torch.tensor(self.cache.lengths, device=self.device)[:, None]
        hidden = self._forward(tokens, self.cache.step(), positions)
        return self._gather_logits(None if hidden is None else hidden[:, 0], len(tokens))

    def select(self, sources: Sequence[int]) -> None:
        """Select rows of the cache as `Decoder.select` does."""
        (self.decoder if self.has_encoder else self.cache).select(sources)

    def logits(self, tokens: Tensor) -> Tensor | None:
        """Return the logits after every token of one sequence [1, length], on rank 0; the rows do not change."""
        hidden = self._forward(tokens)
        return self._gather_logits(None if hidden is None else hidden[0], tokens.shape[1])

    def score(self, tokens: Tensor, rows: Tensor, positions: Tensor, targets: Tensor) -> Tensor | None:
        """Return log-probability and greedy match (1 or 0) of each target, float64 [targets, 2], on rank 0.

        Four numbers are sent per target instead of its logits: 32 bytes instead of 200 kB at a vocabulary of 50,257.

        Args:
            tokens: sequences [rows, longest], padded on the right.
            rows: index of each target's sequence.
            positions: position in the sequence after which each target follows.
            targets: token ids to score.
        """
        hidden = self._forward(tokens)
        local = None
        if hidden is not None:
            hidden, targets = hidden[rows.to(self.device), positions.to(self.device)], targets.to(self.device)
            first = self.last.index(self.rank) * self.model.output_weight.shape[0]
            own = self.model.output_weight[: max(0, self.shape.vocab - first)]
            pieces = zip(hidden.split(LOGIT_ROWS), targets.split(LOGIT_ROWS), strict=True)
            logits = ((self.model.cap(F.linear(x, own)).float(), target - first) for x, target in pieces)
            local = torch.cat([_scored(one, column, first) for one, column in logits]).cpu()
        found = self._gather(local, (len(targets), 4), torch.float64)
        if found is None:
            return None
        top, total, picked, best = torch.stack(found).unbind(2)
        largest, of = top.max(0)
        whole = (total * (top - largest).exp()).sum(0)
        greedy = best.gather(0, of[None])[0] == targets.cpu()
        return torch.stack((picked.amax(0) - largest - whole.log(), greedy.double()), 1)

    def _forward(
        self, tokens: Tensor, cache: Sequence[Prefill | Step] | None = None, positions: Tensor | None = None
    ) -> Tensor | None:
        """Run this stage; returns the last hidden states [rows, length, hidden] on the last stage, None elsewhere."""
        x = tokens = tokens.to(self.device)
        if not self.model.has_embeddings:
            x = torch.empty(*tokens.shape, self.shape.hidden, device=self.device)
            dist.recv(x, group=self.pipeline_group, group_src=self.stage - 1)
        x = self.model.hidden(x, cache, positions, ids=tokens)
        if self.model.has_head:
            return x
        dist.send(x.contiguous(), group=self.pipeline_group, group_dst=self.stage + 1)
        return None

    def _gather_logits(self, hidden: Tensor | None, rows: int) -> Tensor | None:
        """Gather logits [rows, vocab] on rank 0 from the last stage's hidden states [rows, hidden]; None elsewhere."""
        local = None if hidden is None else self.model.cap(F.linear(hidden, self.model.output_weight)).float().cpu()
        found = self._gather(local, (rows, self.shape.padded_vocab // self.layout.tp), torch.float32)
        return None if found is None else torch.cat(found, 1)[:, : self.shape.vocab]

    def _gather(self, local: Tensor | None, size: tuple[int, int], dtype: torch.dtype) -> list[Tensor] | None:
        """Gather the tensors of the last stage's ranks on rank 0; None elsewhere."""
        if self.rank:
            if local is not None:
                dist.send(local, 0, group=self.gather_group)
            return None
        parts = []
        for rank in self.last:
            part = local if rank == 0 and local is not None else torch.empty(size, dtype=dtype)
            if rank:
                dist.recv(part, rank, group=self.gather_group)
            parts.append(part)
        return parts

    def _cache(self, rows: int, context: int) -> Cache:
        heads = HeadSplit.of(self.shape, self.layout.tp).computed_keys(self.tp_rank)
        layers = len(self.model.blocks)
        return Cache(layers, heads, self.shape.head_dim, rows, context, torch.float32, self.device)


def _scored(logits: Tensor, column: Tensor, first: int) -> Tensor:
    """Score targets on one shard of the vocabulary.

    Args:
        logits: logits of the shard, [rows, shard].
        column: column of each target in the shard; out of bounds if the target belongs to another shard.
        first: token id of the shard's first column.

    Returns:
        Largest logit, sum of exp(logit - largest), the target's logit (-inf if it belongs to another shard) and the id
        of the most likely token, float64 [rows, 4].
    """
    if not logits.shape[1]:  # a shard of padding only
        return logits.new_tensor([-torch.inf, 0, -torch.inf, -1], dtype=torch.float64).repeat(len(logits), 1)
    top, best = logits.max(1)
    here = (column >= 0) & (column < logits.shape[1])
    picked = logits.gather(1, column.where(here, 0)[:, None])[:, 0].masked_fill(~here, -torch.inf)
    total = (logits - top[:, None]).exp().sum(1)
    return torch.stack((top.double(), total.double(), picked.double(), (best + first).double()), 1)
