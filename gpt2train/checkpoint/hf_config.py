"""`config.json` and its neighbours: what a Hugging Face folder says of its model and tokenizer."""

import json
from pathlib import Path
from typing import Any

from gpt2train.checkpoint.format import Dtype
from gpt2train.data.tokenizer import END_OF_TEXT
from gpt2train.errors import UserError
from gpt2train.model.shape import Shape

# Settings of Hugging Face's GPT-2 that our model has no counterpart of, with the values it stands for.
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def write_config(folder: Path, shape: Shape, end: int, dtype: Dtype) -> None:
    """Write the files that `AutoModelForCausalLM` and `AutoTokenizer` go by.

    Args:
        folder: is there.
        end: id of `<|endoftext|>`.
        dtype: what the weights are stored as.
    """
    config = {
        **{key: values[0] for key, values in FIXED.items()},
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": shape.vocab,
        "n_positions": shape.context,
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": None,
        "initializer_range": 0.02,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": dtype,
    }
    special = {f"{role}_token": END_OF_TEXT for role in ("bos", "eos", "unk")}
    tokenizer_config = {
        **special,
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end})
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(folder / "tokenizer_config.json", tokenizer_config)


def read_shape(folder: Path) -> Shape:
    """The sizes in a model folder's `config.json`.

    Raises:
        UserError: there is none, or it describes something that is not a plain GPT-2.
    """
    config = _read_config(folder)
    for key, allowed in FIXED.items():
        if config.get(key, allowed[0]) not in allowed:
            raise UserError(f"{folder / 'config.json'}: {key} is {config[key]!r}, but only {allowed[0]!r} can be read")
    try:
        shape = Shape(
            vocab=int(config["vocab_size"]),
            layers=int(config["n_layer"]),
            heads=int(config["n_head"]),
            hidden=int(config["n_embd"]),
            context=int(config["n_positions"] if "n_positions" in config else config["n_ctx"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: a size is missing or is no number ({error})") from error
    if min(shape.vocab, shape.layers, shape.heads, shape.hidden, shape.context) < 1 or shape.hidden % shape.heads:
        raise UserError(f"{folder / 'config.json'}: n_embd {shape.hidden} is not divided by n_head {shape.heads}")
    if config.get("n_inner") not in (None, 4 * shape.hidden):
        raise UserError(f"{folder / 'config.json'}: n_inner is {config['n_inner']}, only 4 x n_embd can be read")
    return shape


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(
            f"{folder} is not a model folder (no config.json); make one: gpt2train merge RUN --output {folder}"
        )
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object")
    return config


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
