"""Encoding of a block of documents to tokens, in a worker process or not."""

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt2train.data.documents import END_OF_TEXT, Rejected, Row, read_text, rejected
from gpt2train.data.encoder import Encoded, Encoder, FastEncoder, PlainEncoder, Texts, disagreement, with_end
from gpt2train.data.template import prefix_ids
from gpt2train.data.tokenize_options import TokenizeOptions
from gpt2train.data.tokenizer import end_of_text_id, open_tokenizer
from gpt2train.store.process import die_after_parent

SAMPLE_TEXTS, SAMPLE_CHARACTERS = 8, 2000  # of each block, encoded by both engines


class EncodedBlock(NamedTuple):
    """Tokens of the documents of a block."""

    ids: np.ndarray  # [tokens], of the dtype of the token file
    lengths: np.ndarray  # int32 [documents]
    rejected: list[Rejected]
    notes: dict[str, int]
    """Documents of `blank` texts, white space alone; after separators, and of files that contain `END_OF_TEXT`."""


class BlockEncoder:
    """Encoder of blocks; what it returns depends on the block alone.

    Args:
        files: files of the tokenizer.
        options: options of the command; the tokenizer's name is for error messages.
        dtype: dtype of the token file.
    """

    def __init__(self, files: Mapping[str, bytes], options: TokenizeOptions, dtype: str) -> None:
        tokenizer = open_tokenizer(files, options.tokenizer)
        self._key, self._dtype = options.json_key, np.dtype(dtype)
        self._end = end_of_text_id(tokenizer) if options.append_eod else None
        self._prefix = prefix_ids(tokenizer) if options.prepend_bos else []
        self._tokenizer = tokenizer
        self._plain: Encoder = PlainEncoder(tokenizer)

    def __call__(self, rows: Sequence[Row]) -> EncodedBlock:
        """Encode the documents; those without text or tokens are rejected."""
        texts: list[str] = []
        origins: list[Row] = []
        dropped: list[Rejected] = []
        notes = Counter[str]()
        for row in rows:
            found = read_text(row, self._key)
            if isinstance(found, Rejected):
                dropped.append(found)
            else:
                texts.append(found)
                origins.append(row)
                notes["blank"] += found.isspace()
                notes["separated"] += row.kind == "text" and row.number > 1
                notes["end_of_text"] += row.kind == "text" and END_OF_TEXT in found
        encoded = self._encoder(texts)(Texts.of(texts))
        for index in np.flatnonzero(encoded.lengths == 0).tolist():
            dropped.append(rejected(origins[index], "no_tokens", "the tokenizer gives no token for this text"))
        kept = Encoded(encoded.ids, encoded.lengths[encoded.lengths > 0])
        ids, lengths = with_end(kept, self._end, self._dtype, self._prefix)
        return EncodedBlock(ids, lengths.astype("<i4"), dropped, dict(+notes))

    @functools.cached_property
    def _fast(self) -> Encoder | None:
        with contextlib.suppress(ImportError, ValueError):  # not installed, or not for this tokenizer
            return FastEncoder(self._tokenizer)
        return None

    def _encoder(self, texts: list[str]) -> Encoder:
        """Fast engine if it agrees with the reference on a sample of these texts."""
        if len(texts) < 2 or self._fast is None:
            return self._plain
        sample = Texts.of([text[:SAMPLE_CHARACTERS] for text in texts[:: -(-len(texts) // SAMPLE_TEXTS)]])
        return self._plain if disagreement(self._fast, self._plain, sample) else self._fast


_encoder: BlockEncoder | None = None


def start_worker(*arguments: Any) -> None:
    """Prepare a worker process."""
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other workers use the other cores
    die_after_parent()
    _encoder = BlockEncoder(*arguments)


def encode_in_worker(rows: Sequence[Row]) -> EncodedBlock:
    """Encode a block by the encoder of this worker process."""
    assert _encoder is not None
    return _encoder(rows)
