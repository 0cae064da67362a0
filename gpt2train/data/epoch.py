"""One pass over the documents of a corpus: the stream of its tokens, cut into samples, in a shuffled order.

Documents follow one another in a shuffled order and the stream is cut every `context` tokens. A sample is `context`
inputs and the token after them, so that neighbours share one token and samples cross documents. The samples are then
shuffled too. Everything is a function of the documents' lengths, the seed and the number of the epoch, built by a few
sorts and sums over whole arrays.
"""

from dataclasses import dataclass

import numpy as np


def permutation(count: int, *key: int) -> np.ndarray:
    """A permutation of 0 … count-1 that depends on the key alone.

    By sorting raw Philox draws: numpy promises those to stay the same between versions, and promises nothing of the
    kind for `Generator.permutation`. Equal draws (1 in 10^7 runs at a million) are told apart by their place.
    """
    draws = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    order = np.argsort(draws)  # five times as fast as the stable sort, and the same where no two draws are equal
    return np.argsort(draws, kind="stable") if _has_equal(draws[order]) else order


def samples_in(tokens: int, context: int) -> int:
    """Samples that a stream of tokens yields: each needs `context` tokens and one more to predict."""
    return max(0, (tokens - 1) // context)


@dataclass(frozen=True)
class Epoch:
    """Where each token of an epoch lies in the corpus. 16 bytes a document and 4 a sample.

    Attributes:
        context: inputs of a sample.
        ends: int64 [documents] where each document ends in the stream; documents without a token are left out.
        shift: int64 [documents] what turns a place in the stream into a place in the corpus.
        order: uint32 (int64 beyond 2^32 samples) [samples] the samples in the order in which they are used.
    """

    context: int
    ends: np.ndarray
    shift: np.ndarray
    order: np.ndarray

    @staticmethod
    def build(bounds: np.ndarray, context: int, seed: int | None, number: int) -> "Epoch":
        """The epoch `number` of a corpus.

        Args:
            bounds: int64 [documents + 1] where the documents begin in the corpus, and its end.
            context: inputs of a sample.
            seed: of the shuffles; None keeps documents and samples in the order of the corpus.
            number: of the epoch, from 0.
        """
        documents = len(bounds) - 1
        starts, lengths = bounds[:-1], np.diff(bounds)
        if seed is not None:
            shuffled = permutation(documents, seed, number, 0)
            starts, lengths = starts[shuffled], lengths[shuffled]
        if not lengths.all():
            starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        ends = np.cumsum(lengths)
        # A document takes the places ends - length … ends of the stream.
        shift = starts - ends + lengths
        count = samples_in(int(ends[-1]) if len(ends) else 0, context)
        order = np.arange(count) if seed is None else permutation(count, seed, number, 1)
        return Epoch(context, ends, shift, order.astype(np.uint32 if count < 2**32 else np.int64))

    def locate(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of some samples: their places in the corpus, and the numbers of their documents in the stream.

        Returns:
            Two int64 arrays [len(slots), context + 1].
        """
        stream = self._first(slots)[:, None] + np.arange(self.context + 1)
        documents = np.searchsorted(self.ends, stream, side="right")
        return stream + self.shift[documents], documents

    def document_ends(self, slots: np.ndarray) -> int:
        """How many inputs of these samples are the last token of a document."""
        first = self._first(slots)
        # The document that ends at e has its last token at e - 1: first <= e - 1 < first + context.
        low, high = (np.searchsorted(self.ends, place, side="right") for place in (first, first + self.context))
        return int((high - low).sum())

    def _first(self, slots: np.ndarray) -> np.ndarray:
        """Where samples begin in the stream."""
        return self.order[slots].astype(np.int64) * self.context


def _has_equal(draws: np.ndarray) -> bool:
    return bool((draws[1:] == draws[:-1]).any())
