"""`config.json` and the other JSON files of a Hugging Face folder, about model and tokenizer."""

import json
from pathlib import Path
from typing import Any

from gpt2train.convert.hf_layout import layout_of, layout_of_config
from gpt2train.convert.hf_sentencepiece import tokenizer_json
from gpt2train.convert.settings import Dtype
from gpt2train.data.encoder import splits_as_gpt2
from gpt2train.data.sentencepiece_model import MODEL, SentencePieceTokenizer
from gpt2train.data.template import prefix_ids, start_ids
from gpt2train.data.tokenizer import SOURCE_KEY, TOKENIZER, Tokenizer, end_of_text_id, end_token
from gpt2train.errors import UserError
from gpt2train.io.files import check_folder
from gpt2train.model.shape import Shape


def write_config(folder: Path, shape: Shape, tokenizer: Tokenizer, dtype: Dtype) -> None:
    """Write the configuration files that `AutoModelForCausalLM` and `AutoTokenizer` read.

    Args:
        folder: existing folder.
        shape: shape of the model.
        tokenizer: tokenizer of the model.
        dtype: data type of the stored weights.
    """
    end, first, layout = end_of_text_id(tokenizer), start_ids(tokenizer)[0], layout_of(shape.family)
    tokens = layout.token_fields(shape, tokenizer)
    config = {
        **layout.config(shape),
        "bos_token_id": first,
        "eos_token_id": end,
        **tokens,
        "torch_dtype": dtype,
    }
    unknown = tokenizer.unknown if isinstance(tokenizer, SentencePieceTokenizer) else end_token(tokenizer)
    special = {"bos_token": tokenizer.id_to_token(first), "eos_token": end_token(tokenizer), "unk_token": unknown}
    tokenizer_config = {
        **special,
        **_tokenizer_class(folder, tokenizer),
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
    }
    _write_json(folder / "config.json", config)
    generation = {"bos_token_id": first, "eos_token_id": end, "pad_token_id": end, **tokens}
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(folder / "tokenizer_config.json", tokenizer_config)


def _tokenizer_class(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Class of transformers that encodes as the tokenizer does, with its settings.

    Of a SentencePiece model it reads a `tokenizer.json`, which is written here, or else the model.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        settings: dict[str, Any] = {"add_bos_token": True} if tokenizer.prefix else {}
        if (converted := tokenizer_json(tokenizer.model, tokenizer.prefix)) is None:
            pattern = "bos" if tokenizer.prefix else "none"
            return {"tokenizer_class": "SentencePieceBackend", "special_tokens_pattern": pattern, **settings}
        (folder / TOKENIZER).write_text(converted, encoding="utf-8")
        return {"tokenizer_class": "PreTrainedTokenizerFast", SOURCE_KEY: MODEL, **settings}
    if splits_as_gpt2(tokenizer) and not prefix_ids(tokenizer):
        return {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    return {"tokenizer_class": "PreTrainedTokenizerFast"}


def read_shape(folder: Path) -> Shape:
    """Read the model's shape from `config.json`.

    Raises:
        UserError: the file is missing or damaged, or describes an architecture that no model family has.
    """
    config, file = _read_config(folder), folder / "config.json"
    return layout_of_config(config, file).shape(config, file)


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
