"""Megatron-LM's names and layouts of GPT-2's tensors, and their split by tensor parallelism.

Sources: the tree that Megatron-LM writes (`megatron/checkpointing.py`), and Shoeybi et al. 2019 for the split.
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
# Names of other versions -> the names above; applied in this order. Those with `decoder.` and `linear_` are
# Megatron-Core's, which Megatron-LM has written since 2023 and exclusively since 2026. With Transformer Engine a fused
# layer contains the norm before it.
RENAMED = {
    "decoder.": "encoder.",
    ".self_attention.linear_qkv.layer_norm_": ".input_layernorm.",
    ".mlp.linear_fc1.layer_norm_": ".post_attention_layernorm.",
    ".self_attention.linear_qkv.": ".self_attention.query_key_value.",
    ".self_attention.linear_proj.": ".self_attention.dense.",
    ".pre_mlp_layernorm.": ".post_attention_layernorm.",
    ".mlp.linear_fc1.": ".mlp.dense_h_to_4h.",
    ".mlp.linear_fc2.": ".mlp.dense_4h_to_h.",
    "output_layer.": "word_embeddings_for_head.",
    "transformer.": "encoder.",
    ".attention.": ".self_attention.",
    ".input_norm.": ".input_layernorm.",
    ".post_attention_norm.": ".post_attention_layernorm.",
    ".final_norm.": ".final_layernorm.",
}


def split_dim(name: str) -> int | None:
    """Return the dimension in which tensor parallelism splits our parameter; None if it is replicated."""
    if name == "wte.weight" or ".qkv." in name or ".up." in name:
        return ROWS
    return COLUMNS if name.endswith((".proj.weight", ".down.weight")) else WHOLE


def canonical(name: str) -> str:
    """Return a tensor's name in the newer naming, without `language_model.`."""
    name = name.removeprefix("language_model.")
    for old, new in RENAMED.items():
        if old.startswith("."):
            name = name.replace(old, new)
        elif name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def old_name(name: str) -> str:
    """Return a tensor's name in Megatron-LM's naming until 2021."""
    if name.startswith("encoder."):
        name = "transformer." + name.removeprefix("encoder.")
    return name.replace(".self_attention.", ".attention.")


def layer_names(ours: int, theirs: int) -> dict[str, str]:
    """Map our names of a block's parameters to Megatron's.

    Args:
        ours: index of the layer in the model.
        theirs: index of the layer in its pipeline stage.
    """
    return {
        f"blocks.{ours}.{our_name}.{part}": f"encoder.layers.{theirs}.{their_name}.{part}"
        for our_name, their_name in LAYER.items()
        for part in PARTS
    }


def rows_from(version: int, rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a fused projection from a checkpoint version's order to ours, [head, (q, k, v), head_dim].

    Version 0 has [(q, k, v), head, head_dim], version 1 [head, head_dim, (q, k, v)]; versions 2 and 3 have our order.

    Args:
        version: checkpoint version.
        rows: weight or bias of one tensor-parallel rank; dimension 0 is reordered.
        heads: number of heads of that rank.
    """
    if version == 0:
        return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
    if version == 1:
        return rows.unflatten(0, (heads, -1, 3)).transpose(1, 2).flatten(0, 2)
    return rows


def rows_to(version: int, rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a fused projection from our order to a checkpoint version's; inverse of `rows_from`."""
    if version == 0:
        return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    if version == 1:
        return rows.unflatten(0, (heads, 3, -1)).transpose(1, 2).flatten(0, 2)
    return rows
