"""Token counts of texts, by the tokenizer if it is known, else by the pieces of GPT-2's pre-tokenizer.

A piece is at least one token, so the number of pieces is a lower bound for GPT-2's tokenizer. A letter of a script
without spaces between words (Chinese, Thai) counts as a piece: their pieces are whole sentences. The end-of-text token
is not counted.
"""

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import pre_tokenizers

from gpt2train.data.encoder import Encoder, FastEncoder, PlainEncoder, Texts, disagreement
from gpt2train.data.text_units import UNSPACED, has_unspaced
from gpt2train.data.tokenizer import Tokenizer
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.core.tokenizer_file import read_tokenizer, tokenizer_record

PRE_TOKENIZER = pre_tokenizers.ByteLevel(add_prefix_space=False)
# GPT-2's pattern (Radford et al. 2019) for ASCII texts: 25 µs per review, the library takes 300.
ASCII_PIECE = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?(?:[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]+)|\s+(?!\S)|\s+", re.ASCII)

SAMPLE_TEXTS = 8  # texts of a part that both libraries encode
SAMPLE_CHARACTERS = 4_000  # of each of these texts
MIN_FAST = 10**6  # characters; fewer take `tokenizers` less time than gigatoken, which loads for 0.3 s


class TokenizerFile(NamedTuple):
    """Location of the tokenizer; by the hash, workers do not reuse the tokenizer of an earlier run."""

    folder: Folder
    name: str
    sha256: str


def tokenizer_file(root: Folder, tokenizer: Manifest | None) -> TokenizerFile | None:
    """Location of the tokenizer of a manifest, for `count_tokens`; None without a manifest."""
    if tokenizer is None:
        return None
    record = tokenizer_record(tokenizer)
    return TokenizerFile(root / tokenizer.folder, record.name, record.sha256)


def count_tokens(texts: Sequence[str], tokenizer: TokenizerFile | None = None) -> list[int]:
    """Number of tokens of each text; without a tokenizer, of the pieces of GPT-2's pre-tokenizer.

    Many texts are encoded by gigatoken, thirty times as fast as `tokenizers`, if both agree on a sample of them.
    """
    if tokenizer is None:
        return [count_pieces(text) for text in texts]
    reference = (tokenizer.folder.url, tokenizer.name, tokenizer.sha256)
    plain = _plain_encoder(*reference)
    encoder: Encoder = plain
    is_much = len(texts) > 2 * SAMPLE_TEXTS and sum(map(len, texts)) >= MIN_FAST
    if is_much and (fast := _fast_encoder(*reference)) is not None:
        sample = Texts.of([text[:SAMPLE_CHARACTERS] for text in texts[:: len(texts) // SAMPLE_TEXTS]])
        encoder = plain if disagreement(fast, plain, sample) else fast
    return encoder(Texts.of(list(texts))).lengths.tolist()


def count_pieces(text: str) -> int:
    """Number of pieces of a text by GPT-2's pre-tokenizer, and of its letters of scripts without spaces."""
    if text.isascii():
        return len(ASCII_PIECE.findall(text))
    rest, letters = UNSPACED.subn("", text) if has_unspaced(text) else (text, 0)
    return letters + len(PRE_TOKENIZER.pre_tokenize_str(rest))


@functools.lru_cache(maxsize=1)
def _tokenizer(url: str, name: str, sha256: str) -> Tokenizer:
    """Tokenizer, cached across parts; the hash distinguishes files of the same URL."""
    return read_tokenizer(Folder(url), name)


@functools.lru_cache(maxsize=1)
def _plain_encoder(url: str, name: str, sha256: str) -> PlainEncoder:
    return PlainEncoder(_tokenizer(url, name, sha256))


@functools.lru_cache(maxsize=1)
def _fast_encoder(url: str, name: str, sha256: str) -> FastEncoder | None:
    try:
        return FastEncoder(_tokenizer(url, name, sha256))
    except (ImportError, ValueError):  # not installed, or it does not support this tokenizer
        return None
