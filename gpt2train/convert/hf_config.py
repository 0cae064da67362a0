"""`config.json` and the other JSON files of a Hugging Face folder, about model and tokenizer.

A sequence classifier, a class `…ForSequenceClassification` of transformers, has the fields of the language model with
another architecture and the names of the classes. Its `pad_token_id` is required: transformers reads the last token of
a sample that is not this one.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt2train.checkpoint.manifest import sha256
from gpt2train.convert.hf_layout import layout_of, layout_of_config
from gpt2train.convert.hf_sentencepiece import tokenizer_json
from gpt2train.convert.settings import CARD, Dtype
from gpt2train.data.added_tokens import stated_added
from gpt2train.data.chat import Chat
from gpt2train.data.chat_template import FILE
from gpt2train.data.encoder import splits_as_gpt2
from gpt2train.data.sentencepiece_model import MODEL, SentencePieceTokenizer
from gpt2train.data.sentinels import sentinel_names
from gpt2train.data.template import prefix_ids, start_ids
from gpt2train.data.tokenizer import TOKENIZER, Tokenizer, end_of_text_id, end_token, padding_id
from gpt2train.data.tokenizer_reader import LEGACY, SOURCE_KEY
from gpt2train.errors import UserError, check_no_pointer
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape
from gpt2train.store.files import ADAPTER, adapter_alone, check_model_folder
from gpt2train.store.inner_path import inner_path

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
ENDINGS = (".json", ".safetensors", ".txt", ".model", ".jinja", ".md")  # of the files that a model is written with
SCORES = "eval"  # folder of the scores of a model
SEAL = "\n<!-- files as written: "  # at the end of a model card; Markdown does not show it
CLASSIFIER = "ForSequenceClassification"
LANGUAGE_MODELS = ("LMHeadModel", "ForCausalLM")
MAX_LABELS = 2**16
DEFAULT_LABELS = 2  # of transformers, whose files leave out `id2label` then
GENERATION_FILES = ("generation_config.json", "config.json")  # the first that exists, as in transformers
END_FIELD = "eos_token_id"
MAX_ENDS = 16  # as many as `stop_tokens`; models have up to five


def write_config(
    folder: Path,
    shape: Shape,
    tokenizer: Tokenizer,
    dtype: Dtype,
    labels: Sequence[str],
    chat: Chat | None,
) -> None:
    """Write the configuration files that `AutoModelForCausalLM` and `AutoTokenizer` read, and the chat template.

    Those of a classifier, with the names of its classes if they are known, are for
    `AutoModelForSequenceClassification`.
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
    encoder = len(MODELS[shape.family].lengths(shape)) > 1
    if encoder:  # its texts have sentinels and padding
        special["pad_token"] = tokenizer.id_to_token(padding_id(tokenizer))
        special["additional_special_tokens"] = sentinel_names(tokenizer)
    if chat is not None:  # a template names the tokens, so that they stay those that it was written for
        special |= {"bos_token": None, **chat.template.tokens}
        (folder / FILE).write_text(chat.template.text, encoding="utf-8")
    tokenizer_config = {
        **special,
        **_tokenizer_class(folder, tokenizer, encoder),
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


def _tokenizer_class(folder: Path, tokenizer: Tokenizer, encoder: bool) -> dict[str, Any]:
    """Class of transformers that encodes as the tokenizer does, with its settings.

    Of a SentencePiece model it reads a `tokenizer.json`, which is written here, or else the model; the text of an
    encoder gets the end token, which T5's class puts there and the model does not name.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        # Without the field, llama.cpp's converter lets every text begin with `<s>`.
        settings: dict[str, Any] = {"add_bos_token": bool(tokenizer.prefix)}
        if added := [*tokenizer.added.values()]:
            settings |= {LEGACY: tokenizer.spaces_each, **stated_added(tokenizer.added)}
        ends = [end_of_text_id(tokenizer)] if encoder else []
        converted = tokenizer_json(tokenizer.model, tokenizer.prefix, added, tokenizer.spaces_each, ends)
        if converted is None:
            pattern = "eos" if encoder else "bos" if tokenizer.prefix else "none"
            return {"tokenizer_class": "SentencePieceBackend", "special_tokens_pattern": pattern, **settings}
        (folder / TOKENIZER).write_text(converted, encoding="utf-8")
        return {"tokenizer_class": "PreTrainedTokenizerFast", SOURCE_KEY: MODEL, **settings}
    if splits_as_gpt2(tokenizer) and not prefix_ids(tokenizer):
        return {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    return {"tokenizer_class": "PreTrainedTokenizerFast"}


def classifier_config(config: dict[str, Any], labels: int, names: Sequence[str], pad: int) -> dict[str, Any]:
    """Return the fields of `config.json` of a classifier from those of a language model.

    Without names the classes have those of transformers; the token `pad` pads samples on the right.
    """
    architecture = str(config["architectures"][0])
    for ending in LANGUAGE_MODELS:
        architecture = architecture.removesuffix(ending)
    chosen = list(names) or [f"LABEL_{number}" for number in range(labels)]
    return config | {
        "architectures": [architecture + CLASSIFIER],
        "id2label": {str(number): name for number, name in enumerate(chosen)},
        "label2id": {name: number for number, name in enumerate(chosen)},
        "pad_token_id": pad,
        "problem_type": "single_label_classification",
    }


def label_names(config: dict[str, Any], file: Path) -> tuple[str, ...]:
    """Read the names of the classes from the fields of `config.json`; empty for a language model.

    Raises:
        UserError: they are not those of the numbers from 0 on.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not any(str(name).endswith(CLASSIFIER) for name in architectures):
        return ()
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", DEFAULT_LABELS)
        if type(count) is not int or not 1 <= count <= MAX_LABELS:
            raise UserError(f"{file}: num_labels is {str(count)[:40]}; expected a whole number up to {MAX_LABELS:,}")
        names = {str(number): f"LABEL_{number}" for number in range(count)}
    if not isinstance(names, dict) or not names or set(names) != {str(number) for number in range(len(names))}:
        raise UserError(f"{file}: id2label does not name the classes 0, 1, …; correct it")
    return tuple(str(names[str(number)]) for number in range(len(names)))


def read_end_tokens(folder: Path, rows: int) -> tuple[int, ...]:
    """Read the ids of `eos_token_id`, at which `transformers` ends a text.

    Args:
        folder: model folder.
        rows: size of the model's vocabulary; a larger id, or -1, is no token and is left out.

    Raises:
        UserError: the file is damaged, or the field is neither a token id nor a list of them.
    """
    file = next((folder / name for name in GENERATION_FILES if (folder / name).exists()), None)
    if file is None:
        return ()
    given = read_object(file).get(END_FIELD)
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if len(ids) > MAX_ENDS or any(type(number) is not int for number in ids):
        raise UserError(
            f"{file}: {END_FIELD} is {repr(given)[:40]}; expected a token id or a list of up to {MAX_ENDS}; correct it"
        )
    return tuple(number for number in dict.fromkeys(ids) if 0 <= number < rows)


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
    if (folder / ADAPTER).is_file():
        return UserError(adapter_alone(folder))
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
        UserError: the path is something else, or a model folder with files that none is written with, such as `.git`,
            or that were added or changed since it was written here.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        try:
            read_shape(folder)  # a folder with any other `config.json` is not overwritten
        except UserError as error:
            raise UserError(f"{folder} already exists and is not a model folder; give another folder") from error
        for path in sorted(folder.iterdir()):
            if path.name != SCORES if path.is_dir() else path.suffix not in ENDINGS:
                raise UserError(f"{folder} has {path.name} of yours, which would be removed; give another folder")
        card = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            card = (folder / CARD).read_text(encoding="utf-8")
        if sealed(folder, card.rpartition(SEAL)[0]) != card:
            changed = "files that were added or changed since it was written, which would be lost"
            raise UserError(f"{folder} has {changed}; give another folder")


def sealed(folder: Path, card: str) -> str:
    """Return a model card with a hash at its end: of the card, and of all other files of its folder but the weights."""
    found = hashlib.sha256(card.encode())
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name != CARD and file.suffix != Path(SAFETENSORS).suffix:
            found.update(f"\0{file.name}\0{sha256(file)}".encode())
    return f"{card}{SEAL}{found.hexdigest()[:16]} -->\n"


def _read_config(folder: Path) -> dict[str, Any]:
    check_model_folder(folder)
    return read_object(folder / "config.json")


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON file of a model folder.

    Raises:
        UserError: the file cannot be read, or is not a JSON object.
    """
    try:
        content = file.read_bytes()
        check_no_pointer(content, file)
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}; copy the folder again") from error
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; copy the folder again") from error
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object")
    return config


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
