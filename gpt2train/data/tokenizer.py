"""GPT-2's byte-level BPE from a folder of `vocab.json`, `merges.txt` and `tokenizer.json`.

Text is never parsed for special tokens: a document that contains the characters `<|endoftext|>` gets the ids of these
characters. Only the end of a document produces the special id.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from gpt2train.errors import UserError
from gpt2train.io.files import check_folder

END_OF_TEXT = "<|endoftext|>"
VOCAB, MERGES, TOKENIZER = "vocab.json", "merges.txt", "tokenizer.json"
FILES = (VOCAB, MERGES, TOKENIZER)


def build_tokenizer(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """Build GPT-2's tokenizer from its tables: no normaliser, no prefix space, `<|endoftext|>` the only special token.

    Args:
        vocab: token -> id, including `<|endoftext|>`.
        merges: merges by rank, best first.

    Returns:
        A tokenizer that does not search for special tokens in text (`encode_special_tokens`).
    """
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return _ordinary(tokenizer)


def tokenizer_files(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """Content of the three files by name. It depends only on the tables: the vocabulary is sorted by id."""
    ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    return {
        VOCAB: json.dumps(ordered, ensure_ascii=False).encode(),
        MERGES: ("\n".join(lines) + "\n").encode(),
        TOKENIZER: build_tokenizer(ordered, merges).to_str(pretty=False).encode(),
    }


def save_tokenizer(folder: str | PathLike[str], vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
    """Write the three files into an existing folder."""
    for name, content in tokenizer_files(vocab, merges).items():
        (Path(folder) / name).write_bytes(content)


def load_tokenizer(folder: str | PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a folder.

    It reads `tokenizer.json` if it exists, otherwise `vocab.json` and `merges.txt`, as OpenAI published them.

    Raises:
        UserError: files are missing or are not a GPT-2 tokenizer.
    """
    path = Path(folder)
    if not (path / TOKENIZER).is_file():
        return build_tokenizer(*read_tables(path))
    try:
        text = (path / TOKENIZER).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path / TOKENIZER}: {error}; copy the folder again") from error
    return parse_tokenizer(text, str(path / TOKENIZER))


def parse_tokenizer(text: str, source: str) -> Tokenizer:
    """Parse the text of a `tokenizer.json`.

    Args:
        text: content of the file.
        source: path of the file, for error messages.

    Raises:
        UserError: the text is not a tokenizer with an `<|endoftext|>` token.
    """
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for a bad file
        raise UserError(f"{source} is not a tokenizer: {error}; make the folder again") from error
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise UserError(f"{source} has no {END_OF_TEXT} token; a GPT-2 tokenizer has it")
    return _ordinary(tokenizer)


def has_tokenizer(folder: str | PathLike[str]) -> bool:
    """Return True if a folder has the files of a tokenizer: the two tables, or only `tokenizer.json`."""
    path = Path(folder)
    return all((path / name).is_file() for name in (VOCAB, MERGES)) or (path / TOKENIZER).is_file()


def read_tables(folder: str | PathLike[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Read vocabulary and merges of a folder.

    They are read from `tokenizer.json` if the folder has neither table, as transformers 5 saves it.

    Raises:
        UserError: a file is missing or malformed.
    """
    check_folder(folder)
    path = Path(folder)
    json_only = (path / TOKENIZER).is_file() and not any((path / name).exists() for name in (VOCAB, MERGES))
    try:
        texts = [(path / name).read_text(encoding="utf-8") for name in ((TOKENIZER,) if json_only else (VOCAB, MERGES))]
        return tables_of_json(texts[0]) if json_only else parse_tables(*texts)
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename}: {error.strerror}; a tokenizer folder has {VOCAB} and {MERGES}, "
            f"or {TOKENIZER}"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} has no GPT-2 tokenizer: {error}") from error


def parse_tables(vocab_json: str, merges_txt: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Parse vocabulary and merges from the text of the two published files.

    Raises:
        ValueError: one of them is malformed.
    """
    vocab = _json(vocab_json, VOCAB)
    if not isinstance(vocab, dict):
        raise ValueError(f"{VOCAB} is not a JSON object and so has no {END_OF_TEXT} token")
    first, *rest = merges_txt.replace("\r\n", "\n").split("\n")
    lines = rest if first.startswith("#version") else [first, *rest]
    return _checked(vocab, [_pair(line, MERGES) for line in lines if line], VOCAB)


def tables_of_json(text: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Parse vocabulary, including added tokens, and merges from a `tokenizer.json` that encodes as GPT-2 does.

    Raises:
        ValueError: it is another kind of tokenizer (WordPiece, another normaliser or pre-tokenizer), or damaged.
    """
    plain = _json(text, TOKENIZER)
    model = plain.get("model") if isinstance(plain, dict) else None
    if not isinstance(plain, dict) or not isinstance(model, dict):
        raise ValueError(f"{TOKENIZER} has no model")
    pre = plain.get("pre_tokenizer")
    kind = model.get("type", "BPE")
    if kind != "BPE" or not isinstance(pre, dict) or pre.get("type") != "ByteLevel":
        split = pre.get("type") if isinstance(pre, dict) else pre
        raise ValueError(
            f"{TOKENIZER} has the model {kind} and the pre-tokenizer {split}; GPT-2's are BPE and ByteLevel"
        )
    different = {
        "normalizer": plain.get("normalizer"),
        "add_prefix_space": pre.get("add_prefix_space"),
        "use_regex": pre.get("use_regex", True) is not True,
        **{name: model.get(name) for name in ("dropout", "byte_fallback", "ignore_merges")},
        **{name: model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")},
    }
    for name, value in different.items():
        if value:
            raise ValueError(f"{TOKENIZER} sets {name}, and so does not encode as GPT-2's tokenizer does")
    merges, added = model.get("merges"), plain.get("added_tokens") or []
    if not isinstance(merges, list) or not isinstance(added, list):
        raise ValueError(f"{TOKENIZER} has no list of merges")
    if not isinstance(model.get("vocab"), dict):
        raise ValueError(f"{TOKENIZER} has no vocabulary")
    vocab = dict(model["vocab"])
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise ValueError(f"{TOKENIZER} has an added token without content")
        if vocab.setdefault(token["content"], token.get("id")) != token.get("id"):
            raise ValueError(f"{TOKENIZER} gives the added token {token['content'][:40]!r} two ids")
    return _checked(vocab, [_pair(pair, TOKENIZER) for pair in merges], TOKENIZER)


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Id of `<|endoftext|>`, which ends every document.

    Raises:
        UserError: the tokenizer has no such token.
    """
    number = tokenizer.token_to_id(END_OF_TEXT)
    if number is None:
        raise UserError(f"the tokenizer has no {END_OF_TEXT} token")
    return int(number)


def encode_ordinary(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts; `<|endoftext|>` inside a text is ordinary text, whatever the tokenizer's own setting.

    Raises:
        UserError: a text contains a lone surrogate, which UTF-8 cannot represent.
    """
    try:
        encoded = _ordinary(tokenizer).encode_batch_fast(list(texts), add_special_tokens=False)
    except TypeError as error:
        raise UserError("a text contains a lone surrogate, which UTF-8 cannot encode; replace it first") from error
    return [encoding.ids for encoding in encoded]


def tokenizer_hash(folder: str | PathLike[str]) -> str:
    """Hash (128 bits, hex) of a tokenizer's vocabulary and merges, independent of their file format."""
    vocab, merges = read_tables(folder)
    ordered = sorted(vocab.items(), key=lambda item: item[1])
    tables = json.dumps([ordered, merges], separators=(",", ":"))
    return hashlib.blake2b(tables.encode(), digest_size=16).hexdigest()


def _ordinary(tokenizer: Tokenizer) -> Tokenizer:
    # The flag is not stored in tokenizer.json, so each load sets it.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from error


def _pair(merge: object, name: str) -> tuple[str, str]:
    """Parse one merge: `left right`, or a list of both as in newer `tokenizer.json`."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise ValueError(f"{str(merge)[:40]!r} in {name} is not a pair")
    return parts[0], parts[1]


def _checked(
    vocab: dict[str, Any], merges: list[tuple[str, str]], name: str
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the tables if they are consistent: contiguous ids from 0, and merges of tokens in the vocabulary.

    Raises:
        ValueError: they are not.
    """
    if END_OF_TEXT not in vocab:
        raise ValueError(f"{name} has no {END_OF_TEXT} token")
    if not all(type(number) is int for number in vocab.values()) or sorted(vocab.values()) != [*range(len(vocab))]:
        raise ValueError(f"the ids in {name} are not the numbers from 0 to {len(vocab) - 1}")
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in vocab:
                raise ValueError(f"the merge of {left[:40]!r} and {right[:40]!r} needs {token[:40]!r}, not in {name}")
    return vocab, merges
