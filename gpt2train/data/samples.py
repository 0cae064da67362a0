"""Packed training samples whose order is a pure function of one integer.

Sample `g` of a corpus is sample `g mod N` of epoch `g div N` (`gpt2train.data.epoch`): there is no state, and resuming
needs only the index. Documents are reshuffled each epoch, so that the tail that does not fill a sample differs each
time.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gpt2train.config import Corpus, RunConfig
from gpt2train.data.document_split import Part
from gpt2train.data.epoch import MIN_CACHED_DOCUMENTS, Epoch, cached_epoch, corpus_identity, samples_in
from gpt2train.data.mixture import Mixture
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.errors import UserError
from gpt2train.store.counts import count_of

CACHE = "index"  # folder in the run folder in which the sample order of large corpora is cached
SCAN_CHUNK = 1 << 24  # tokens


class Samples:
    """Samples of one corpus by index.

    Token ids must be below `vocab`. Without a seed the samples keep the order of the file (validation). The epochs of a
    large corpus are kept in the folder `cache`, if given. With the weights of a `split`, the samples are those of one
    part of its documents.

    Raises:
        UserError: the files are missing or hold too few tokens for one sample.
        RunError: the files are truncated or do not belong together.
    """

    def __init__(
        self,
        prefix: str | Path,
        context: int,
        vocab: int,
        seed: int | None,
        cache: Path | None = None,
        *,
        split: Sequence[float] | None = None,
        part: Part = "train",
    ) -> None:
        self.dataset = open_tokens(prefix, split, part)
        self.prefix, self.context, self.vocab, self.seed = prefix, context, vocab, seed
        self._bounds = self.dataset.bounds()
        self.tokens = int(self._bounds[-1])
        self.per_epoch = samples_in(self.tokens, context)
        if self.per_epoch == 0:
            count, remedy = count_of(self.tokens, "token"), "give more data or a smaller model.context"
            holds = f"{prefix}.bin holds {count}"
            if split is not None:
                documents = count_of(len(self.dataset.documents) - 1, "document")
                holds = f"the split leaves {documents} of {prefix} to {part}, {count}"
                remedy = "give more data, another split, or a smaller model.context"
            raise UserError(f"{holds}, fewer than one sample of {context + 1}; {remedy}")
        self._cache = cache if len(self._bounds) + self.per_epoch >= MIN_CACHED_DOCUMENTS else None
        self._identity = corpus_identity(self._bounds) if self._cache else b""
        self._epochs: dict[int, Epoch] = {}

    def read(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the tokens and document numbers of samples: two arrays int64 [len(indices), context + 1].

        Documents are numbered in the order of the epoch's stream, so that the numbers increase along a sample.

        Raises:
            UserError: a token is outside the vocabulary.
        """
        offsets, documents = self.locate(indices)
        tokens = self.dataset.tokens[offsets].astype(np.int64)
        if tokens.size:
            self._check(int(tokens.min()), int(tokens.max()))
        return tokens, documents

    def locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Offsets in the file, in tokens, and document numbers of the tokens of samples; shapes as in `read`."""
        offsets, documents = (np.empty((len(indices), self.context + 1), dtype=np.int64) for _ in range(2))
        for rows, epoch, slots in self._by_epoch(indices):
            offsets[rows], documents[rows] = epoch.locate(slots)
        return offsets, documents

    def document_ends(self, indices: Sequence[int] | np.ndarray) -> int:
        """Count the inputs of these samples that are the last token of a document, without reading tokens."""
        return sum(epoch.document_ends(slots) for _, epoch, slots in self._by_epoch(indices))

    def containing(self, start: int, end: int, until: int) -> np.ndarray:
        """Indices below `until` of the samples with any of the tokens `start` … `end` of the file, ascending.

        The tokens are of one document.
        """
        return self._found(lambda epoch: epoch.containing(start, end), until)

    def of_documents(self, starts: np.ndarray, until: int) -> np.ndarray:
        """Indices below `until` of the samples with tokens of the documents that start at these ones, ascending."""
        return self._found(lambda epoch: epoch.of_documents(starts), until if len(starts) else 0)

    def _found(self, search: Callable[[Epoch], np.ndarray], until: int) -> np.ndarray:
        epochs = range(-(-until // self.per_epoch))
        found = [search(self._epoch(number)) + number * self.per_epoch for number in epochs]
        indices = np.concatenate([np.empty(0, dtype=np.int64), *found])
        return indices[indices < until]

    def check_vocabulary(self, part: int = 0, parts: int = 1) -> None:
        """Check every token of one of `parts` equal parts of the file; `UserError` names one outside the vocabulary."""
        for chunk in self.chunks(part, parts):
            self._check(int(chunk.min()), int(chunk.max()))

    def chunks(self, part: int, parts: int) -> Iterator[np.ndarray]:
        """Yield the tokens of one of `parts` equal parts of the file, 32 MB of uint16 at a time."""
        first, last = self.tokens * part // parts, self.tokens * (part + 1) // parts
        for start in range(first, last, SCAN_CHUNK):
            yield self.dataset.tokens[start : min(start + SCAN_CHUNK, last)]

    def _by_epoch(self, indices: Sequence[int] | np.ndarray) -> Iterator[tuple[np.ndarray, Epoch, np.ndarray]]:
        """Yield (row mask, epoch, slots of these rows in the epoch) for each epoch that the samples belong to."""
        numbers, slots = np.divmod(np.asarray(indices, dtype=np.int64), self.per_epoch)
        for number in np.unique(numbers).tolist():
            rows = numbers == number
            yield rows, self._epoch(number), slots[rows]

    def _epoch(self, number: int) -> Epoch:
        if number not in self._epochs:
            # If the corpus is larger than a batch, a batch spans at most two epochs; older ones are dropped.
            self._epochs = {known: epoch for known, epoch in self._epochs.items() if known == number - 1}
            wanted = self._bounds, self.context, self.seed, number
            cached = self._cache and cached_epoch(self._cache, self._identity, *wanted)
            self._epochs[number] = cached or Epoch.build(*wanted)
        return self._epochs[number]

    def _check(self, smallest: int, largest: int) -> None:
        if smallest < 0 or largest >= self.vocab:
            wrong = smallest if smallest < 0 else largest
            raise UserError(
                f"{self.prefix}.bin contains the token id {wrong}, but the vocabulary has {self.vocab:,} "
                f"(0 … {self.vocab - 1}); these tokens were made with another tokenizer"
            )


def samples_per_epoch(config: RunConfig) -> int:
    """Samples until the first training corpus of a run repeats, without torch.

    Raises:
        UserError: a file is missing or holds too few tokens for one sample.
        RunError: a file is truncated.
    """
    corpora, context = config.data.corpora, config.sample_length
    found = [Samples(corpus.prefix, context, config.vocab, None, split=config.data.weights) for corpus in corpora]
    return Mixture([corpus.weight for corpus in corpora]).per_epoch([samples.per_epoch for samples in found])


def validation_corpora(config: RunConfig) -> tuple[Corpus, ...]:
    """Corpora of the validation data: `data.valid`, or those of which the split leaves a sample for validation.

    Raises:
        UserError: a file is missing or has another format.
        RunError: a file is truncated.
    """
    data = config.data
    if data.valid is not None:
        return (Corpus(prefix=data.valid),)
    if not data.may_validate:
        return ()
    opened = [(corpus, open_tokens(corpus.prefix, data.weights, "valid")) for corpus in data.corpora]
    return tuple(corpus for corpus, part in opened if samples_in(len(part.tokens), config.sample_length))
