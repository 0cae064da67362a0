"""`config.json` and the other JSON files of a Hugging Face folder, about model and tokenizer."""

import json
from pathlib import Path
from typing import Any

from gpt2train.convert.settings import Dtype
from gpt2train.data.encoder import splits_as_gpt2
from gpt2train.data.sentencepiece_model import SentencePieceTokenizer
from gpt2train.data.tokenizer import Tokenizer, end_of_text_id, end_token
from gpt2train.errors import UserError
from gpt2train.io.files import check_folder
from gpt2train.model.shape import Shape

# Settings of Hugging Face's GPT-2 that this project's model does not have, with the values that it implements.
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}

MAX_LAYERS, MAX_SIZE = 10_000, 2**24  # larger than any GPT-2; a file with more is damaged
# Further fields in the config of OpenAI's published GPT-2 (also `n_ctx`, which llama.cpp's converter needs). The values
# are transformers' defaults, so they have no effect there.
PUBLISHED: dict[str, Any] = {
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "resid_pdrop": 0.1,
    "initializer_range": 0.02,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
}


def write_config(folder: Path, shape: Shape, tokenizer: Tokenizer, dtype: Dtype) -> None:
    """Write the configuration files that `AutoModelForCausalLM` and `AutoTokenizer` read.

    Args:
        folder: existing folder.
        shape: shape of the model.
        tokenizer: tokenizer of the model.
        dtype: data type of the stored weights.
    """
    end = end_of_text_id(tokenizer)
    config = {
        **{key: values[0] for key, values in FIXED.items()},
        **PUBLISHED,
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": shape.vocab,
        "n_positions": shape.context,
        "n_ctx": shape.context,
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": None,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": dtype,
    }
    special = {f"{role}_token": end_token(tokenizer) for role in ("bos", "eos", "unk")}
    tokenizer_config = {
        **special,
        **_tokenizer_class(tokenizer),
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end})
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(folder / "tokenizer_config.json", tokenizer_config)


def _tokenizer_class(tokenizer: Tokenizer) -> dict[str, Any]:
    """Class of transformers that encodes as the tokenizer does, with its settings."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    if splits_as_gpt2(tokenizer):
        return {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    return {"tokenizer_class": "PreTrainedTokenizerFast"}


def read_shape(folder: Path) -> Shape:
    """Read the model's shape from `config.json`.

    Raises:
        UserError: the file is missing or damaged, or describes another architecture than GPT-2.
    """
    config = _read_config(folder)
    for key, allowed in FIXED.items():
        if config.get(key, allowed[0]) not in allowed:
            raise UserError(f"{folder / 'config.json'}: {key} is {config[key]!r}, but only {allowed[0]!r} is supported")
    shape = Shape(
        vocab=_size(folder, config, "vocab_size"),
        layers=_size(folder, config, "n_layer", MAX_LAYERS),
        heads=_size(folder, config, "n_head"),
        hidden=_size(folder, config, "n_embd"),
        context=_size(folder, config, "n_positions" if "n_positions" in config else "n_ctx"),
    )
    if shape.hidden % shape.heads:
        raise UserError(f"{folder / 'config.json'}: n_embd {shape.hidden} is not divisible by n_head {shape.heads}")
    if config.get("n_inner") not in (None, 4 * shape.hidden):
        raise UserError(f"{folder / 'config.json'}: n_inner is {config['n_inner']}, only 4 x n_embd is supported")
    return shape


def _size(folder: Path, config: dict[str, Any], key: str, maximum: int = MAX_SIZE) -> int:
    """Read a size from `config.json`, a whole number from 1 to `maximum`."""
    value = config.get(key)
    if type(value) is not int or not 1 <= value <= maximum:
        problem = "is missing" if key not in config else f"is {str(value)[:40]}"
        raise UserError(
            f"{folder / 'config.json'}: the size {key} {problem}; expected a whole number from 1 to {maximum:,}"
        )
    return value


def _read_config(folder: Path) -> dict[str, Any]:
    check_folder(folder)
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(
            f"{folder} is not a model folder (no config.json); create one: gpt2train merge RUN --output {folder}"
        )
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}; copy the folder again") from error
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; copy the folder again") from error
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object")
    return config


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
