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
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Protocol

import tokenizers
from tokenizers import models

from gpt2train.data.added_tokens import CONFIG, stated_added
from gpt2train.data.bpe_tables import (
    END_OF_TEXT,
    END_TOKENS,
    FILES,  # noqa: F401 - as save_tokenizer: others take them from here
    MERGES,
    TOKENIZER,
    VOCAB,
    build_tokenizer,
    parse_tables,
    save_tokenizer,  # noqa: F401
    tokenizer_files,
)
from gpt2train.data.sentencepiece_model import MODEL, SentencePieceTokenizer
from gpt2train.data.tokenizer_reader import (
    KINDS,
    LEGACY,
    added_of,
    adds_bos,
    has_prefix,
    ids_before_text,
    read_files,
    spaces_each,
    tables_of,
    text_of,
    wordpiece_of,
)
from gpt2train.data.wordpiece import VOCAB_TXT
from gpt2train.errors import UserError, is_failure

PRIMARY = (TOKENIZER, MODEL)  # each alone is a tokenizer; a canonical folder has exactly one of them
UNKNOWN_TOKENS = ("<unk>", "[UNK]", "<UNK>")  # special tokens that a text may give
PADDING_TOKENS = ("<pad>", "[PAD]", "<|padding|>", "<|pad|>")


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
    """Load the tokenizer of a model, whose vocabulary has so many rows.

    It may have more rows than tokens: Qwen's has some hundred that stand for no token.

    Raises:
        UserError: as `load_tokenizer`, or the tokenizer has an id that the model does not know.
    """
    tokenizer = open_tokenizer(read_files(folder, rows), str(folder))
    if (size := vocab_size(tokenizer)) > rows:
        remedy = "give the tokenizer that the model was trained with"
        raise UserError(f"the tokenizer {folder} has {size} entries, the model {rows}; {remedy}")
    return tokenizer


def open_tokenizer(files: Mapping[str, bytes], source: str) -> Tokenizer:
    """Open a tokenizer from the content of its files by canonical name; see `read_files`.

    Raises:
        UserError: files are missing or damaged.
    """
    tokenizer = _open(files, source)
    tokenizer.source = source  # type: ignore[attr-defined] # for messages; the library's objects take attributes
    return tokenizer


def _open(files: Mapping[str, bytes], source: str) -> Tokenizer:
    if TOKENIZER in files:
        place = source if source.endswith(".json") else f"{source}/{TOKENIZER}"  # a file that the user names
        return parse_tokenizer(text_of(files, TOKENIZER, source), place)
    if VOCAB in files or MERGES in files:
        for name in (VOCAB, MERGES):
            if name not in files:
                raise UserError(f"cannot read {source}/{name}: No such file; a tokenizer folder has {KINDS}")
        try:
            return build_tokenizer(*parse_tables(text_of(files, VOCAB, source), text_of(files, MERGES, source)))
        except ValueError as error:
            raise UserError(f"{source} has no GPT-2 tokenizer: {error}") from error
    if MODEL in files:
        place = f"{source}/{MODEL}"
        return SentencePieceTokenizer(files[MODEL], place, adds_bos(files), added_of(files), spaces_each(files))
    if VOCAB_TXT in files:
        try:
            return _ordinary(wordpiece_of(files, source))
        except ValueError as error:
            raise UserError(f"{source} has no WordPiece tokenizer: {error}") from error
    raise UserError(f"{source} has no tokenizer; its folder has {KINDS}")


def parse_tokenizer(text: str, source: str) -> tokenizers.Tokenizer:
    """Parse the text of a `tokenizer.json`.

    Raises:
        UserError: the text is not a tokenizer with a token that ends a text.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except BaseException as error:  # the library raises bare Exception for a bad file, or panics
        if not is_failure(error):
            raise
        raise UserError(f"{source} is not a tokenizer: {error}; make the folder again") from error
    if all(tokenizer.token_to_id(token) is None for token in END_TOKENS):
        raise UserError(
            f"{source} has no {END_OF_TEXT} or other token that ends a text ({', '.join(END_TOKENS[1:])}); add one"
        )
    _check_template(tokenizer, source)
    # A stored limit would cut documents, padding lengthen them, and a dropout of merges draw other ids each time.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    return _ordinary(tokenizer)


def _check_template(tokenizer: tokenizers.Tokenizer, source: str) -> None:
    """Check that the template puts known tokens before a text, which `tokenizers` does not.

    Raises:
        UserError: it names a token that it does not describe, or an id beyond the vocabulary.
    """
    if (processor := tokenizer.post_processor) is None:
        return
    try:
        ids = ids_before_text(json.loads(processor.__getstate__()))
    except KeyError as error:
        raise UserError(f"{source}: the post_processor does not describe its token {error}; copy it again") from error
    rows = vocab_size(tokenizer)
    if unknown := [number for number in ids if number >= rows]:
        stated = f"the post_processor has the id {unknown[0]}, but there are {rows} tokens"
        raise UserError(f"{source}: {stated}; copy the file again")


def canonical_files(files: Mapping[str, bytes], source: str) -> dict[str, bytes]:
    """Return the files that go along with tokens and models, so that the same tokenizer is opened from them.

    GPT-2's kind is written as its three files, WordPiece as `tokenizer.json`; any other file is copied.

    Raises:
        UserError: files are missing or damaged.
    """
    if not has_prefix(files) and (tables := tables_of(files, source)):
        return tokenizer_files(*tables)
    tokenizer = open_tokenizer(files, source)
    if TOKENIZER in files:
        return {TOKENIZER: files[TOKENIZER]}
    if isinstance(tokenizer, SentencePieceTokenizer):
        return {MODEL: tokenizer.model, **_settings_of(tokenizer)}
    assert isinstance(tokenizer, tokenizers.Tokenizer)
    return {TOKENIZER: tokenizer.to_str(pretty=False).encode()}


def _settings_of(tokenizer: SentencePieceTokenizer) -> dict[str, bytes]:
    """Return the configuration without which a SentencePiece model is another tokenizer; none for a model alone."""
    config: dict[str, object] = {"add_bos_token": True} if tokenizer.prefix else {}
    if tokenizer.added:
        config |= {LEGACY: tokenizer.spaces_each, **stated_added(tokenizer.added)}
    return {CONFIG: json.dumps(config).encode()} if config else {}


def copy_tokenizer(source: str | PathLike[str], folder: Path, rows: int | None = None) -> None:
    """Write the tokenizer of `source`, for a model with so many rows, into an existing folder."""
    for name, content in canonical_files(read_files(source, rows), str(source)).items():
        if name != CONFIG or not (folder / name).exists():  # a model folder has its own, which says the same
            (folder / name).write_bytes(content)


def tokenizer_hash(path: str | PathLike[str], rows: int | None = None) -> str:
    """Hash (128 bits, hex) of everything that the ids depend on: of GPT-2's kind, in whatever file format it is.

    With `rows`, that of the tokenizer for a model with so many.
    """
    files = canonical_files(read_files(path, rows), str(path))
    if tables := tables_of(files, str(path)):
        vocab, merges = tables
        ordered = sorted(vocab.items(), key=lambda item: item[1])
        content = json.dumps([ordered, merges], separators=(",", ":")).encode()
    elif TOKENIZER in files:
        plain = json.loads(files[TOKENIZER])
        parts = [plain.get(key) for key in ("added_tokens", "normalizer", "pre_tokenizer", "model")]
        content = json.dumps(parts, separators=(",", ":")).encode()
    else:
        added = added_of(files)
        stated = json.dumps([[token.id, token.stated()] for token in added] + [spaces_each(files)]) if added else ""
        content = files[MODEL] + stated.encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def vocab_size(tokenizer: Tokenizer) -> int:
    """Number of ids from 0 to the largest one; ids without a token count, since a model needs a row for each."""
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return tokenizer.get_vocab_size()


def known_ids(tokenizer: Tokenizer) -> Collection[int]:
    """Return the ids that have a token."""
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return tokenizer.get_vocab(with_added_tokens=True).values()
    return range(tokenizer.get_vocab_size())


def kind_of(tokenizer: Tokenizer) -> str:
    """Kind of a tokenizer in the field's terms, such as "byte-level BPE"."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return f"SentencePiece {'BPE' if tokenizer.by_merges else 'unigram'}"
    assert isinstance(tokenizer, tokenizers.Tokenizer)
    plain = json.loads(tokenizer.to_str())
    name = str(plain["model"]["type"])
    if name != "BPE":
        return {"Unigram": "unigram", "WordLevel": "whole words"}.get(name, name)
    of_bytes = '"ByteLevel"' in json.dumps([plain["pre_tokenizer"], plain["decoder"]])
    return "byte-level BPE" if of_bytes else "BPE"


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


def encode_ordinary(tokenizer: Tokenizer, texts: Sequence[str], named: bool = False) -> list[list[int]]:
    """Encode texts; `<|endoftext|>` inside a text is ordinary text, or with `named` as the tokenizer's setting is.

    Raises:
        UserError: a text contains a lone surrogate, which UTF-8 cannot represent, or the tokenizer fails: for example a
            pattern of its `tokenizer.json` backtracks without end.
    """
    try:
        if isinstance(tokenizer, SentencePieceTokenizer):
            return tokenizer.encode(texts)
        assert isinstance(tokenizer, tokenizers.Tokenizer)
        chosen = tokenizer if named else _ordinary(tokenizer)
        encoded = chosen.encode_batch_fast(list(texts), add_special_tokens=False)
    except TypeError as error:
        raise UserError("a text contains a lone surrogate, which UTF-8 cannot encode; replace it first") from error
    except BaseException as error:
        # The library raises bare Exception for a vocabulary without the unknown token, and panics where a regular
        # expression reaches the limit of its library.
        if not is_failure(error):
            raise
        shown = f"the tokenizer {getattr(tokenizer, 'source', '')}".rstrip()
        raise UserError(f"{shown} cannot encode a text: {error}; give another tokenizer") from error
    ids = [encoding.ids for encoding in encoded]
    # Merges never give a special token; the other models look up whole words.
    by_merges = isinstance(tokenizer.model, models.BPE) and not tokenizer.model.ignore_merges
    return ids if named or by_merges else _spell_out(tokenizer, ids)


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Id that stands for characters without a token; None if there is none, as in byte-level BPE."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.token_to_id(tokenizer.unknown)
    assert isinstance(tokenizer, tokenizers.Tokenizer)
    model = json.loads(tokenizer.to_str())["model"]
    found: int | None = model["unk_id"] if "unk_id" in model else tokenizer.token_to_id(model.get("unk_token") or "")
    return found


def _spell_out(tokenizer: tokenizers.Tokenizer, encoded: list[list[int]]) -> list[list[int]]:
    """Replace special tokens by their letters: a model of whole words or pieces finds `</s>` in a text by itself."""
    special = {
        number: token.content
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and token.content not in UNKNOWN_TOKENS
    }
    if all(special.keys().isdisjoint(ids) for ids in encoded):
        return encoded

    unknown = unknown_id(tokenizer)

    def letters(token: str) -> list[int]:
        found = [tokenizer.token_to_id(letter) for letter in token]
        return [number for number in (unknown if one is None else one for one in found) if number is not None]

    return [[one for number in ids for one in (letters(special[number]) if number in special else [number])]
            for ids in encoded]  # fmt: skip


def _ordinary(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    # The flag is not stored in tokenizer.json, so each load sets it.
    tokenizer.encode_special_tokens = True
    return tokenizer
