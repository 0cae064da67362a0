"""Attention whose heads a tensor-parallel degree does not divide (`gpt2train.parallel.head_split`).

Parameters stay DTensors of equal shards, so that FSDP, Muon, checkpoints and the gradient norm see nothing new. When a
layer of the attention is used, each process gets the rows of its heads that others store, and in the backward pass
sends their gradients back: an all-to-all of a part of the weight that shrinks with the number of heads, since most rows
are stored where they are used. Of 25 heads on 8 processes 14 % move, where an all-gather would move seven copies.

    qkv; q, k, v         rows of the weight and of the bias
    proj                 columns of the weight
    tables of T5         replicated; each process takes the columns of its heads
    value embeddings     split by columns; exchanged is what was looked up, which has fewer rows

Heads of keys and values that belong to heads of queries on several processes are computed by each of these. Where a
process has unequal numbers of queries for them, they are repeated, one for each head of queries.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from gpt2train.errors import UserError
from gpt2train.model.causal_lm import SelfAttention
from gpt2train.model.families import MODELS, is_residual, is_value_table
from gpt2train.model.linear import Linear
from gpt2train.model.shape import Shape
from gpt2train.parallel.head_split import HeadSplit, common
from gpt2train.parallel.tp_collectives import Region


def check_attention(model: nn.Module, shape: Shape, tp: int) -> None:
    """Raise a UserError if the degree does not divide the heads, and the attention is of a class of its own."""
    if not HeadSplit.of(shape, tp).even and not any(isinstance(module, SelfAttention) for module in model.modules()):
        raise UserError(
            f"parallel.tp {tp} does not divide the {shape.heads} heads, and the attention of the model family "
            f"{shape.family} is no SelfAttention, whose heads alone can be split unevenly; change parallel.tp"
        )


def uneven_form(
    model: nn.Module, name: str, module: nn.Module, shape: Shape, region: Region
) -> tuple[type[nn.Module], dict[str, Any]] | None:
    """Parallel subclass, and what it needs besides, of a module whose rows are not stored where they are used."""
    used = used_rows(model, f"{name}.weight", shape, region.size)
    if used is None:
        return None
    split = HeadSplit.of(shape, region.size)
    repeats = split.repeats(region.rank)
    if isinstance(module, nn.Linear):
        if is_residual(f"{name}.weight", shape):
            return HeadColumnsLinear, {"exchange": RowExchange(region, used, module.in_features)}
        of_keys = split.kv_heads != split.heads and module.out_features == split.kv_heads * shape.head_dim
        exchange = RowExchange(region, used, module.out_features)
        return HeadRowsLinear, {"exchange": exchange, "repeats": repeats if of_keys else ()}
    assert isinstance(module, nn.Embedding)
    if is_value_table(name, shape):
        return ValueColumnsTable, {"exchange": RowExchange(region, used, module.embedding_dim), "repeats": repeats}
    return HeadColumnsTable, {"columns": used[region.rank]}


def used_rows(model: nn.Module, name: str, shape: Shape, tp: int) -> list[range] | None:
    """Rows of a parameter that each process uses, or columns of a row-parallel weight or table; None if it has these.

    Raises:
        UserError: the heads of this layer cannot be distinguished.
    """
    split, (module, _, kind) = HeadSplit.of(shape, tp), name.rpartition(".")
    if split.even:
        return None
    if module in MODELS[shape.family].head_tables:
        return None if split.heads % tp == 0 else [split.queries(rank) for rank in range(tp)]
    if is_value_table(module, shape):
        columns = [split.keys(rank) for rank in range(tp)]
        return [range(shape.head_dim * own.start, shape.head_dim * own.stop) for own in columns]
    if not isinstance(model.get_submodule(module.rpartition(".")[0]), SelfAttention):
        return None
    layer = model.get_submodule(module)
    if not isinstance(layer, nn.Linear) or (kind == "bias" and is_residual(name, shape)):
        return None
    width = layer.in_features if is_residual(name, shape) else layer.out_features
    grouped = split.kv_heads != split.heads
    if grouped and width == split.kv_heads * shape.head_dim:
        heads, used = split.kv_heads, [split.keys(rank) for rank in range(tp)]
    elif width % split.heads == 0 and (not grouped or width == split.heads * shape.head_dim):
        heads, used = split.heads, [split.queries(rank) for rank in range(tp)]
    else:
        raise UserError(
            f"parallel.tp {tp} does not divide the {split.heads} heads ({split.kv_heads} of keys and values), and "
            f"{module} of the model family {shape.family} has queries and keys in one layer of {width} rows, which can "
            "be split by a degree that divides both alone; change parallel.tp"
        )
    rows = [range(width // heads * own.start, width // heads * own.stop) for own in used]
    return None if rows == _shards(width, tp) else rows


class RowExchange:
    """All-to-all that gives each process the rows that it uses of a tensor stored in equal shards."""

    def __init__(self, region: Region, used: Sequence[range], total: int) -> None:
        shards, rank = _shards(total, region.size), region.rank
        own, wanted = shards[rank], used[rank]
        self.group, self.size = region.group, len(own)
        self.sent = [_places(rows, own) if other != rank else range(0) for other, rows in enumerate(used)]
        self.sent_sizes = [len(rows) for rows in self.sent]
        self.kept = _places(wanted, own)
        self.received_sizes = [len(common(wanted, rows)) if other != rank else 0 for other, rows in enumerate(shards)]
        self.before = sum(self.received_sizes[:rank])  # received rows that come before the kept ones

    def rows(self, parameter: Tensor | None, dim: int = 0) -> Tensor | None:
        """Rows that this process uses, differentiable; a plain tensor consists of them already."""
        return self.exchanged(parameter.to_local(), dim) if isinstance(parameter, DTensor) else parameter

    def exchanged(self, shard: Tensor, dim: int) -> Tensor:
        """Rows that this process uses of a tensor of which it has the shard of a parameter; differentiable."""
        return _Exchange.apply(shard, self, dim)


class HeadRowsLinear(Linear):
    """Column-parallel linear layer that computes the outputs of this process's heads."""

    exchange: RowExchange
    repeats: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        """Compute [..., rows of the heads]."""
        y = self.product(x, self.exchange.rows(self.weight), self.exchange.rows(self.bias))  # type: ignore[arg-type]
        return _repeated(y, self.repeats)


class HeadColumnsLinear(Linear):
    """Row-parallel linear layer that reads the outputs of this process's heads and sums over the processes."""

    region: Region
    exchange: RowExchange

    def forward(self, x: Tensor) -> Tensor:
        """Compute [..., hidden]."""
        x = self.region.leave(self.product(x, self.exchange.rows(self.weight, 1)))  # type: ignore[arg-type]
        return x if self.bias is None else x + self.region.local(self.bias).to(x.dtype)


class HeadColumnsTable(nn.Embedding):
    """Replicated table with a column per attention head, of which a process uses those of its heads."""

    region: Region
    columns: range

    def forward(self, rows: Tensor) -> Tensor:
        """Look up [..., heads of this process]."""
        table = self.weight
        if isinstance(table, DTensor):
            table = self.region.partial(table)[:, self.columns.start : self.columns.stop]
        return F.embedding(rows, table)


class ValueColumnsTable(nn.Embedding):
    """Table with `head_dim` columns per head of keys and values, whose rows are looked up and then exchanged."""

    region: Region
    exchange: RowExchange
    repeats: tuple[int, ...]

    def forward(self, ids: Tensor) -> Tensor:
        """Look up [..., columns of the heads]."""
        rows = F.embedding(ids, self.region.local(self.weight))
        if isinstance(self.weight, DTensor):  # otherwise the table consists of the columns of the heads
            rows = self.exchange.exchanged(rows, -1)
        return _repeated(rows, self.repeats)


def _repeated(x: Tensor, repeats: tuple[int, ...]) -> Tensor:
    """Repeat heads of keys and values, one for each of their heads of queries; unchanged without `repeats`."""
    if not repeats:
        return x
    pairs = zip(x.unflatten(-1, (len(repeats), -1)).split(1, -2), repeats, strict=True)
    return torch.cat([head.expand(*head.shape[:-2], number, -1) for head, number in pairs], -2).flatten(-2)


def _shards(total: int, tp: int) -> list[range]:
    size = total // tp
    return [range(rank * size, (rank + 1) * size) for rank in range(tp)]


def _places(rows: range, shard: range) -> range:
    """Places in a shard of those of some rows that are in it."""
    found = common(rows, shard)
    return range(found.start - shard.start, found.stop - shard.start) if found else range(0)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, exchange: RowExchange, dim: int) -> Tensor:
        ctx.exchange, ctx.dim = exchange, dim
        sent = torch.cat([_rows(shard, rows, dim) for rows in exchange.sent])
        received = sent.new_empty(sum(exchange.received_sizes), *sent.shape[1:])
        dist.all_to_all_single(received, sent, exchange.received_sizes, exchange.sent_sizes, group=exchange.group)
        received = received.movedim(0, dim)
        before, kept = exchange.before, exchange.kept
        after = received.shape[dim] - before
        own = shard.narrow(dim, kept.start, len(kept))
        return torch.cat((received.narrow(dim, 0, before), own, received.narrow(dim, before, after)), dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, dim, grad = ctx.exchange, ctx.dim, grads[0]
        before, kept = exchange.before, exchange.kept
        end = before + len(kept)
        sent = torch.cat((_rows(grad, range(before), dim), _rows(grad, range(end, grad.shape[dim]), dim)))
        received = sent.new_empty(sum(exchange.sent_sizes), *sent.shape[1:])
        dist.all_to_all_single(received, sent, exchange.sent_sizes, exchange.received_sizes, group=exchange.group)
        sizes = list(grad.shape)
        sizes[dim] = exchange.size
        result = grad.new_zeros(sizes)
        result.narrow(dim, kept.start, len(kept)).copy_(grad.narrow(dim, before, len(kept)))
        for rows, part in zip(exchange.sent, received.split(exchange.sent_sizes), strict=True):
            result.narrow(dim, rows.start, len(rows)).add_(part.movedim(0, dim))  # several processes may use a row
        return result, None, None


def _rows(tensor: Tensor, rows: range, dim: int) -> Tensor:
    """Rows along a dimension, as the first dimension."""
    return tensor.narrow(dim, rows.start, len(rows)).movedim(dim, 0)
