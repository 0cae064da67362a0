"""Byte-level BPE that splits text as GPT-2's does: `vocab.json`, `merges.txt` and the `tokenizer.json` made of them."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from gpt2train.errors import UserError
from gpt2train.store.files import check_folder

END_OF_TEXT = "<|endoftext|>"
# Names of the token that ends a document; the first one that a vocabulary has is used.
END_TOKENS = (
    *(END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<eod>", "[EOS]", "[SEP]"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<EOS_TOKEN>"),  # DeepSeek, Command
)
VOCAB, MERGES, TOKENIZER = "vocab.json", "merges.txt", "tokenizer.json"
FILES = (VOCAB, MERGES, TOKENIZER)


def build_tokenizer(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """Build a tokenizer from its tables: no normaliser, no prefix space, the end token the only special token.

    Args:
        vocab: token -> id, including `<|endoftext|>` or another one of `END_TOKENS`.
        merges: merges by rank, best first.

    Returns:
        A tokenizer that does not search for special tokens in text (`encode_special_tokens`).
    """
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(end_token_of(vocab), special=True, normalized=False)])
    tokenizer.encode_special_tokens = True  # not stored in tokenizer.json, so each load sets it
    return tokenizer


def end_token_of(vocab: Mapping[str, int]) -> str:
    """Return the token that ends a document; `<|endoftext|>` if the vocabulary has none."""
    return next((token for token in END_TOKENS if token in vocab), END_OF_TEXT)


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
    if not any(token in vocab for token in END_TOKENS):
        raise ValueError(f"{name} has no {END_OF_TEXT} token, nor another that ends a text ({', '.join(END_TOKENS)})")
    if not all(type(number) is int for number in vocab.values()) or sorted(vocab.values()) != [*range(len(vocab))]:
        raise ValueError(f"the ids in {name} are not the numbers from 0 to {len(vocab) - 1}")
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in vocab:
                raise ValueError(f"the merge of {left[:40]!r} and {right[:40]!r} needs {token[:40]!r}, not in {name}")
    return vocab, merges
