"""Training of a SentencePiece model on a corpus."""

import io
from collections.abc import Iterator
from typing import Literal

from gpt2train.data.sentencepiece_model import EXTRA
from gpt2train.errors import UserError
from gpt2train.extras import needs_extra

MAX_SENTENCE = 1024  # characters; the trainer skips longer sentences than `max_sentence_length` bytes
Algorithm = Literal["sentencepiece_unigram", "sentencepiece_bpe"]


def train_sentencepiece(texts: Iterator[str], vocab_size: int, algorithm: Algorithm) -> bytes:
    """Train a model that keeps every text: no normalisation, and bytes for characters outside the vocabulary.

    It depends on the texts alone: nothing is drawn at random, and one thread adds up.

    Args:
        texts: training texts.
        vocab_size: pieces, including 256 bytes, `<unk>`, `<s>` and `</s>`; a unigram model may have fewer.
        algorithm: unigram or BPE.

    Raises:
        UserError: sentencepiece is not installed, or the texts do not allow a model of this size.
    """
    try:
        import sentencepiece  # an extra
    except ImportError as error:
        raise needs_extra(f"tokenizer.algorithm = {algorithm!r}", EXTRA) from error
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences(texts),
            model_writer=model,
            model_type=algorithm.removeprefix("sentencepiece_"),
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=8 * MAX_SENTENCE,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).rpartition("] ")[2].strip() or "too few texts"
        raise UserError(
            f"sentencepiece cannot train {vocab_size:,} pieces on these documents: {reason}; set another "
            "tokenizer.vocab_size, or give more documents"
        ) from error
    return model.getvalue()


def sentences(texts: Iterator[str]) -> Iterator[str]:
    """Lines of the texts, without NUL, long ones in pieces."""
    for text in texts:
        for line in text.replace("\0", "").split("\n"):
            yield from (line[start : start + MAX_SENTENCE] for start in range(0, len(line), MAX_SENTENCE))
