"""What differs between this project's weights and those of Hugging Face's GPT-2, tensor by tensor.

Names; Hugging Face's `Conv1D` holds its matrices as [in, out]; its fused projection has the columns [q | k | v] with
the heads inside, ours the rows [head, (q, k, v), head_dim]; our vocabulary is padded to a multiple of 128 and theirs is
not. The output embedding is tied on both sides and stored once.
"""

from torch import Tensor

from gpt2train.checkpoint.weights import pad_vocabulary, sizes
from gpt2train.model.shape import Shape

TOP = ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias")  # named alike
BLOCK = {"ln_1": "ln_1", "attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "ln_2": "ln_2"} | {
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}


def names(shape: Shape) -> dict[str, str]:
    """Name of every parameter here -> its name in a Hugging Face GPT-2, without the prefix `transformer.`."""
    pairs = {name: name for name in TOP}
    for layer in range(shape.layers):
        for ours, theirs in BLOCK.items():
            for part in ("weight", "bias"):
                pairs[f"blocks.{layer}.{ours}.{part}"] = f"h.{layer}.{theirs}.{part}"
    return pairs


def their_sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Our name -> the tensor's size in a Hugging Face folder."""
    found = {name: size[::-1] if is_matrix(name) else size for name, size in sizes(shape).items()}
    return found | {"wte.weight": (shape.vocab, shape.hidden)}


def exported(name: str, tensor: Tensor, shape: Shape) -> Tensor:
    """One of our tensors as Hugging Face has it; the padded rows of the vocabulary are cut off."""
    if name == "wte.weight":
        return tensor[: shape.vocab]
    if ".qkv." in name:
        tensor = split_heads(tensor, shape.heads)
    return tensor.t().contiguous() if is_matrix(name) else tensor


def imported(name: str, tensor: Tensor, shape: Shape) -> Tensor:
    """One of Hugging Face's tensors as we have it, under our name; the vocabulary is padded."""
    if name == "wte.weight":
        return pad_vocabulary(tensor, shape.padded_vocab)
    if is_matrix(name):
        tensor = tensor.t()
    return join_heads(tensor, shape.heads) if ".qkv." in name else tensor.contiguous()


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """Fused projection rows [head, (q, k, v), head_dim] -> [(q, k, v), head, head_dim]; dimension 0 only."""
    return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def join_heads(rows: Tensor, heads: int) -> Tensor:
    """Fused projection rows [(q, k, v), head, head_dim] -> [head, (q, k, v), head_dim]; dimension 0 only."""
    return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def is_matrix(name: str) -> bool:
    """Whether Hugging Face holds this parameter of ours transposed (its `Conv1D`)."""
    return name.startswith("blocks.") and name.endswith(".weight") and ".ln_" not in name
