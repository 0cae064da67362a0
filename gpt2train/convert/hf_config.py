"""`config.json` and the other JSON files of a Hugging Face folder, about model and tokenizer."""

import json
from pathlib import Path
from typing import Any

from gpt2train.convert.hf_layout import layout_of, layout_of_config
from gpt2train.convert.settings import Dtype
from gpt2train.data.tokenizer import END_OF_TEXT
from gpt2train.errors import UserError
from gpt2train.io.files import check_folder
from gpt2train.model.shape import Shape


def write_config(folder: Path, shape: Shape, end: int, dtype: Dtype) -> None:
    """Write the configuration files that `AutoModelForCausalLM` and `AutoTokenizer` read.

    Args:
        folder: existing folder.
        shape: shape of the model.
        end: id of `<|endoftext|>`.
        dtype: data type of the stored weights.
    """
    config = {
        **layout_of(shape.family).config(shape),
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
