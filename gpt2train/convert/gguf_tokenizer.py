"""Tokenizers in the form of llama.cpp's GGUF files; `gguf` is not imported.

Three kinds of llama.cpp, `tokenizer.ggml.model`, are written:

| value | algorithm |
|---|---|
| `gpt2` | byte-level BPE, after a split by a pattern that `tokenizer.ggml.pre` names |
| `llama` | BPE of SentencePiece |
| `t5` | unigram of SentencePiece |

The patterns themselves are compiled into llama.cpp, so that a tokenizer with another one than `SPLITS` is refused.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tokenizers

from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.hf_sentencepiece import BPE, BYTE, UNIGRAM, Model, Piece, parse_model
from gpt2train.data.chat import open_chat
from gpt2train.data.sentencepiece_model import SentencePieceTokenizer
from gpt2train.data.sentinels import sentinel_names
from gpt2train.data.template import prefix_ids, start_ids
from gpt2train.data.tokenizer import Tokenizer, end_of_text_id, load_model_tokenizer, padding_id
from gpt2train.errors import UserError
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape

Value = str | bool | int | list[str] | list[int] | list[float] | bytes

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # `tokenizer.ggml.token_type`, with SentencePiece's numbers
START = "decoder_start_token_id"
UNUSED_SCORE = -10_000.0  # of rows without a token, which the unigram finds in a text by their names
UNKNOWN_PENALTY = 10.0  # of a character without a piece, below the lowest score: kUnkPenalty of SentencePiece
# Pattern of a pre-tokenizer -> llama.cpp's name of it, and if its model then looks up whole words before it merges.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    GPT2: ("gpt-2", False),
    WORDS + r"\p{N}{1,3}" + REST: ("llama-bpe", True),  # Llama 3
    WORDS + r"\p{N}" + REST: ("qwen2", False),  # Qwen2 and Qwen3
}
# Each digit alone, and the rest by GPT-2's pattern: two steps, which no one pattern is. The name is no valid pattern.
DIGITS = "*digits"
SPLITS = PATTERNS | {DIGITS: ("smollm", False)}  # SmolLM and SmolLM2


@dataclass(frozen=True)
class GGUFTokenizer:
    """Tokenizer in llama.cpp's form."""

    metadata: dict[str, Value]  # keys with their values
    notes: tuple[str, ...] = ()  # for the user, where llama.cpp encodes otherwise


def gguf_tokenizer(folder: Path, shape: Shape) -> GGUFTokenizer:
    """Return the tokenizer of a folder in llama.cpp's form, with an entry for each row of the model's vocabulary.

    Raises:
        UserError: llama.cpp has no tokenizer of this kind, or it does not fit the model.
    """
    tokenizer = load_model_tokenizer(folder, shape.vocab)
    if isinstance(tokenizer, SentencePieceTokenizer):
        kind, notes = _sentencepiece(parse_model(tokenizer.model), folder, shape.vocab)
        tokens = cast("list[str]", kind["tokenizer.ggml.tokens"])
        own_types = cast("list[int]", kind["tokenizer.ggml.token_type"])
        for number, added in tokenizer.added.items():
            tokens[number], own_types[number] = added.content, CONTROL if added.special else USER_DEFINED
    else:
        assert isinstance(tokenizer, tokenizers.Tokenizer)
        kind, notes = _byte_level(json.loads(tokenizer.to_str()), folder, shape.vocab)
    if _has_encoder(shape):  # whose texts have sentinels by name
        types = cast("list[int]", kind["tokenizer.ggml.token_type"])
        sentinels = {tokenizer.token_to_id(name) for name in sentinel_names(tokenizer)}
        kind["tokenizer.ggml.token_type"] = [USER_DEFINED if n in sentinels else one for n, one in enumerate(types)]
    return GGUFTokenizer({**kind, **_special(tokenizer, shape), **_chat(folder, tokenizer)}, notes)


def _has_encoder(shape: Shape) -> bool:
    return len(MODELS[shape.family].lengths(shape)) > 1


def _special(tokenizer: Tokenizer, shape: Shape) -> dict[str, Value]:
    """Special tokens, and those that are put around a text: after it only for an encoder (`</s>` of T5)."""
    tokens = layout_of(shape.family).token_fields(shape, tokenizer)
    return {
        "tokenizer.ggml.bos_token_id": start_ids(tokenizer)[0],
        "tokenizer.ggml.eos_token_id": end_of_text_id(tokenizer),
        "tokenizer.ggml.padding_token_id": padding_id(tokenizer),
        "tokenizer.ggml.add_bos_token": bool(prefix_ids(tokenizer)),
        "tokenizer.ggml.add_eos_token": _has_encoder(shape),
        **({"t5.decoder_start_token_id": tokens[START]} if START in tokens else {}),
    }


def _byte_level(plain: dict[str, Any], folder: Path, rows: int) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Byte-level BPE of a `tokenizer.json`."""
    model, notes = plain["model"], []
    name, whole_words = SPLITS.get(pattern_of(plain["pre_tokenizer"]) or "", ("", False))
    if model["type"] != "BPE" or not name:
        raise UserError(
            f"the tokenizer {folder} is of a kind that llama.cpp does not have; it has SentencePiece, and byte-level "
            f"BPE with the patterns of {', '.join(known for known, _ in SPLITS.values())}"
        )
    for option, expected in {
        "ignore_merges": whole_words,
        "byte_fallback": False,
        "dropout": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }.items():
        if (model.get(option) or None) != (expected or None):
            raise UserError(f"the tokenizer {folder} sets {option} = {model[option]!r}, which llama.cpp cannot follow")
    if plain["normalizer"]:
        kind = plain["normalizer"].get("type")
        notes.append(f"llama.cpp does not normalise texts ({kind}); texts that are not normal get other tokens there")
    tokens, types = [""] * rows, [UNUSED] * rows
    for token, number in model["vocab"].items():
        tokens[number], types[number] = token, NORMAL
    for added in plain["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": _named(tokens),
        "tokenizer.ggml.token_type": types,
        **({"tokenizer.ggml.merges": merges} if merges else {}),
    }, tuple(notes)


def pattern_of(pre: dict[str, Any] | None) -> str | None:
    """Pattern by which a pre-tokenizer splits a text before it is spelt in bytes, or DIGITS; None for another kind."""
    pre = pre or {}
    steps = pre.get("pretokenizers", ()) if pre.get("type") == "Sequence" else (pre,)
    *before, last = steps if steps else ({},)
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not before:
        return GPT2 if last.get("use_regex", True) else None
    if before == [{"type": "Digits", "individual_digits": True}]:
        return DIGITS if last.get("use_regex", True) else None
    split = before[0]
    isolated = split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
    if len(before) > 1 or not isolated or last.get("use_regex", True):
        return None
    found = split["pattern"].get("Regex")
    return found if isinstance(found, str) else None


def _sentencepiece(model: Model, folder: Path, rows: int) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Model of SentencePiece."""
    if model.other or model.kind not in (BPE, UNIGRAM):
        raise UserError(f"{folder} has a SentencePiece model of words or letters, or with spaces after the words; "
                        "llama.cpp has none such")  # fmt: skip
    has_bytes, notes = any(piece.type == BYTE for piece in model.pieces), []
    if model.kind == BPE and not has_bytes:
        raise UserError(f"{folder} has a SentencePiece model of BPE without bytes; llama.cpp fails on a character that "
                        "it does not have")  # fmt: skip
    if model.kind == BPE and (model.table or model.trims_spaces):
        notes.append("llama.cpp does not normalise texts for this tokenizer; double spaces and the like get other "
                     "tokens there")  # fmt: skip
    pieces = model.pieces
    if model.kind == UNIGRAM and has_bytes:
        pieces = _spell_ascii(pieces)
        notes.append("llama.cpp's unigram has no bytes: a character beyond ASCII that is not in the vocabulary becomes "
                     f"{pieces[model.unknown].text} there")  # fmt: skip
    tokens, types, scores = [""] * rows, [UNUSED] * rows, [UNUSED_SCORE] * rows
    for number, piece in enumerate(pieces):
        tokens[number], types[number], scores[number] = piece.text, piece.type, piece.score
    return {
        "tokenizer.ggml.model": "llama" if model.kind == BPE else "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": _named(tokens),
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": model.unknown,
        "tokenizer.ggml.add_space_prefix": model.adds_space,
        "tokenizer.ggml.remove_extra_whitespaces": model.trims_spaces,
        **({"tokenizer.ggml.precompiled_charsmap": model.table} if model.table and model.kind == UNIGRAM else {}),
    }, tuple(notes)


def _spell_ascii(pieces: list[Piece]) -> list[Piece]:
    """Write the bytes of ASCII as ordinary pieces, with SentencePiece's score of an unknown character.

    llama.cpp's unigram never gives a byte. A line feed, which is in no vocabulary trained by lines, would be `<unk>`.
    """
    taken = {piece.text for piece in pieces} | {"\0", " "}  # a space is always written as U+2581
    lowest = min(piece.score for piece in pieces if piece.type == NORMAL) - UNKNOWN_PENALTY
    bytes_of = {f"<0x{code:02X}>": chr(code) for code in range(128) if chr(code) not in taken}
    return [
        Piece(bytes_of[piece.text], lowest, NORMAL) if piece.type == BYTE and piece.text in bytes_of else piece
        for piece in pieces
    ]


def _named(tokens: list[str]) -> list[str]:
    """Name the rows without a token: llama.cpp needs names, no two of them equal."""
    taken = set(tokens)
    for number in (number for number, token in enumerate(tokens) if not token):
        name = f"[PAD{number}]"
        while name in taken:
            name += "_"
        tokens[number] = name
    return tokens


def _chat(folder: Path, tokenizer: Tokenizer) -> dict[str, Value]:
    """Chat template of a model folder, and the token that ends an answer if it is not the one that ends a text."""
    chat = open_chat(folder, tokenizer)
    if chat is None:
        return {}
    with chat:
        ends = {} if chat.end in (None, end_of_text_id(tokenizer)) else {"tokenizer.ggml.eot_token_id": chat.end}
    return {"tokenizer.chat_template": chat.template.text, **ends}
