"""Loading of one rank's shard of a model: its layers, its heads of each layer, and its rows of the vocabulary.

Peak memory of a rank is its own shard in float32 plus two copies of its largest tensor, not the whole model: with 124M
parameters on 2 x 2 ranks, 0.2 GB plus 0.3 GB for the token embedding. Pages of the memory-mapped file come on top; the
kernel can reclaim them.
"""

import torch
from torch import Tensor

from gpt2train.model.families import shard_dim, sizes
from gpt2train.model.lazy_weights import LazyWeights, check_sizes, empty_model
from gpt2train.parallel.uneven_heads import used_rows


def read_shard(weights: LazyWeights, layers: range, tp: int, rank: int) -> dict[str, Tensor]:
    """Read the weights of one shard in float32 on the CPU, split as `gpt2train.parallel.tensor_parallel` does.

    Of a layer whose heads the degree does not divide, the rows of this rank's heads are read (`uneven_heads`).

    Args:
        weights: weights of the whole model; tensors of other shards are not read.
        layers: layers of this rank; the first one includes the embeddings, the last one the head.
        tp: tensor-parallel degree.
        rank: tensor-parallel rank.

    Raises:
        UserError: a tensor is missing, unexpected, of the wrong size, or unreadable.
    """
    check_sizes({name: stored.size for name, stored in weights.tensors.items()}, sizes(weights.shape), "the model")
    local = empty_model(weights.shape).keep_layers(layers)

    def own_part(name: str) -> Tensor:
        whole, dim = weights.tensors[name].read(torch.float32), shard_dim(name, weights.shape)
        if tp == 1 or dim is None:
            return whole
        used = used_rows(local, name, weights.shape, tp)
        own = whole.chunk(tp, dim)[rank] if used is None else whole.narrow(dim, used[rank].start, len(used[rank]))
        # A clone, since a view would keep the whole tensor in memory.
        return own.clone(memory_format=torch.contiguous_format)

    return {name: own_part(name) for name, _ in local.named_parameters()}
