"""One epoch of a corpus: its shuffled documents as a token stream, cut into samples in shuffled order.

The documents are concatenated in shuffled order, and the stream is cut every `context` tokens. A sample is `context`
inputs and the following token, so that neighbours share one token and samples cross documents. The samples are then
shuffled too. All of it is a function of the document lengths, the seed and the epoch number, computed by a few sorts
and sums over whole arrays.
"""

from dataclasses import dataclass

import numpy as np


def permutation(count: int, *key: int) -> np.ndarray:
    """Permutation of 0 … count-1 that depends only on the key.

    It sorts raw Philox draws, which numpy guarantees to be the same in all versions, unlike `Generator.permutation`.
    Equal draws (in 1 of 10^7 permutations of a million) are ordered by index.
    """
    draws = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    order = np.argsort(draws)  # five times as fast as a stable sort, and equal to it if all draws differ
    return np.argsort(draws, kind="stable") if _has_equal(draws[order]) else order


def samples_in(tokens: int, context: int) -> int:
    """Number of samples in a stream of tokens: each needs `context` tokens and one more to predict."""
    return max(0, (tokens - 1) // context)


@dataclass(frozen=True)
class Epoch:
    """Mapping from the samples of an epoch to tokens of the corpus. Takes 16 bytes per document and 4 per sample.

    Attributes:
        context: inputs per sample.
        ends: int64 [documents] end of each document in the stream; empty documents are left out.
        shift: int64 [documents] offset to add to a position in the stream to get the position in the corpus.
        order: uint32 (int64 from 2^32 samples on) [samples] samples in the order of use.
    """

    context: int
    ends: np.ndarray
    shift: np.ndarray
    order: np.ndarray

    @staticmethod
    def build(bounds: np.ndarray, context: int, seed: int | None, number: int) -> "Epoch":
        """Build one epoch of a corpus.

        Args:
            bounds: int64 [documents + 1] start of each document in the corpus, and the end of the last one.
            context: inputs per sample.
            seed: seed of the shuffles; None keeps documents and samples in the order of the corpus.
            number: number of the epoch, from 0.
        """
        documents = len(bounds) - 1
        starts, lengths = bounds[:-1], np.diff(bounds)
        if seed is not None:
            shuffled = permutation(documents, seed, number, 0)
            starts, lengths = starts[shuffled], lengths[shuffled]
        if not lengths.all():
            starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        ends = np.cumsum(lengths)
        # A document occupies the positions ends - length … ends of the stream.
        shift = starts - ends + lengths
        count = samples_in(int(ends[-1]) if len(ends) else 0, context)
        order = np.arange(count) if seed is None else permutation(count, seed, number, 1)
        return Epoch(context, ends, shift, order.astype(np.uint32 if count < 2**32 else np.int64))

    def locate(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Locate the tokens of some samples.

        Args:
            slots: indices of the samples in the epoch.

        Returns:
            Positions in the corpus and document numbers in the stream, two arrays int64 [len(slots), context + 1].
        """
        stream = self._first(slots)[:, None] + np.arange(self.context + 1)
        documents = np.searchsorted(self.ends, stream, side="right")
        return stream + self.shift[documents], documents

    def document_ends(self, slots: np.ndarray) -> int:
        """Count the inputs of these samples that are the last token of a document."""
        first = self._first(slots)
        # The document that ends at e has its last token at e - 1: first <= e - 1 < first + context.
        low, high = (np.searchsorted(self.ends, position, side="right") for position in (first, first + self.context))
        return int((high - low).sum())

    def _first(self, slots: np.ndarray) -> np.ndarray:
        """Start of each sample in the stream."""
        return self.order[slots].astype(np.int64) * self.context


def _has_equal(draws: np.ndarray) -> bool:
    return bool((draws[1:] == draws[:-1]).any())
