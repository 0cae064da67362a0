"""`config.json` and the other JSON files of a Hugging Face folder, about model and tokenizer."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt2train.convert.hf_classifier import classifier_config, label_names
from gpt2train.convert.hf_layout import layout_of, layout_of_config
from gpt2train.convert.hf_sentencepiece import tokenizer_json
from gpt2train.convert.settings import Dtype
from gpt2train.data.added_tokens import stated_added
from gpt2train.data.chat import Chat
from gpt2train.data.chat_template import FILE
from gpt2train.data.encoder import splits_as_gpt2
from gpt2train.data.sentencepiece_model import MODEL, SentencePieceTokenizer
from gpt2train.data.sentinels import sentinel_names
from gpt2train.data.template import prefix_ids, start_ids
from gpt2train.data.tokenizer import TOKENIZER, Tokenizer, end_of_text_id, end_token, padding_id
from gpt2train.data.tokenizer_reader import LEGACY, SOURCE_KEY
from gpt2train.errors import UserError
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape
from gpt2train.store.files import check_model_folder
from gpt2train.store.inner_path import inner_path

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"


def write_config(
    folder: Path,
    shape: Shape,
    tokenizer: Tokenizer,
    dtype: Dtype,
    labels: Sequence[str] = (),
    chat: Chat | None = None,
) -> None:
    """Write the configuration files that `AutoModelForCausalLM` and `AutoTokenizer` read.

    Those of a classifier are read by `AutoModelForSequenceClassification`.

    Args:
        folder: existing folder.
        shape: shape of the model.
        tokenizer: tokenizer of the model.
        dtype: data type of the stored weights.
        labels: names of the classes of a classifier, if they are known.
        chat: chat template of a model for conversations, which is written too.
    """
    end, first = end_of_text_id(tokenizer), start_ids(tokenizer)[0]
    layout = layout_of(shape.family)
    tokens = layout.token_fields(shape, tokenizer)
    config = {
        **layout.config(shape, tokenizer),
        "bos_token_id": first,
        "eos_token_id": end,
        **tokens,
        "torch_dtype": dtype,
    }
    if shape.labels:
        config = classifier_config(config, shape.labels, labels, end)
    unknown = tokenizer.unknown if isinstance(tokenizer, SentencePieceTokenizer) else end_token(tokenizer)
    special: dict[str, Any] = {
        "bos_token": tokenizer.id_to_token(first),
        "eos_token": end_token(tokenizer),
        "unk_token": unknown,
    }
    if len(MODELS[shape.family].lengths(shape)) > 1:  # an encoder, whose texts have sentinels and padding
        special["pad_token"] = tokenizer.id_to_token(padding_id(tokenizer))
        special["additional_special_tokens"] = sentinel_names(tokenizer)
    if chat is not None:  # a template names the tokens, so that they stay those that it was written for
        special |= {"bos_token": None, **chat.template.tokens}
        (folder / FILE).write_text(chat.template.text, encoding="utf-8")
    tokenizer_config = {
        **special,
        **_tokenizer_class(folder, tokenizer),
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
    }
    _write_json(folder / "config.json", config)
    if not shape.labels:
        ends = end if chat is None or chat.end in (None, end) else [end, chat.end]
        generation = {"bos_token_id": first, "eos_token_id": ends, "pad_token_id": end, **tokens}
        _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(folder / "tokenizer_config.json", tokenizer_config)


def _tokenizer_class(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Class of transformers that encodes as the tokenizer does, with its settings.

    Of a SentencePiece model it reads a `tokenizer.json`, which is written here, or else the model.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        # Without the field, llama.cpp's converter lets every text begin with `<s>`.
        settings: dict[str, Any] = {"add_bos_token": bool(tokenizer.prefix)}
        if added := [*tokenizer.added.values()]:
            settings |= {LEGACY: tokenizer.spaces_each, **stated_added(tokenizer.added)}
        if (converted := tokenizer_json(tokenizer.model, tokenizer.prefix, added, tokenizer.spaces_each)) is None:
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
    shape = layout_of_config(config, file).shape(config, file)
    return replace(shape, labels=len(label_names(config, file)))


def read_label_names(folder: Path) -> tuple[str, ...]:
    """Read the names of the classes of a classifier; empty for a language model. Errors as `read_shape`."""
    return label_names(_read_config(folder), folder / "config.json")


def check_weights(folder: Path) -> None:
    """Check that a model folder has files of weights, which are not read.

    Raises:
        UserError: it has none.
    """
    if not any(weight_files(folder, name) for name in (SAFETENSORS, PICKLED)):
        raise no_weights(folder)


def no_weights(folder: Path) -> UserError:
    """Error of a model folder without weights."""
    return UserError(f"{folder} has neither {SAFETENSORS} nor {PICKLED}; copy or merge the model again")


def weight_files(folder: Path, name: str) -> list[Path]:
    """Return the file of this name, or the shards listed in its index; empty if neither exists."""
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return []
    try:
        shards = sorted({inner_path(shard, index) for shard in json.loads(index.read_bytes())["weight_map"].values()})
        "".join(shards).encode()  # a lone surrogate is in no name of a file
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{index} is damaged ({error}); copy the model again") from error
    return [folder / shard for shard in shards]


def check_free(folder: Path) -> None:
    """Check that a model may be written to a path: it does not exist, is empty, or is an older model folder.

    Raises:
        UserError: the path is something else.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not _is_model_folder(folder):
        raise UserError(f"{folder} already exists and is not a model folder; give another --output")


def _is_model_folder(folder: Path) -> bool:
    """Return True if the folder has a supported model; a folder with any other `config.json` is not overwritten."""
    try:
        read_shape(folder)
    except UserError:
        return False
    return True


def _read_config(folder: Path) -> dict[str, Any]:
    check_model_folder(folder)
    return read_object(folder / "config.json")


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON file of a model folder.

    Raises:
        UserError: the file cannot be read, or is not a JSON object.
    """
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
