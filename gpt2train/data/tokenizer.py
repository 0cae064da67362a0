"""GPT-2's byte-level BPE from a folder of `vocab.json`, `merges.txt` and `tokenizer.json`.

Text is never parsed for special tokens: a document that contains the letters `<|endoftext|>` gets the ids of these
letters. The special id marks the end of a document and nothing else can produce it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from gpt2train.errors import UserError

END_OF_TEXT = "<|endoftext|>"
VOCAB, MERGES, TOKENIZER = "vocab.json", "merges.txt", "tokenizer.json"
FILES = (VOCAB, MERGES, TOKENIZER)


def build_tokenizer(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """GPT-2's tokenizer from its two tables: no normaliser, no space in front, `<|endoftext|>` the only special token.

    Args:
        vocab: token -> id; holds `<|endoftext|>`.
        merges: pairs by rank, best first.

    Returns:
        A tokenizer that does not look for special tokens in text (`encode_special_tokens`).
    """
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return _ordinary(tokenizer)


def tokenizer_files(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> dict[str, bytes]:
    """Content of the three files by name. It depends on the tables alone: the vocabulary lies in the order of ids."""
    ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    return {
        VOCAB: json.dumps(ordered, ensure_ascii=False).encode(),
        MERGES: ("\n".join(lines) + "\n").encode(),
        TOKENIZER: build_tokenizer(ordered, merges).to_str(pretty=False).encode(),
    }


def save_tokenizer(folder: str | Path, vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
    """Write the three files into a folder that is there."""
    for name, content in tokenizer_files(vocab, merges).items():
        (Path(folder) / name).write_bytes(content)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a folder.

    `tokenizer.json` is read where it is there; else `vocab.json` and `merges.txt`, as OpenAI published them.

    Raises:
        UserError: files are missing or are not a GPT-2 tokenizer.
    """
    place = Path(folder)
    if not (place / TOKENIZER).is_file():
        return build_tokenizer(*read_tables(place))
    return parse_tokenizer((place / TOKENIZER).read_text(encoding="utf-8"), str(place / TOKENIZER))


def parse_tokenizer(text: str, place: str) -> Tokenizer:
    """A tokenizer from the text of a `tokenizer.json`; `place` is what an error names.

    Raises:
        UserError: the text is not a tokenizer that ends documents with `<|endoftext|>`.
    """
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for a bad file
        raise UserError(f"{place} is not a tokenizer: {error}; make the folder again") from error
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise UserError(f"{place} has no {END_OF_TEXT} token; a GPT-2 tokenizer has it")
    return _ordinary(tokenizer)


def read_tables(folder: str | Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a folder.

    Raises:
        UserError: a file is missing, or is not such a table.
    """
    place = Path(folder)
    try:
        return parse_tables(*((place / name).read_text(encoding="utf-8") for name in (VOCAB, MERGES)))
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename}: {error.strerror}; a tokenizer folder has {VOCAB} and {MERGES}"
        ) from error
    except ValueError as error:
        raise UserError(f"{place} holds no GPT-2 tokenizer: {error}") from error


def parse_tables(vocab_json: str, merges_txt: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges from the text of the two published files.

    Raises:
        ValueError: one of them is not such a table.
    """
    vocab = json.loads(vocab_json)
    if not isinstance(vocab, dict) or END_OF_TEXT not in vocab:
        raise ValueError(f"{VOCAB} has no {END_OF_TEXT} token")
    first, *rest = merges_txt.split("\n")
    lines = rest if first.startswith("#version") else [first, *rest]
    return vocab, [_pair(line) for line in lines if line]


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Id of `<|endoftext|>`, which ends every document.

    Raises:
        UserError: the tokenizer has none.
    """
    number = tokenizer.token_to_id(END_OF_TEXT)
    if number is None:
        raise UserError(f"the tokenizer has no {END_OF_TEXT} token")
    return int(number)


def encode_ordinary(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text; `<|endoftext|>` inside a text is ordinary letters, whatever the tokenizer's own setting.

    Raises:
        UserError: a text holds half of a surrogate pair, which no UTF-8 can.
    """
    try:
        encoded = _ordinary(tokenizer).encode_batch_fast(list(texts), add_special_tokens=False)
    except TypeError as error:
        raise UserError("a text holds a lone surrogate, which is no character; replace it before encoding") from error
    return [encoding.ids for encoding in encoded]


def tokenizer_hash(folder: str | Path) -> str:
    """Identity of a tokenizer (128 bits, hex): of its vocabulary and merges, however they are laid out on disk."""
    vocab, merges = read_tables(folder)
    ordered = sorted(vocab.items(), key=lambda item: item[1])
    tables = json.dumps([ordered, merges], separators=(",", ":"))
    return hashlib.blake2b(tables.encode(), digest_size=16).hexdigest()


def _ordinary(tokenizer: Tokenizer) -> Tokenizer:
    # The flag is not stored in tokenizer.json, so each load sets it.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right or " " in right:
        raise ValueError(f"{line[:40]!r} in {MERGES} is no pair")
    return left, right
