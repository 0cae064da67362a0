"""Token counts of texts, by the tokenizer if it is known, else by the pieces of GPT-2's pre-tokenizer.

A piece is at least one token, so the number of pieces is a lower bound for GPT-2's tokenizer. A letter of a script
without spaces between words (Chinese, Thai) counts as a piece: their pieces are whole sentences. The end-of-text token
is not counted.
"""

import contextlib
import re
from collections.abc import Sequence

from tokenizers import pre_tokenizers

from gpt2train.data.encoder import Texts, disagreement
from gpt2train.data.text_units import UNSPACED, has_unspaced
from tasks.core.tokenizer_file import TokenizerFile, encoder_of

PRE_TOKENIZER = pre_tokenizers.ByteLevel(add_prefix_space=False)
# GPT-2's pattern (Radford et al. 2019) for ASCII texts: 25 µs per review, the library takes 300.
ASCII_PIECE = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?(?:[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]+)|\s+(?!\S)|\s+", re.ASCII)

SAMPLE_TEXTS = 8  # texts of a part that both libraries encode
SAMPLE_CHARACTERS = 4_000  # of each of these texts
MIN_FAST = 10**6  # characters; fewer take `tokenizers` less time than gigatoken, which loads for 0.3 s


def count_tokens(texts: Sequence[str], tokenizer: TokenizerFile | None = None) -> list[int]:
    """Number of tokens of each text; without a tokenizer, of the pieces of GPT-2's pre-tokenizer.

    Many texts are encoded by gigatoken, thirty times as fast as `tokenizers`, if both agree on a sample of them.
    """
    if tokenizer is None:
        return [count_pieces(text) for text in texts]
    encoder = plain = encoder_of(tokenizer, "tokenizers")
    if len(texts) > 2 * SAMPLE_TEXTS and sum(map(len, texts)) >= MIN_FAST:
        with contextlib.suppress(ImportError, ValueError):  # not installed, or it does not support this tokenizer
            fast = encoder_of(tokenizer, "gigatoken")
            sample = Texts.of([text[:SAMPLE_CHARACTERS] for text in texts[:: len(texts) // SAMPLE_TEXTS]])
            encoder = plain if disagreement(fast, plain, sample) else fast
    return encoder(Texts.of(list(texts))).lengths.tolist()


def count_pieces(text: str) -> int:
    """Number of pieces of a text by GPT-2's pre-tokenizer, and of its letters of scripts without spaces."""
    if text.isascii():
        return len(ASCII_PIECE.findall(text))
    rest, letters = UNSPACED.subn("", text) if has_unspaced(text) else (text, 0)
    return letters + len(PRE_TOKENIZER.pre_tokenize_str(rest))
