"""Bytes of single tokens, which added up are the text: for streaming, and for the names of tokens."""

from functools import cache

import numpy as np
import tokenizers
from tokenizers import decoders

from gpt2train.data.sentencepiece_model import SPACE, SentencePieceTokenizer
from gpt2train.data.tokenizer import Tokenizer

BYTE_TOKEN = 6  # characters of `<0xE4>`, a byte in vocabularies with byte fallback


@cache
def _byte_of() -> dict[str, int]:
    """Map each letter of GPT-2's vocabulary to its byte: printable bytes are themselves, the others start at 256."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token, possibly part of a character; empty for an id that the tokenizer does not know.

    A token that begins a word has a space before it, also at the beginning of a text, where `decode` leaves it out.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.token_bytes(token)
    letters = tokenizer.id_to_token(token)
    if letters is None:
        return b""
    decoder = tokenizer.decoder if isinstance(tokenizer, tokenizers.Tokenizer) else None
    if decoder is None or "ByteLevel" in repr(decoder):
        table = _byte_of()
        try:
            return bytes([table[letter] for letter in letters])
        except KeyError:  # an added token with letters outside the byte alphabet
            return bytes(letters, "utf-8")
    if isinstance(decoder, decoders.WordPiece):
        return bytes(letters[2:] if letters.startswith("##") else f" {letters}", "utf-8")
    if len(letters) == BYTE_TOKEN and letters.startswith("<0x") and letters.endswith(">"):
        return bytes.fromhex(letters[3:5])
    if isinstance(decoder, decoders.BPEDecoder):
        return bytes(letters.replace("</w>", " "), "utf-8")
    return bytes(letters.replace(SPACE, " "), "utf-8")


def byte_counts(tokenizer: Tokenizer, vocab: int) -> np.ndarray:
    """Bytes of text of each token: int64 [vocab]; 0 for special tokens, such as the end of a document."""
    counts = np.array([len(token_bytes(tokenizer, token)) for token in range(vocab)], dtype=np.int64)
    if isinstance(tokenizer, tokenizers.Tokenizer):
        added = tokenizer.get_added_tokens_decoder().items()
        counts[[number for number, token in added if token.special and number < vocab]] = 0
    return counts


def longest_token(tokenizer: Tokenizer) -> int | None:
    """Return the bytes of the longest token that text can encode to; None if encoding may drop parts of a text."""
    if not isinstance(tokenizer, tokenizers.Tokenizer) or tokenizer.normalizer is not None:
        return None
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    if not _byte_of().keys() <= vocab.keys():
        return None
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    return max(len(token_bytes(tokenizer, number)) for name, number in vocab.items() if name not in special)
