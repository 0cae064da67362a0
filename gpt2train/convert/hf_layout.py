"""Differences between this project's tensors and those of Hugging Face's GPT-2.

* The names differ.
* Hugging Face's `Conv1D` stores matrices as [in, out].
* The columns of its fused projection are [(q, k, v), head, head_dim], our rows are [head, (q, k, v), head_dim].
* Our vocabulary is padded to a multiple of 128, theirs is not.

The output embedding is tied and stored once in both.
"""

from torch import Tensor

from gpt2train.model.lazy_weights import pad_vocabulary, sizes
from gpt2train.model.shape import Shape

TOP = ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias")  # same names in both
BLOCK = {"ln_1": "ln_1", "attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "ln_2": "ln_2"} | {
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}


def names(shape: Shape) -> dict[str, str]:
    """Map our name of every parameter to Hugging Face's, without the prefix `transformer.`."""
    pairs = {name: name for name in TOP}
    for layer in range(shape.layers):
        for ours, theirs in BLOCK.items():
            for part in ("weight", "bias"):
                pairs[f"blocks.{layer}.{ours}.{part}"] = f"h.{layer}.{theirs}.{part}"
    return pairs


def hf_sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Map our name of every parameter to its size in a Hugging Face folder."""
    found = {name: size[::-1] if is_matrix(name) else size for name, size in sizes(shape).items()}
    return found | {"wte.weight": (shape.vocab, shape.hidden)}


def exported(name: str, tensor: Tensor, shape: Shape) -> Tensor:
    """Convert one of our tensors to Hugging Face's layout, without the padding of the vocabulary."""
    if name == "wte.weight":
        return tensor[: shape.vocab]
    if ".qkv." in name:
        tensor = split_heads(tensor, shape.heads)
    return tensor.t().contiguous() if is_matrix(name) else tensor


def imported(name: str, tensor: Tensor, shape: Shape) -> Tensor:
    """Convert one of Hugging Face's tensors to our layout, with padded vocabulary.

    Args:
        name: our name of the parameter.
        tensor: tensor in Hugging Face's layout.
        shape: shape of the model.
    """
    if name == "wte.weight":
        return pad_vocabulary(tensor, shape.padded_vocab)
    if is_matrix(name):
        tensor = tensor.t()
    return join_heads(tensor, shape.heads) if ".qkv." in name else tensor.contiguous()


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """Reorder fused projection rows [head, (q, k, v), head_dim] -> [(q, k, v), head, head_dim] in dimension 0."""
    return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def join_heads(rows: Tensor, heads: int) -> Tensor:
    """Reorder fused projection rows [(q, k, v), head, head_dim] -> [head, (q, k, v), head_dim] in dimension 0."""
    return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def is_matrix(name: str) -> bool:
    """Return True if Hugging Face stores this parameter transposed (`Conv1D`)."""
    return name.startswith("blocks.") and name.endswith(".weight") and ".ln_" not in name
