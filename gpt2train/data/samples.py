"""Packed training samples whose order is a pure function of one integer.

An epoch is the documents in a shuffled order, one after the other, cut every `context` tokens; a sample is `context`
inputs and the token after them, so that neighbours share one token and samples cross documents. The samples of an
epoch are then shuffled too. Sample `g` of a run is sample `g mod N` of epoch `g div N`: the loader has no state, and
going on after a restart is a matter of one number. Documents are shuffled anew each epoch, so the tail that does not
fill a sample is another one each time.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpt2train.data.stream import open_tokens
from gpt2train.errors import UserError

SCAN = 1 << 24  # tokens looked at a time when a whole file is checked: 32 MB of uint16


def permutation(count: int, *key: int) -> np.ndarray:
    """A permutation of 0 … count-1 that depends on the key alone.

    By sorting raw Philox draws: numpy promises those to stay the same between versions, and promises nothing of the
    kind for `Generator.permutation`. Equal draws (1 in 10^7 runs at a million) are told apart by their place.
    """
    draws = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(draws, kind="stable")


class Epoch:
    """One pass over the documents: where each token of the stream lies in the file, and the order of the samples.

    Args:
        starts: int64 [documents] first token of each document in the file.
        lengths: int64 [documents].
        context: tokens of a sample.
        seed: of the shuffles; None keeps documents and samples in the order of the file.
        number: of the epoch.
    """

    def __init__(self, starts: np.ndarray, lengths: np.ndarray, context: int, seed: int | None, number: int) -> None:
        documents = np.arange(len(starts)) if seed is None else permutation(len(starts), seed, number, 0)
        ends = np.cumsum(lengths[documents])
        self.number, self.context, self._ends = number, context, ends
        # Document d holds the places ends[d] - length … ends[d] of the stream; adding shift[d] gives the file's place.
        self._shift = starts[documents] - (ends - lengths[documents])
        count = samples_in(int(ends[-1]) if len(ends) else 0, context)
        self.order = np.arange(count) if seed is None else permutation(count, seed, number, 1)

    def places(self, slots: np.ndarray) -> np.ndarray:
        """Places in the file of the tokens of some samples: int64 [len(slots), context + 1]."""
        stream = self.order[slots][:, None] * self.context + np.arange(self.context + 1)
        return stream + self._shift[np.searchsorted(self._ends, stream, side="right")]


def samples_in(tokens: int, context: int) -> int:
    """Samples that a stream of tokens yields: each needs `context` tokens and one more to predict."""
    return max(0, (tokens - 1) // context)


class Samples:
    """Samples of one token file by their global index.

    Args:
        prefix: path of `.bin/.idx` without ending.
        context: inputs of a sample.
        vocab: ids must be below it.
        seed: of the shuffles; None keeps the order of the file (validation).

    Raises:
        UserError: the files are missing or hold too few tokens for one sample.
    """

    def __init__(self, prefix: str | Path, context: int, vocab: int, seed: int | None) -> None:
        self.dataset = open_tokens(prefix)
        self.prefix, self.context, self.vocab, self.seed = prefix, context, vocab, seed
        bounds = np.concatenate(([0], np.cumsum(self.dataset.lengths, dtype=np.int64)))[self.dataset.documents]
        self._starts, self._lengths = bounds[:-1], np.diff(bounds)
        self.tokens = int(bounds[-1])
        self.per_epoch = samples_in(self.tokens, context)
        if self.per_epoch == 0:
            raise UserError(
                f"{prefix}.bin holds {self.tokens:,} tokens, fewer than one sample of {context + 1}; "
                "give more data or a smaller model.context"
            )
        self._epochs: dict[int, Epoch] = {}

    def batch(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Tokens of the samples with these global indices: int64 [len(indices), context + 1].

        Raises:
            UserError: a token is outside the vocabulary.
        """
        places = self.places(indices)
        tokens = self.dataset.tokens[places].astype(np.int64)
        self._check(int(tokens.min()), int(tokens.max()))
        return tokens

    def places(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Where the tokens of these samples lie in the file: int64 [len(indices), context + 1]."""
        wanted = np.asarray(indices, dtype=np.int64)
        numbers, slots = np.divmod(wanted, self.per_epoch)
        places = np.empty((len(wanted), self.context + 1), dtype=np.int64)
        for number in np.unique(numbers):
            here = numbers == number
            places[here] = self._epoch(int(number)).places(slots[here])
        return places

    def check_vocabulary(self, part: int = 0, parts: int = 1) -> None:
        """Look at every token of one share of the file.

        Raises:
            UserError: a token is outside the vocabulary.
        """
        first, last = self.tokens * part // parts, self.tokens * (part + 1) // parts
        for start in range(first, last, SCAN):
            chunk = self.dataset.tokens[start : min(start + SCAN, last)]
            self._check(int(chunk.min()), int(chunk.max()))

    def _epoch(self, number: int) -> Epoch:
        if number not in self._epochs:
            # A batch touches two epochs at most; older ones go.
            self._epochs = {known: epoch for known, epoch in self._epochs.items() if known == number - 1}
            self._epochs[number] = Epoch(self._starts, self._lengths, self.context, self.seed, number)
        return self._epochs[number]

    def _check(self, smallest: int, largest: int) -> None:
        if smallest < 0 or largest >= self.vocab:
            wrong = smallest if smallest < 0 else largest
            raise UserError(
                f"{self.prefix}.bin holds the token {wrong}, but the vocabulary has {self.vocab:,} "
                f"(0 … {self.vocab - 1}); these tokens were made with another tokenizer"
            )
