"""What the model is given of the samples: tokens, targets, and what a sample that crosses documents shows of it.

Every document ends where its index says, with its end-of-document token if it was made so. Three choices, all off as
published: positions that begin anew with each document, attention within a document only, and no loss for guessing
how the next document begins (Megatron-LM's `--reset-position-ids`, `--reset-attention-mask`, `--eod-mask-loss`).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gpt2train.config import RunConfig, SampleSettings
from gpt2train.data.batch import Batch
from gpt2train.data.mixture import Mixture
from gpt2train.data.samples import Samples
from gpt2train.model.loss import IGNORE

CACHE = "index"  # folder in the run folder where the order of large corpora is kept


class Corpora:
    """Training samples of one or several corpora by their global index.

    Args:
        corpora: of one context; at least one.
        weights: shares of the samples; only their ratios count.
        choices: what a sample shows of its documents.
    """

    def __init__(self, corpora: Sequence[Samples], weights: Sequence[float], choices: SampleSettings) -> None:
        self.corpora, self.choices = corpora, choices
        self.context = corpora[0].context
        self.tokens = sum(corpus.tokens for corpus in corpora)
        self._mixture = Mixture(weights)

    @property
    def per_epoch(self) -> int:
        """Samples until the first corpus begins anew."""
        lasting = zip(self.corpora, self._mixture.shares, strict=True)
        return int(min(corpus.per_epoch / share for corpus, share in lasting))

    def epochs(self, samples: int) -> list[tuple[str, int, float]]:
        """Of each corpus its prefix, its tokens, and how often it is gone through by this many samples."""
        shares = zip(self.corpora, self._mixture.shares, strict=True)
        return [(str(corpus.prefix), corpus.tokens, samples * share / corpus.per_epoch) for corpus, share in shares]

    def batch(self, indices: Sequence[int] | np.ndarray, until: int | None = None) -> Batch:
        """The samples of these global indices.

        Args:
            until: samples from this index on are there for the shape alone: they are the last one before it, and
                nothing of them counts.

        Raises:
            UserError: a token is outside the vocabulary.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        tokens, documents = self._read(wanted if until is None else wanted.clip(max=until - 1))
        targets = tokens[:, 1:].copy()
        if self.choices.eod_mask_loss:
            targets[documents[:, 1:] != documents[:, :-1]] = IGNORE
        if until is not None:
            targets[wanted >= until] = IGNORE
        documents = documents[:, :-1] - documents[:, :1]
        return Batch(
            torch.from_numpy(tokens[:, :-1].copy()),
            torch.from_numpy(targets),
            torch.from_numpy(positions_within(documents)) if self.choices.reset_positions else None,
            torch.from_numpy(documents) if self.choices.mask_documents else None,
        )

    def counted(self, indices: Sequence[int] | np.ndarray) -> int:
        """Targets that count in the samples of these global indices, without reading a token.

        Every process computes it for the whole step, so that all divide the loss by the same number. At least 1: where
        documents are one token long, nothing counts, and the mean of nothing is 0.
        """
        count = len(indices) * self.context
        if not self.choices.eod_mask_loss:
            return count
        ends = sum(corpus.document_ends(mine) for _, corpus, mine in self._by_corpus(np.asarray(indices)))
        return max(1, count - ends)

    def check_vocabulary(self, part: int = 0, parts: int = 1) -> None:
        """Look at every token of one share of each corpus.

        Raises:
            UserError: a token is outside the vocabulary.
        """
        for corpus in self.corpora:
            corpus.check_vocabulary(part, parts)

    def _read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tokens, documents = (np.empty((len(indices), self.context + 1), dtype=np.int64) for _ in range(2))
        for here, corpus, mine in self._by_corpus(indices):
            tokens[here], documents[here] = corpus.read(mine)
        return tokens, documents

    def _by_corpus(self, indices: np.ndarray) -> list[tuple[np.ndarray, Samples, np.ndarray]]:
        """The rows of each corpus that is touched, the corpus, and the rows' indices in it."""
        numbers, mine = self._mixture.of(indices)
        rows = [(numbers == number, self.corpora[number]) for number in np.unique(numbers).tolist()]
        return [(here, corpus, mine[here]) for here, corpus in rows]


def positions_within(documents: np.ndarray) -> np.ndarray:
    """Positions that begin at 0 with each document: int64, of the shape of `documents`, whose last axis is the text.

    What a sample holds of its first document begins at 0 as well.
    """
    place = np.arange(documents.shape[-1])
    begins = np.zeros_like(documents)
    begins[..., 1:] = np.where(documents[..., 1:] != documents[..., :-1], place[1:], 0)
    return place - np.maximum.accumulate(begins, axis=-1)


def training_data(config: RunConfig) -> Corpora:
    """The training corpora of a run, shuffled by its seed.

    Raises:
        UserError: a file is missing, is not of this format, or holds too few tokens.
        RunError: a file is truncated, or an index belongs to other data.
    """
    found = config.data.corpora
    cache = Path(config.data.cache or Path(config.output) / CACHE)
    context, vocab, seed = config.model.context, config.vocab, config.seed
    parts = [Samples(corpus.prefix, context, vocab, seed, cache) for corpus in found]
    return Corpora(parts, [corpus.weight for corpus in found], config.samples)


def validation_data(config: RunConfig) -> Corpora | None:
    """The validation tokens of a run, in the order of the file; None where it has none.

    Raises:
        UserError, RunError: as `training_data`.
    """
    if config.data.valid is None:
        return None
    parts = [Samples(config.data.valid, config.model.context, config.vocab, None)]
    return Corpora(parts, [1.0], config.samples)
