"""Tokenizers of any kind behind one interface: loaded, compared, copied, and never parsing text for special tokens.

| files | kind | encoded by |
|---|---|---|
| `vocab.json` and `merges.txt`, or `tokenizer.json` made of them | BPE as GPT-2's | `tokenizers`, gigatoken |
| any other `tokenizer.json` | as it says | `tokenizers`, gigatoken where it can |
| `tokenizer.model`, `spiece.model` | SentencePiece | `sentencepiece` |
| `vocab.txt` | WordPiece | `tokenizers` |

A document that contains the characters `<|endoftext|>` gets the ids of these characters. Only the end of a document
produces the special id.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from tokenizers import models

from gpt2train.data.bpe_tables import (
    END_OF_TEXT,
    END_TOKENS,
    FILES,
    MERGES,
    TOKENIZER,
    VOCAB,
    build_tokenizer,
    end_token_of,
    parse_tables,
    read_tables,
    save_tokenizer,
    tables_of_json,
    tokenizer_files,
)
from gpt2train.data.post_processor import ids_before_text
from gpt2train.data.sentencepiece_model import MODEL, MODEL_NAMES, SentencePieceTokenizer
from gpt2train.data.wordpiece import VOCAB_TXT, build_wordpiece
from gpt2train.errors import UserError
from gpt2train.io.files import ARCHIVES, check_folder

__all__ = [
    "END_OF_TEXT",
    "FILES",
    "MERGES",
    "PADDING_TOKENS",
    "PRIMARY",
    "TOKENIZER",
    "VOCAB",
    "Tokenizer",
    "build_tokenizer",
    "canonical_files",
    "check_rows",
    "copy_tokenizer",
    "encode_ordinary",
    "end_of_text_id",
    "end_token",
    "has_tokenizer",
    "load_model_tokenizer",
    "load_tokenizer",
    "open_tokenizer",
    "padding_id",
    "parse_tables",
    "parse_tokenizer",
    "read_files",
    "read_tables",
    "save_tokenizer",
    "tables_of_json",
    "tokenizer_files",
    "tokenizer_hash",
    "vocab_size",
]

PRIMARY = (TOKENIZER, MODEL)  # each alone is a tokenizer; a canonical folder has exactly one of them
UNKNOWN_TOKENS = ("<unk>", "[UNK]", "<UNK>")  # special tokens that a text may give
PADDING_TOKENS = ("<pad>", "[PAD]", "<|padding|>", "<|pad|>")
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


class Tokenizer(Protocol):
    """Interface that `tokenizers.Tokenizer` and `SentencePieceTokenizer` share; encode by `encode_ordinary`."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode ids to a text."""

    def id_to_token(self, id: int) -> str | None:
        """Return the token of an id."""

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token."""

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of tokens; see `vocab_size`."""


def load_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a folder, or of one of its files.

    `tokenizer.json` is preferred, then `vocab.json` and `merges.txt`, `tokenizer.model`, `vocab.txt`.

    Raises:
        UserError: files are missing, damaged or of an unknown kind.
    """
    return open_tokenizer(read_files(path), str(path))


def load_model_tokenizer(folder: str | PathLike[str], rows: int) -> Tokenizer:
    """Load the tokenizer of a model, and check that it fits; errors as `load_tokenizer` and `check_rows`."""
    tokenizer = load_tokenizer(folder)
    check_rows(tokenizer, rows, folder)
    return tokenizer


def check_rows(tokenizer: Tokenizer, rows: int, source: str | PathLike[str]) -> None:
    """Check that a model has a row for each token. It may have more: Qwen's has some hundred that stand for no token.

    Args:
        tokenizer: tokenizer of the model.
        rows: size of the model's vocabulary.
        source: folder of the tokenizer, for error messages.

    Raises:
        UserError: the tokenizer has an id that the model does not know.
    """
    if (size := vocab_size(tokenizer)) > rows:
        raise UserError(
            f"the tokenizer {source} has {size} entries, the model {rows}; "
            "give the tokenizer that the model was trained with"
        )


def open_tokenizer(files: Mapping[str, bytes], source: str) -> Tokenizer:
    """Open a tokenizer from the content of its files.

    Args:
        files: content by canonical name; see `read_files`.
        source: folder of the files, for error messages.

    Raises:
        UserError: files are missing or damaged.
    """
    if TOKENIZER in files:
        return parse_tokenizer(_text(files, TOKENIZER, source), f"{source}/{TOKENIZER}")
    if VOCAB in files or MERGES in files:
        for name in (VOCAB, MERGES):
            if name not in files:
                raise UserError(f"cannot read {source}/{name}: No such file; a tokenizer folder has {KINDS}")
        try:
            return build_tokenizer(*parse_tables(_text(files, VOCAB, source), _text(files, MERGES, source)))
        except ValueError as error:
            raise UserError(f"{source} has no GPT-2 tokenizer: {error}") from error
    if MODEL in files:
        return SentencePieceTokenizer(files[MODEL], f"{source}/{MODEL}", _adds_bos(files))
    if VOCAB_TXT in files:
        try:
            return _ordinary(build_wordpiece(_text(files, VOCAB_TXT, source), _lowers(files)))
        except ValueError as error:
            raise UserError(f"{source} has no WordPiece tokenizer: {error}") from error
    raise UserError(f"{source} has no tokenizer; its folder has {KINDS}")


def parse_tokenizer(text: str, source: str) -> tokenizers.Tokenizer:
    """Parse the text of a `tokenizer.json`.

    Args:
        text: content of the file.
        source: path of the file, for error messages.

    Raises:
        UserError: the text is not a tokenizer with a token that ends a text.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for a bad file
        raise UserError(f"{source} is not a tokenizer: {error}; make the folder again") from error
    if all(tokenizer.token_to_id(token) is None for token in END_TOKENS):
        raise UserError(
            f"{source} has no {END_OF_TEXT} token, nor another that ends a text ({', '.join(END_TOKENS[1:])}); add one"
        )
    # A stored limit would cut documents, and padding would lengthen them.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _ordinary(tokenizer)


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
    if MODEL in found and _config(found).get(SOURCE_KEY) == MODEL:
        found.pop(TOKENIZER, None)
    return found


def canonical_files(files: Mapping[str, bytes], source: str) -> dict[str, bytes]:
    """Return the files that go along with tokens and models, so that the same tokenizer is opened from them.

    GPT-2's kind is written as its three files, WordPiece as `tokenizer.json`; any other file is copied.

    Raises:
        UserError: files are missing or damaged.
    """
    if not _has_prefix(files) and (tables := _tables(files, source)):
        return tokenizer_files(*tables)
    tokenizer = open_tokenizer(files, source)
    if TOKENIZER in files:
        return {TOKENIZER: files[TOKENIZER]}
    if isinstance(tokenizer, SentencePieceTokenizer):
        config = {CONFIG: json.dumps({"add_bos_token": True}).encode()} if tokenizer.prefix else {}
        return {MODEL: tokenizer.model, **config}
    assert isinstance(tokenizer, tokenizers.Tokenizer)
    return {TOKENIZER: tokenizer.to_str(pretty=False).encode()}


def copy_tokenizer(source: str | PathLike[str], folder: Path) -> None:
    """Write the tokenizer of `source` into an existing folder."""
    for name, content in canonical_files(read_files(source), str(source)).items():
        if name != CONFIG or not (folder / name).exists():  # a model folder has its own, which says the same
            (folder / name).write_bytes(content)


def has_tokenizer(folder: str | PathLike[str]) -> bool:
    """Return True if a folder has the files of a tokenizer."""
    path = Path(folder)
    alone = (TOKENIZER, *MODEL_NAMES, VOCAB_TXT)
    return all((path / name).is_file() for name in (VOCAB, MERGES)) or any((path / name).is_file() for name in alone)


def tokenizer_hash(path: str | PathLike[str]) -> str:
    """Hash (128 bits, hex) of everything that the ids depend on: of GPT-2's kind, in whatever file format it is."""
    files = canonical_files(read_files(path), str(path))
    if tables := _tables(files, str(path)):
        vocab, merges = tables
        ordered = sorted(vocab.items(), key=lambda item: item[1])
        content = json.dumps([ordered, merges], separators=(",", ":")).encode()
    elif TOKENIZER in files:
        plain = json.loads(files[TOKENIZER])
        parts = [plain.get(key) for key in ("added_tokens", "normalizer", "pre_tokenizer", "model")]
        content = json.dumps(parts, separators=(",", ":")).encode()
    else:
        content = files[MODEL]
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def vocab_size(tokenizer: Tokenizer) -> int:
    """Number of ids from 0 to the largest one; ids without a token count, since a model needs a row for each."""
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return tokenizer.get_vocab_size()


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Id of the token that ends every document: `<|endoftext|>`, or the first of `END_TOKENS` that there is.

    Raises:
        UserError: the tokenizer has no such token.
    """
    if isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.end is not None:
        return tokenizer.end
    for token in END_TOKENS:
        if (number := tokenizer.token_to_id(token)) is not None:
            return int(number)
    raise UserError(f"the tokenizer has no {END_OF_TEXT} token, nor another that ends a text")


def padding_id(tokenizer: Tokenizer) -> int:
    """Id of the padding token: the first of `PADDING_TOKENS` that there is, or the one that ends a text."""
    found = (tokenizer.token_to_id(token) for token in PADDING_TOKENS)
    return next((int(number) for number in found if number is not None), end_of_text_id(tokenizer))


def end_token(tokenizer: Tokenizer) -> str:
    """Return the token that ends every document, as `end_of_text_id`."""
    return str(tokenizer.id_to_token(end_of_text_id(tokenizer)))


def encode_ordinary(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts; `<|endoftext|>` inside a text is ordinary text, whatever the tokenizer's own setting.

    Raises:
        UserError: a text contains a lone surrogate, which UTF-8 cannot represent.
    """
    try:
        if isinstance(tokenizer, SentencePieceTokenizer):
            return tokenizer.encode(texts)
        assert isinstance(tokenizer, tokenizers.Tokenizer)
        encoded = _ordinary(tokenizer).encode_batch_fast(list(texts), add_special_tokens=False)
    except TypeError as error:
        raise UserError("a text contains a lone surrogate, which UTF-8 cannot encode; replace it first") from error
    ids = [encoding.ids for encoding in encoded]
    # Merges never give a special token; the other models look up whole words.
    by_merges = isinstance(tokenizer.model, models.BPE) and not tokenizer.model.ignore_merges
    return ids if by_merges else _spell_out(tokenizer, ids)


def _spell_out(tokenizer: tokenizers.Tokenizer, encoded: list[list[int]]) -> list[list[int]]:
    """Replace special tokens by their letters: a model of whole words or pieces finds `</s>` in a text by itself."""
    special = {
        number: token.content
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and token.content not in UNKNOWN_TOKENS
    }
    if all(special.keys().isdisjoint(ids) for ids in encoded):
        return encoded

    model = json.loads(tokenizer.to_str())["model"]
    unknown = model["unk_id"] if "unk_id" in model else tokenizer.token_to_id(model.get("unk_token") or "")

    def letters(token: str) -> list[int]:
        found = [tokenizer.token_to_id(letter) for letter in token]
        return [number for number in (unknown if one is None else one for one in found) if number is not None]

    return [[one for number in ids for one in (letters(special[number]) if number in special else [number])]
            for ids in encoded]  # fmt: skip


def _tables(files: Mapping[str, bytes], source: str) -> tuple[dict[str, int], list[tuple[str, str]]] | None:
    """Tables of a tokenizer of GPT-2's kind; None if it is of another kind.

    A `tokenizer.json` of another kind, or with more added tokens than the one that ends a text, has the last word: its
    folder may have the tables too.

    Raises:
        UserError: the files are tables alone, and not GPT-2's.
    """
    tables = None
    if VOCAB in files and MERGES in files:
        try:
            tables = parse_tables(_text(files, VOCAB, source), _text(files, MERGES, source))
        except ValueError as error:
            if TOKENIZER not in files:
                raise UserError(f"{source} has no GPT-2 tokenizer: {error}") from error
    if TOKENIZER in files:
        text = _text(files, TOKENIZER, source)
        try:
            from_json = tables_of_json(text)
        except ValueError:
            return None
        if any(token["content"] != end_token_of(from_json[0]) for token in json.loads(text).get("added_tokens") or []):
            return None
        return tables or from_json
    return tables


def _has_prefix(files: Mapping[str, bytes]) -> bool:
    """Return True if a `tokenizer.json` puts tokens before a text, which GPT-2's three files would lose."""
    content = files.get(TOKENIZER, b"")
    if b"Processing" not in content:
        return False
    try:
        return bool(ids_before_text(json.loads(content).get("post_processor")))
    except (ValueError, LookupError, TypeError, AttributeError):  # a damaged file, which gets its message later
        return False


def _lowers(files: Mapping[str, bytes]) -> bool | None:
    """`do_lower_case` of `tokenizer_config.json`, None if it does not say."""
    found = _config(files).get("do_lower_case")
    return found if isinstance(found, bool) else None


def _adds_bos(files: Mapping[str, bytes]) -> bool:
    """Return True if texts begin with `<s>` by `tokenizer_config.json`, or by the default of its class."""
    config = _config(files)
    found = config.get("add_bos_token")
    return found if isinstance(found, bool) else config.get("tokenizer_class") in BOS_CLASSES


def _config(files: Mapping[str, bytes]) -> dict[str, Any]:
    """`tokenizer_config.json`, empty if there is none or it is damaged."""
    try:
        config = json.loads(files.get(CONFIG, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _ordinary(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    # The flag is not stored in tokenizer.json, so each load sets it.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _text(files: Mapping[str, bytes], name: str, source: str) -> str:
    try:
        return files[name].decode()
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {source}/{name}: {error}; copy the folder again") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the file") from error
