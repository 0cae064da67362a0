"""Read one process's part of a model: its layers, of them its heads, and its rows of the vocabulary.

The peak of a process is its own part in float32 and two copies of the largest tensor of its layers, not the model: at
124M parameters over 2 x 2 processes 0.2 GB and 0.3 GB for the token embedding. Pages of a mapped file come on top; the
kernel can take them back.
"""

import torch
from torch import Tensor

from gpt2train.checkpoint.weights import Weights, check_sizes, empty_model, sizes

ROWS = ("wte.weight", "attn.qkv.weight", "attn.qkv.bias", "up.weight", "up.bias")
COLUMNS = ("attn.proj.weight", "down.weight")


def read_part(weights: Weights, layers: range, tp: int, rank: int) -> dict[str, Tensor]:
    """Weights of some layers in float32 on the CPU, cut as `gpt2train.parallel.tensor` does.

    Args:
        weights: of the whole model; no other tensors are read of it.
        layers: of this process; the first brings the embeddings along, the last the head.
        tp: processes that share each layer.
        rank: this process's number among them.

    Raises:
        UserError: a tensor is missing, too many, of another size, or cannot be read.
    """
    check_sizes({name: stored.size for name, stored in weights.tensors.items()}, sizes(weights.shape), "the model")
    here = empty_model(weights.shape).keep_only(layers)
    return {
        name: _cut(name, weights.tensors[name].read(torch.float32), tp, rank) for name, _ in here.named_parameters()
    }


def _cut(name: str, whole: Tensor, tp: int, rank: int) -> Tensor:
    if tp == 1:
        return whole
    if name.endswith(ROWS):
        return whole.chunk(tp)[rank].clone()  # a slice alone would keep the memory of the whole
    if name.endswith(COLUMNS):
        return whole.chunk(tp, 1)[rank].contiguous()
    return whole
