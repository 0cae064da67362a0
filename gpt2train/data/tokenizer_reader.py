"""Files of a tokenizer: found under their published names, read, and what they say without a tokenizer made of them.

Files are passed as their content by our own names of them, whether they are in a folder, in a store or made here.
"""

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from gpt2train.data.bpe_tables import MERGES, TOKENIZER, VOCAB, end_token_of, parse_tables, tables_of_json
from gpt2train.data.post_processor import ids_before_text
from gpt2train.data.sentencepiece_model import MODEL, MODEL_NAMES
from gpt2train.data.wordpiece import VOCAB_TXT
from gpt2train.errors import UserError
from gpt2train.io.files import ARCHIVES, check_folder

CONFIG = "tokenizer_config.json"
SOURCE_KEY = "gpt2train_source"  # in CONFIG: the file from which a tokenizer.json was converted for transformers
# Classes of transformers for SentencePiece models that put `<s>` before a text by default.
BOS_CLASSES = tuple(f"{name}Tokenizer{fast}" for name in ("Llama", "CodeLlama", "Gemma") for fast in ("", "Fast"))
# Our name of each file -> its names in published folders.
NAMES = {
    TOKENIZER: (TOKENIZER,),
    VOCAB: (VOCAB, "encoder.json"),
    MERGES: (MERGES, "vocab.bpe"),
    MODEL: MODEL_NAMES,
    VOCAB_TXT: (VOCAB_TXT,),
    CONFIG: (CONFIG,),
}
KINDS = f"{TOKENIZER}, {VOCAB} and {MERGES}, {MODEL}, or {VOCAB_TXT}"


def read_files(path: str | PathLike[str]) -> dict[str, bytes]:
    """Read the files of a tokenizer by their canonical names, from a folder or from one of its files.

    Raises:
        UserError: the path does not exist, cannot be read, or is a file of an unknown kind.
    """
    place = Path(path)
    if not place.is_file() or place.suffix.lower() in ARCHIVES:
        check_folder(place)
        return collect_files(lambda name: (place / name).read_bytes(), str(place))
    if place.suffix == ".model":
        return {MODEL: _read(place)}
    for canonical, names in NAMES.items():
        if place.name in names and canonical != CONFIG:
            if canonical == TOKENIZER:
                return {TOKENIZER: _read(place)}
            found = read_files(place.parent)
            group = (VOCAB, MERGES) if canonical in (VOCAB, MERGES) else (canonical, CONFIG)
            return {name: found[name] for name in group if name in found}
    if place.suffix == ".json":
        return {TOKENIZER: _read(place)}
    raise UserError(f"{place} is a tokenizer file of an unknown kind; give {KINDS}")


def collect_files(read: Callable[[str], bytes], source: str) -> dict[str, bytes]:
    """Collect the files of a tokenizer that exist, by their canonical names.

    Args:
        read: reads a file by its name; raises FileNotFoundError or another OSError.
        source: folder of the files, for error messages.

    Raises:
        UserError: a file cannot be read.
    """
    found: dict[str, bytes] = {}
    for canonical, names in NAMES.items():
        for name in names:
            try:
                found.setdefault(canonical, read(name))
            except (FileNotFoundError, IsADirectoryError):
                continue
            except OSError as error:
                raise UserError(f"cannot read {source}/{name}: {error.strerror or error}; check the file") from error
    if MODEL in found and config_of(found).get(SOURCE_KEY) == MODEL:
        found.pop(TOKENIZER, None)
    return found


def has_tokenizer(folder: str | PathLike[str]) -> bool:
    """Return True if a folder has the files of a tokenizer."""
    path = Path(folder)
    alone = (TOKENIZER, *MODEL_NAMES, VOCAB_TXT)
    return all((path / name).is_file() for name in (VOCAB, MERGES)) or any((path / name).is_file() for name in alone)


def tables_of(files: Mapping[str, bytes], source: str) -> tuple[dict[str, int], list[tuple[str, str]]] | None:
    """Tables of a tokenizer of GPT-2's kind; None if it is of another kind.

    A `tokenizer.json` of another kind, or with more added tokens than the one that ends a text, has the last word: its
    folder may have the tables too.

    Raises:
        UserError: the files are tables alone, and not GPT-2's.
    """
    tables = None
    if VOCAB in files and MERGES in files:
        try:
            tables = parse_tables(text_of(files, VOCAB, source), text_of(files, MERGES, source))
        except ValueError as error:
            if TOKENIZER not in files:
                raise UserError(f"{source} has no GPT-2 tokenizer: {error}") from error
    if TOKENIZER in files:
        text = text_of(files, TOKENIZER, source)
        try:
            from_json = tables_of_json(text)
        except ValueError:
            return None
        if any(token["content"] != end_token_of(from_json[0]) for token in json.loads(text).get("added_tokens") or []):
            return None
        return tables or from_json
    return tables


def has_prefix(files: Mapping[str, bytes]) -> bool:
    """Return True if a `tokenizer.json` puts tokens before a text, which GPT-2's three files would lose."""
    content = files.get(TOKENIZER, b"")
    if b"Processing" not in content:
        return False
    try:
        return bool(ids_before_text(json.loads(content).get("post_processor")))
    except (ValueError, LookupError, TypeError, AttributeError):  # a damaged file, which gets its message later
        return False


def lowers(files: Mapping[str, bytes]) -> bool | None:
    """`do_lower_case` of `tokenizer_config.json`, None if it does not say."""
    found = config_of(files).get("do_lower_case")
    return found if isinstance(found, bool) else None


def adds_bos(files: Mapping[str, bytes]) -> bool:
    """Return True if texts begin with `<s>` by `tokenizer_config.json`, or by the default of its class."""
    config = config_of(files)
    found = config.get("add_bos_token")
    return found if isinstance(found, bool) else config.get("tokenizer_class") in BOS_CLASSES


def config_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """`tokenizer_config.json`, empty if there is none or it is damaged."""
    try:
        config = json.loads(files.get(CONFIG, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def text_of(files: Mapping[str, bytes], name: str, source: str) -> str:
    """Return the content of a file as text.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        return files[name].decode()
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {source}/{name}: {error}; copy the folder again") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the file") from error
