"""The `args` of a Megatron-LM checkpoint: what they must say of a model that is a plain GPT-2, and what is written."""

import argparse
from collections.abc import Mapping
from typing import Any

import torch

from gpt2train.errors import UserError
from gpt2train.model.shape import Shape

# Settings with the values that a GPT-2 stands for; one that is absent has the first, as in versions without it.
PLAIN: dict[str, tuple[Any, ...]] = {
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
}


def number(args: Mapping[str, Any], *names: str) -> int | None:
    """The first of these that is a positive whole number."""
    for name in names:
        value = args.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def check_args(args: Mapping[str, Any], tp: int, pp: int, where: str) -> None:
    """Whether a checkpoint is of a plain GPT-2, and whether all of its ranks are here.

    Raises:
        UserError: it is not; the message names the setting.
    """
    for key, allowed in PLAIN.items():
        if key in args and args[key] not in allowed:
            raise UserError(f"{where}: {key} is {args[key]!r}; only a plain GPT-2 ({allowed[0]!r}) can be converted")
    hidden, heads = number(args, "hidden_size"), number(args, "num_attention_heads")
    for key, plain in (
        ("ffn_hidden_size", hidden and 4 * hidden),
        ("kv_channels", hidden and heads and hidden // heads),
    ):
        if plain and args.get(key) not in (None, plain):
            raise UserError(f"{where}: {key} is {args[key]!r}; only a plain GPT-2 ({plain}) can be converted")
    for found, *keys in (
        (tp, "tensor_model_parallel_size", "model_parallel_size"),
        (pp, "pipeline_model_parallel_size"),
    ):
        said = number(args, *keys)
        if said is not None and said != found:
            raise UserError(f"{where} was saved with {keys[0]} {said}, but {found} are here; copy the whole folder")


def make_args(shape: Shape, rows: int, tp: int, pp: int, dtype: torch.dtype, iteration: int) -> argparse.Namespace:
    """What Megatron-LM compares with its own command line when it loads a checkpoint, and what fixes the model."""
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
        bias_gelu_fusion=True,
        **{key: values[0] for key, values in PLAIN.items()},
    )
