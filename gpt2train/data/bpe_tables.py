"""Byte-level BPE that splits text as GPT-2's does: `vocab.json`, `merges.txt` and the `tokenizer.json` made of them."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

END_OF_TEXT = "<|endoftext|>"
# Names of the token that ends a document; the first one that a vocabulary has is used.
END_TOKENS = (
    *(END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<eod>", "[EOS]", "[SEP]"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<EOS_TOKEN>"),  # DeepSeek, Command
)
VOCAB, MERGES, TOKENIZER = "vocab.json", "merges.txt", "tokenizer.json"
FILES = (VOCAB, MERGES, TOKENIZER)
Tables = tuple[dict[str, int], list[tuple[str, str]]]
"""Vocabulary (token -> id), and merges by rank, best first."""


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


def parse_tables(vocab_json: str, merges_txt: str) -> Tables:
    """Parse vocabulary and merges from the text of the two published files.

    Raises:
        ValueError: one of them is malformed.
    """
    try:
        vocab = json.loads(vocab_json)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{VOCAB} is not JSON: {error}") from error
    if not isinstance(vocab, dict):
        raise ValueError(f"{VOCAB} is not a JSON object and so has no {END_OF_TEXT} token")
    first, *rest = merges_txt.replace("\r\n", "\n").split("\n")
    lines = rest if first.startswith("#version") else [first, *rest]
    return _checked(vocab, [_pair(line) for line in lines if line])


def tables_of_json(text: str) -> Tables | None:
    """Parse vocabulary and merges from a `tokenizer.json` that encodes as GPT-2 does.

    None for a damaged one, another kind of tokenizer (WordPiece, another normaliser or pre-tokenizer), and one that has
    more added tokens than the one that ends a text.
    """
    try:
        plain = json.loads(text)
        model, pre, vocab = plain["model"], plain["pre_tokenizer"], dict(plain["model"]["vocab"])
        different = (
            *(plain.get("normalizer"), pre.get("add_prefix_space"), pre.get("use_regex", True) is not True),
            *(model.get(name) for name in ("dropout", "byte_fallback", "ignore_merges")),
            *(model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")),
        )
        if model.get("type", "BPE") != "BPE" or pre["type"] != "ByteLevel" or any(different):
            return None
        added = [(token["content"], token["id"]) for token in plain.get("added_tokens") or ()]
        vocab = dict(added) | vocab
        if any(token != end_token_of(vocab) or vocab[token] != number for token, number in added):
            return None
        return _checked(vocab, list(map(_pair, model["merges"])))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None


def _pair(merge: object) -> tuple[str, str]:
    """Parse one merge: `left right`, or a list of both as in newer `tokenizer.json`."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise ValueError(f"{str(merge)[:40]!r} in {MERGES} is not a pair")
    return parts[0], parts[1]


def _checked(vocab: dict[str, Any], merges: list[tuple[str, str]]) -> Tables:
    """Return the tables if they are consistent: contiguous ids from 0, and merges of tokens in the vocabulary.

    Raises:
        ValueError: they are not.
    """
    if not any(token in vocab for token in END_TOKENS):
        raise ValueError(f"{VOCAB} has no {END_OF_TEXT} token, nor another that ends a text ({', '.join(END_TOKENS)})")
    if not all(type(number) is int for number in vocab.values()) or sorted(vocab.values()) != [*range(len(vocab))]:
        raise ValueError(f"the ids in {VOCAB} are not the numbers from 0 to {len(vocab) - 1}")
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in vocab:
                raise ValueError(f"the merge of {left[:40]!r} and {right[:40]!r} needs {token[:40]!r}, not in {VOCAB}")
    return vocab, merges
