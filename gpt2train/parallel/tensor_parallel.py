"""Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"), with sequence and vocabulary parallelism.

Parameters become DTensors on the tensor-parallel mesh, so that FSDP and checkpoints know their placements. The forward
computes on the local parts with plain operators, which takes a third less CPU time per step than DTensor's own
dispatch. Modules keep their identity and names; their class is replaced by a subclass with another `forward`.

    embedding, lm_head                          sharded by rows: part of the vocabulary
    linear layers (GPT-2: qkv, up)              sharded by rows: whole heads, part of the inner width
    projections to the residual (proj, down)    sharded by columns; the bias is replicated and added once, to the sum
    tables of position biases (T5)              sharded by columns: whole heads
    value embeddings                            sharded by columns: whole heads
    other embeddings, norms, score              replicated

Two collectives per block and direction, at the norms and after `proj` and `down`:
`gpt2train.parallel.tp_collectives`. A degree that does not divide the heads: `gpt2train.parallel.uneven_heads`.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from gpt2train.errors import UserError
from gpt2train.model.causal_lm import CausalLM, FinalNorm, InnerDropout, SelfAttention
from gpt2train.model.families import SCORE, shard_dim
from gpt2train.model.linear import Linear
from gpt2train.model.loss import LOGIT_ROWS
from gpt2train.model.rms_norm import rms_norm
from gpt2train.parallel import vocab_parallel
from gpt2train.parallel.head_split import HeadSplit
from gpt2train.parallel.norms import widened
from gpt2train.parallel.rng import per_rank_rng
from gpt2train.parallel.tp_collectives import Region
from gpt2train.parallel.uneven_heads import check_attention, uneven_form


def apply_tensor_parallel(model: CausalLM, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Shard a model, or one pipeline stage, over a tensor-parallel mesh, in place; it may be on the meta device.

    A mesh of size 1 changes nothing.

    Args:
        model: unsharded model, equal on all processes, before FSDP, compilation and activation checkpointing.
        mesh: one-dimensional mesh, whose size divides the sizes of the parameters, and under sequence parallelism the
            context, and is at most the number of heads (checked by `gpt2train.parallel.layout`).
        sequence_parallel: slice the activations outside attention and MLP along the sequence. This saves memory at no
            cost; the processes then need different seeds (`gpt2train.parallel.rng`).
    """
    if mesh.size() == 1:
        return
    check_attention(model, model.shape, mesh.size())
    region = Region(mesh, sequence_parallel)
    for name, module in model.named_modules():
        if isinstance(module, SelfAttention) and module.dropout:
            module.forward = functools.partial(_attend, module, module.forward, region)
        if isinstance(module, InnerDropout) and module.p:
            module.forward = functools.partial(_attend, module, module.forward, region)  # type: ignore[method-assign]
        uneven = uneven_form(model, name, module, model.shape, region)
        kind, needed = uneven or (_parallel_class(model, name, module), {})
        if kind is None:
            continue
        for last, parameter in list(module.named_parameters(recurse=False)):
            dim = shard_dim(f"{name}.{last}", model.shape, mesh.size())
            placement = Replicate() if dim is None else Shard(dim)
            sharded = distribute_tensor(parameter, mesh, [placement], src_data_rank=None)
            setattr(module, last, nn.Parameter(sharded, requires_grad=parameter.requires_grad))
        module.__class__ = kind
        for attribute, value in {"region": region, **needed}.items():
            setattr(module, attribute, value)
    model.project = lambda x, weight: vocab_parallel.logits(x, region.local(weight), region)
    model.enter, model.slices = region.enter, mesh.size() if sequence_parallel else 1
    model.kv_heads = HeadSplit.of(model.shape, mesh.size()).computed_keys(region.rank)
    vocab, softcap = model.shape.vocab, model.softcap

    def logits(hidden: Tensor) -> Tensor:
        return model.cap(model.project(hidden, model.output_weight)[..., :vocab]).float()

    def log_probs(
        hidden: Tensor, targets: Tensor, rows: Tensor | None = None, chunk: int = LOGIT_ROWS
    ) -> tuple[Tensor, Tensor]:
        weight = region.local(model.output_weight)
        return vocab_parallel.log_probs(hidden, weight, targets, rows, region, vocab, model.cap, chunk)

    model.logits, model.log_probs = logits, log_probs  # type: ignore[method-assign]
    model.cross_entropy = lambda x, weight, targets, z_loss=0.0: vocab_parallel.cross_entropy(
        x, region.local(weight), targets, region, vocab, softcap, z_loss
    )


def _parallel_class(model: CausalLM, name: str, module: nn.Module) -> type[nn.Module] | None:
    """Parallel subclass of a module's class; None for modules without parameters of their own.

    Raises:
        UserError: there is no parallel implementation of this class.
    """
    in_attention = isinstance(model.get_submodule(name.rpartition(".")[0]), SelfAttention)
    match module:
        case nn.Linear() if f"{name}.weight" == SCORE:
            return _ScoreLinear
        case nn.Linear():
            return _RowLinear if shard_dim(f"{name}.weight", model.shape) == 1 else _ColumnLinear
        case nn.Embedding() if shard_dim(f"{name}.weight", model.shape) == 1:
            return _ParallelHeadTable
        case nn.Embedding():
            return _ParallelTokenEmbedding if name == "wte" else _ParallelPositionEmbedding
        case nn.LayerNorm() if in_attention:  # its weights would get the gradient of this process's heads alone
            raise UserError(
                f"parallel.tp: {name} of the model family {model.shape.family} is a LayerNorm of queries or keys, "
                "which has no tensor-parallel form; use nn.RMSNorm, or parallel.tp = 1"
            )
        case nn.LayerNorm():
            return _ParallelLayerNorm
        case FinalNorm():
            return _ParallelFinalNorm
        case nn.RMSNorm():
            return _HeadRMSNorm if in_attention else _ParallelRMSNorm
    if next(module.parameters(recurse=False), None) is not None:
        raise UserError(
            f"parallel.tp: {name} of the model family {model.shape.family} is a {type(module).__name__}, which has no "
            "tensor-parallel form; use nn.Linear, nn.Embedding, nn.LayerNorm or nn.RMSNorm, or parallel.tp = 1"
        )
    return None


class _ParallelLayerNorm(nn.LayerNorm):
    """LayerNorm before a tensor-parallel region (attention, MLP or output projection)."""

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        weight = widened(self.region.local(self.weight), x)
        bias = None if self.bias is None else widened(self.region.local(self.bias), x)
        return self.region.enter(F.layer_norm(x, self.normalized_shape, weight, bias, self.eps))


class _ParallelFinalNorm(nn.RMSNorm):
    """RMSNorm outside of a tensor-parallel region, which the model enters later."""

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, widened(self.region.local(self.weight), x), self.eps)


class _ParallelRMSNorm(_ParallelFinalNorm):
    """RMSNorm before a tensor-parallel region."""

    def forward(self, x: Tensor) -> Tensor:
        return self.region.enter(super().forward(x))


class _HeadRMSNorm(nn.RMSNorm):
    """RMSNorm of queries or keys, inside a tensor-parallel region.

    Each process applies the replicated weight to its own heads, so that its gradient is partial.
    """

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, widened(self.region.partial(self.weight), x), self.eps)


class _ColumnLinear(Linear):
    """Column-parallel linear layer: computes a part of the outputs, without a collective."""

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.region.local(self.bias)
        return self.product(x, self.region.local(self.weight), bias)


class _RowLinear(Linear):
    """Row-parallel linear layer: uses a part of the inputs and sums over the processes."""

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        x = self.region.leave(self.product(x, self.region.local(self.weight)))
        return x if self.bias is None else x + self.region.local(self.bias).to(x.dtype)


class _ScoreLinear(nn.Linear):
    """Output layer of a classifier: replicated, and computed alike by all processes, since it has few columns."""

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        return F.linear(self.region.share(x), weight)


class _ParallelTokenEmbedding(nn.Embedding):
    """Vocabulary-parallel token embedding."""

    region: Region

    def forward(self, tokens: Tensor) -> Tensor:
        return vocab_parallel.embed(tokens, self.region.local(self.weight), self.region)


class _ParallelPositionEmbedding(nn.Embedding):
    """Position embedding: takes all positions and returns this process's slice of the sequence."""

    region: Region

    def forward(self, positions: Tensor) -> Tensor:
        return F.embedding(self.region.slice(positions, -1), self.region.local(self.weight))


class _ParallelHeadTable(nn.Embedding):
    """Table with one or several columns per attention head, of which a process has those of its heads."""

    region: Region

    def forward(self, rows: Tensor) -> Tensor:
        return F.embedding(rows, self.region.local(self.weight))


def _attend(
    module: SelfAttention | InnerDropout,
    forward: Callable[..., Tensor],
    region: Region,
    x: Tensor,
    *rest: Any,
    **more: Any,
) -> Tensor:
    """Attention, or dropout of the inner width, with another dropout mask on each process: its part is another one.

    Under sequence parallelism no special case is needed: the seeds of the processes already differ.
    """
    if region.sequence or not module.training:
        return forward(x, *rest, **more)
    return _attend_with_own_rng(forward, region, x, *rest, **more)


@torch.compiler.disable
def _attend_with_own_rng(forward: Callable[..., Tensor], region: Region, x: Tensor, *rest: Any, **more: Any) -> Tensor:
    # torch.compile cannot trace a change of the generator state, so this is a graph break.
    with per_rank_rng(region.rank, x.device):
        return forward(x, *rest, **more)
