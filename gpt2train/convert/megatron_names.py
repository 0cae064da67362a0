"""Megatron-LM's names and layouts of GPT-2's tensors, and their split by tensor parallelism.

Sources: the tree that Megatron-LM writes (`megatron/checkpointing.py`), and Shoeybi et al. 2019 for the split.
"""

from collections.abc import Iterator

from torch import Tensor

from gpt2train.convert.hf_gpt2 import join_heads, split_heads
from gpt2train.convert.settings import Spec
from gpt2train.model.shape import Shape

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
# The names above -> those of Megatron-Core, in its local layers and in those of Transformer Engine.
CORE = {
    "encoder.": "decoder.",
    ".query_key_value.": ".linear_qkv.",
    ".self_attention.dense.": ".self_attention.linear_proj.",
    ".dense_h_to_4h.": ".linear_fc1.",
    ".dense_4h_to_h.": ".linear_fc2.",
    "word_embeddings_for_head.": "output_layer.",
}
CORE_NORMS: dict[Spec, dict[str, str]] = {
    "local": {".post_attention_layernorm.": ".pre_mlp_layernorm."},
    "transformer_engine": {
        ".input_layernorm.": ".self_attention.linear_qkv.layer_norm_",
        ".post_attention_layernorm.": ".mlp.linear_fc1.layer_norm_",
    },
}
# Order of a block's parameters in the modules of both, and of the parameters in the optimizer.
CORE_ORDER: dict[Spec, tuple[str, ...]] = {
    "local": ("ln_1", "attn.proj", "attn.qkv", "ln_2", "up", "down"),
    "transformer_engine": ("attn.proj", "ln_1", "attn.qkv", "ln_2", "up", "down"),
}


def split_dim(name: str) -> int | None:
    """Return the dimension in which tensor parallelism splits our parameter; None if it is replicated."""
    if name == "wte.weight" or ".qkv." in name or ".up." in name:
        return ROWS
    return COLUMNS if name.endswith((".proj.weight", ".down.weight")) else WHOLE


def split_of(name: str) -> int | None:
    """Return the dimension in which tensor parallelism splits a parameter, by its newer name in Megatron-LM."""
    if name in (EMBEDDING, HEAD) or ".query_key_value." in name or ".dense_h_to_4h." in name:
        return ROWS
    return COLUMNS if name.endswith((".dense.weight", ".dense_4h_to_h.weight")) else WHOLE


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
    """Map our names of a block's parameters, by its number in the model, to Megatron's, by that in its stage."""
    return {
        f"blocks.{ours}.{our_name}.{part}": f"encoder.layers.{theirs}.{their_name}.{part}"
        for our_name, their_name in LAYER.items()
        for part in PARTS
    }


def rows_from(version: int, rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a fused projection from a checkpoint version's order to ours, [head, (q, k, v), head_dim].

    Version 0 has [(q, k, v), head, head_dim], version 1 [head, head_dim, (q, k, v)]; versions 2 and 3 have our order.
    The rows, of a weight or a bias, and the heads are those of one tensor-parallel rank.
    """
    if version == 0:
        return join_heads(rows, heads)
    if version == 1:
        return rows.unflatten(0, (heads, -1, 3)).transpose(1, 2).flatten(0, 2)
    return rows


def rows_to(version: int, rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a fused projection from our order to a checkpoint version's; inverse of `rows_from`."""
    if version == 0:
        return split_heads(rows, heads)
    if version == 1:
        return rows.unflatten(0, (heads, 3, -1)).transpose(1, 2).flatten(0, 2)
    return rows


def core_name(name: str, spec: Spec) -> str:
    """Return a tensor's name in Megatron-Core, from its name in the newer naming of Megatron-LM."""
    for old, new in (CORE | CORE_NORMS[spec]).items():
        name = name.replace(old, new)
    return name


def core_parameters(shape: Shape, stage: int, pp: int, spec: Spec) -> Iterator[tuple[str, str]]:
    """Pair our name of each parameter of a pipeline stage with Megatron-Core's, in the order of its optimizer.

    The last of several stages has a copy of the token embedding, `output_layer.weight`.
    """
    if stage == 0:
        yield from TOP.items()
    each = shape.layers // pp
    for local in range(each):
        names = layer_names(stage * each + local, local)
        for module in CORE_ORDER[spec]:
            for part in PARTS:
                ours = f"blocks.{stage * each + local}.{module}.{part}"
                yield ours, core_name(names[ours], spec)
    if stage == pp - 1:
        yield from ((ours, core_name(theirs, spec)) for ours, theirs in FINAL.items())
        if pp > 1:
            yield "wte.weight", core_name(HEAD, spec)
