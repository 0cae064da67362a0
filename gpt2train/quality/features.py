"""Hashed n-grams of a text, the features of the quality model.

Single words and pairs of neighbours, in lower case; a sign of punctuation and a line end are words too, so that menus,
tables and lists differ from prose. In scripts without spaces between words each letter is a word.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np

from gpt2train.data.text_units import UNSPACED, spaced_word

BUCKETS = 2**17
MAX_CHARACTERS = 20_000  # read of a text: its first half and its last half
QUOTES = str.maketrans("‘’“”", "''\"\"")  # the cleaning replaces them in the texts that it keeps


@functools.cache
def _unit() -> re.Pattern[str]:
    return re.compile(rf"{spaced_word()}|[^\w\s]|\n|{UNSPACED.pattern}")


class Features(NamedTuple):
    """Sparse vector of length 1 (in the Euclidean norm), or of no entries."""

    buckets: np.ndarray  # int64 [entries], ascending
    values: np.ndarray  # float64 [entries]


def features_of(text: str) -> Features:
    """Logarithms of the counts of hashed n-grams, scaled to length 1."""
    if len(text) > MAX_CHARACTERS:
        text = text[: MAX_CHARACTERS // 2] + text[-MAX_CHARACTERS // 2 :]
    text = text.lower().translate(QUOTES)
    words = _unit().findall(text)
    counts = Counter(words)
    counts.update(f"{first} {second}" for first, second in pairwise(words))
    hashed = [crc32(gram.encode(errors="replace")) % BUCKETS for gram in counts]
    buckets, inverse = np.unique(np.array(hashed, np.int64), return_inverse=True)
    values = np.log1p(np.bincount(inverse, list(counts.values()), len(buckets)))
    return Features(buckets, values / max(float(np.sqrt(values @ values)), 1e-12))


def gram_matrix(features: Sequence[Features]) -> np.ndarray:
    """Inner products of all pairs of vectors, float64 [texts, texts]."""
    buckets = np.concatenate([one.buckets for one in features])
    values = np.concatenate([one.values for one in features])
    rows = np.repeat(np.arange(len(features)), [len(one.buckets) for one in features])
    matrix = np.empty((len(features), len(features)))
    dense = np.zeros(BUCKETS)
    for number, one in enumerate(features):
        dense[one.buckets] = one.values
        matrix[number] = np.bincount(rows, dense[buckets] * values, len(features))
        dense[one.buckets] = 0
    return matrix
