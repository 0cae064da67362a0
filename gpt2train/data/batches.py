"""What the model is given of the samples: tokens, targets, and what a sample that crosses documents shows of it.

Every document ends where its index says, with its end-of-document token if it was made so. Three choices, all off as
published: positions that begin anew with each document, attention within a document only, and no loss for guessing
how the next document begins (Megatron-LM's `--reset-position-ids`, `--reset-attention-mask`, `--eod-mask-loss`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gpt2train.data.mixture import Mixture
from gpt2train.data.samples import Samples
from gpt2train.model.loss import IGNORE


class Choices(Protocol):
    """What `gpt2train.config.SampleSettings` says."""

    @property
    def reset_positions(self) -> bool: ...

    @property
    def mask_documents(self) -> bool: ...

    @property
    def eod_mask_loss(self) -> bool: ...


@dataclass(frozen=True)
class Batch:
    """Some samples, as the model takes them.

    Attributes:
        tokens: int64 [samples, context].
        targets: int64 [samples, context]; -100 marks positions that do not count.
        positions: int64 [samples, context] where they do not run from 0 to context - 1.
        documents: int64 [samples, context] number of each token's document, where attention stays within one.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None
    documents: Tensor | None = None

    @property
    def marks(self) -> dict[str, Tensor]:
        """`positions` and `documents`, those that are there: keywords of the model."""
        found = {"positions": self.positions, "documents": self.documents}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def pinned(self) -> "Batch":
        """A copy in memory that a GPU reads without waiting."""
        return Batch(**{name: tensor.pin_memory() for name, tensor in self._tensors()})

    def to(self, device: torch.device) -> "Batch":
        """On a device; from pinned memory the copy runs beside the computation."""
        return Batch(**{name: tensor.to(device, non_blocking=True) for name, tensor in self._tensors()})

    def _tensors(self) -> list[tuple[str, Tensor]]:
        found = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, tensor) for name, tensor in found if tensor is not None]


class Corpora:
    """Training samples of one or several corpora by their global index.

    Args:
        corpora: of one context; at least one.
        weights: shares of the samples; only their ratios count.
        choices: what a sample shows of its documents.
    """

    def __init__(self, corpora: Sequence[Samples], weights: Sequence[float], choices: Choices) -> None:
        self.corpora, self.choices = corpora, choices
        self.context = corpora[0].context
        self.tokens = sum(corpus.tokens for corpus in corpora)
        self._mixture = Mixture(weights)

    def epochs(self, samples: int) -> dict[str, float]:
        """How often each corpus is gone through by this many samples, by its prefix."""
        shares = zip(self.corpora, self._mixture.shares, strict=True)
        return {str(corpus.prefix): samples * share / corpus.per_epoch for corpus, share in shares}

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

        Every process computes it for the whole step, so that all divide the loss by the same number.
        """
        count = len(indices) * self.context
        if not self.choices.eod_mask_loss:
            return count
        return count - sum(corpus.document_ends(mine) for _, corpus, mine in self._by_corpus(np.asarray(indices)))

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
