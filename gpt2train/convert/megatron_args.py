"""The `args` of a Megatron-LM checkpoint: validation for a GPT-2, and creation."""

import argparse
from collections.abc import Mapping
from typing import Any

import torch

from gpt2train.convert.megatron_folder import EXACT_GELU
from gpt2train.convert.megatron_names import EMBEDDING, POSITIONS
from gpt2train.errors import UserError
from gpt2train.model.shape import Shape

# Settings with their allowed values for a GPT-2. The first one is the default, as in versions without the setting.
GPT2_VALUES: dict[str, tuple[Any, ...]] = {
    "swiglu": (False, None),
    "squared_relu": (False, None),
    "add_bias_linear": (True, None),
    "untie_embeddings_and_output_weights": (False, None),
    "use_rotary_position_embeddings": (False, None),
    "position_embedding_type": ("learned_absolute", None),
    "add_position_embedding": (True, None),
    "num_experts": (None,),
    "normalization": ("LayerNorm", None),
    "apply_layernorm_1p": (False, None),
    "apply_residual_connection_post_layernorm": (False, None),
    "group_query_attention": (False, None),
    "layernorm_epsilon": (1e-5, None),
    "norm_epsilon": (1e-5, None),
}


def args_of(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `args` in the content of a file; empty if there are none."""
    args = saved.get("args")
    return vars(args) if isinstance(args, argparse.Namespace) else {}


def options_of_args(args: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the options of the family gpt2 that a checkpoint has."""
    # The fused kernel and `openai_gelu` approximate GELU by tanh; without both it is exact.
    exact = args.get("bias_gelu_fusion") is False and not args.get("openai_gelu")
    return (EXACT_GELU,) if exact else ()


def number(args: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these settings that is a positive whole number."""
    for name in names:
        value = args.get(name)
        if type(value) is int and value > 0:
            return value
    return None


def check_args(args: Mapping[str, Any], tp: int | None, pp: int | None, where: str) -> None:
    """Check that a checkpoint is a GPT-2 and that all of its ranks are present.

    The ranks `tp` and `pp` are those found; None if the files do not depend on the layout.

    Raises:
        UserError: it is not; the message names the setting.
    """
    for key, allowed in GPT2_VALUES.items():
        if key in args and args[key] not in allowed:
            raise UserError(f"{where}: {key} is {args[key]!r}; only {allowed[0]!r}, as in GPT-2, can be converted")
    hidden, heads = number(args, "hidden_size"), number(args, "num_attention_heads")
    for key, expected in (
        ("ffn_hidden_size", hidden and 4 * hidden),
        ("kv_channels", hidden and heads and hidden // heads),
    ):
        if expected and args.get(key) not in (None, expected):
            raise UserError(f"{where}: {key} is {args[key]!r}; only {expected}, as in GPT-2, can be converted")
    for found, *keys in (
        (tp, "tensor_model_parallel_size", "model_parallel_size"),
        (pp, "pipeline_model_parallel_size"),
    ):
        recorded = number(args, *keys)
        if None not in (recorded, found) and recorded != found:
            raise UserError(f"{where} was saved with {keys[0]} {recorded}, but has {found}; copy the whole folder")


def check_tensors(found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Check by its tensors, their whole sizes by their newer names, that a model is a GPT-2, as `args` may be missing.

    Raises:
        UserError: it is another architecture; the message names the setting.
    """
    layer = "encoder.layers.0."
    qkv, up, down = (
        found.get(f"{layer}{name}.weight", (0, 0))
        for name in ("self_attention.query_key_value", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    )
    hidden = (*found.get(EMBEDDING, ()), 0, 0)[1]
    others = (
        ("num_experts", "set", any(".experts." in name for name in found)),
        ("multi_latent_attention or experimental attention", "set", qkv == (0, 0)),
        ("position_embedding_type", "rope or none", POSITIONS not in found),
        ("swiglu", "True", up[0] == 2 * down[1] > 0),
        ("normalization", "'RMSNorm'", "encoder.final_layernorm.bias" not in found),
        ("add_bias_linear", "False", f"{layer}mlp.dense_h_to_4h.bias" not in found),
        ("qk_layernorm", "True", f"{layer}self_attention.q_layernorm.weight" in found),
        ("num_query_groups or kv_channels", "set", qkv[0] != 3 * hidden),
        ("ffn_hidden_size", str(down[1]), down[1] != 4 * hidden),
    )
    for key, value, differs in others:
        if differs and EMBEDDING in found:
            raise UserError(f"{where}: {key} is {value}; this is not supported, only a plain GPT-2 can be converted")


def make_args(shape: Shape, rows: int, tp: int, pp: int, dtype: torch.dtype, iteration: int) -> argparse.Namespace:
    """Return the `args` that describe the model and that Megatron-LM compares with its command line on loading.

    The token embedding has `rows` rows with padding.
    """
    return argparse.Namespace(
        num_layers=shape.layers,
        encoder_num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=4 * shape.hidden,
        num_attention_heads=shape.heads,
        kv_channels=shape.head_dim,
        seq_length=shape.context,
        encoder_seq_length=shape.context,
        max_position_embeddings=shape.context,
        vocab_size=shape.vocab,
        padded_vocab_size=rows,
        make_vocab_size_divisible_by=128,
        tokenizer_type="GPT2BPETokenizer",
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        transformer_pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=None,
        data_parallel_random_init=False,
        iteration=iteration,
        consumed_train_samples=0,
        consumed_valid_samples=0,
        fp16=dtype == torch.float16,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        bias_gelu_fusion=EXACT_GELU not in shape.options,
        **{key: values[0] for key, values in GPT2_VALUES.items()},
    )
