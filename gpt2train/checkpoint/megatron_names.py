"""Megatron-LM's names and layouts of a GPT-2's tensors, and how tensor parallelism cuts them.

Sources: the tree that Megatron-LM writes (`megatron/checkpointing.py`), and Shoeybi et al. 2019 for the cuts.
"""

from torch import Tensor

ROWS, COLUMNS, WHOLE = 0, 1, None
EMBEDDING, POSITIONS = "embedding.word_embeddings.weight", "embedding.position_embeddings.weight"
HEAD = "word_embeddings_for_head.weight"  # the last pipeline stage's copy of the embedding
TOP = {"wte.weight": EMBEDDING, "wpe.weight": POSITIONS}
FINAL = {"ln_f.weight": "encoder.final_layernorm.weight", "ln_f.bias": "encoder.final_layernorm.bias"}
LAYER = {
    "ln_1": "input_layernorm",
    "attn.qkv": "self_attention.query_key_value",
    "attn.proj": "self_attention.dense",
    "ln_2": "post_attention_layernorm",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
}
PARTS = ("weight", "bias")
# Other names of the same thing over the years -> the names above.
RENAMED = {
    "transformer.": "encoder.",
    ".attention.": ".self_attention.",
    ".input_norm.": ".input_layernorm.",
    ".post_attention_norm.": ".post_attention_layernorm.",
    ".final_norm.": ".final_layernorm.",
}


def cut_along(name: str) -> int | None:
    """The dimension of our parameter that tensor-parallel ranks share; None where each has the whole."""
    if name == "wte.weight" or ".qkv." in name or ".up." in name:
        return ROWS
    return COLUMNS if name.endswith((".proj.weight", ".down.weight")) else WHOLE


def canonical(name: str) -> str:
    """A tensor's name without `language_model.`, in the newer words."""
    name = name.removeprefix("language_model.")
    for old, new in RENAMED.items():
        if old.startswith("."):
            name = name.replace(old, new)
        elif name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def old_name(name: str) -> str:
    """The name as Megatron-LM had it up to 2021 and in its first release."""
    if name.startswith("encoder."):
        name = "transformer." + name.removeprefix("encoder.")
    return name.replace(".self_attention.", ".attention.")


def layer_names(ours: int, theirs: int) -> dict[str, str]:
    """Our names of a block -> Megatron's, which counts the layers of a pipeline stage from 0."""
    return {
        f"blocks.{ours}.{mine}.{part}": f"encoder.layers.{theirs}.{other}.{part}"
        for mine, other in LAYER.items()
        for part in PARTS
    }


def rows_from(version: int, rows: Tensor, heads: int) -> Tensor:
    """Rows of a fused projection from a checkpoint version's order to [head, (q, k, v), head_dim].

    Version 0 has [(q, k, v), head, head_dim], version 1 [head, head_dim, (q, k, v)], 2 and 3 have ours.

    Args:
        rows: dimension 0 of the weight or the bias, of one tensor-parallel rank.
        heads: of that rank.
    """
    if version == 0:
        return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
    if version == 1:
        return rows.unflatten(0, (heads, -1, 3)).transpose(1, 2).flatten(0, 2)
    return rows


def rows_to(version: int, rows: Tensor, heads: int) -> Tensor:
    """The other way round."""
    if version == 0:
        return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    if version == 1:
        return rows.unflatten(0, (heads, 3, -1)).transpose(1, 2).flatten(0, 2)
    return rows
