"""Training and validation data: batches by global sample index, with the handling of document boundaries.

Document boundaries come from the index of the token files. Three options, all off as in the published GPT-2: positions
that restart with each document, attention within a document only, and no loss for predicting the start of the next
document (Megatron-LM's `--reset-position-ids`, `--reset-attention-mask`, `--eod-mask-loss`).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gpt2train.config import DocumentSettings, RunConfig
from gpt2train.data.batch import Batch
from gpt2train.data.dataset import Dataset
from gpt2train.data.document_split import Part
from gpt2train.data.mixture import Mixture
from gpt2train.data.samples import CACHE, Samples, validation_corpora
from gpt2train.errors import UserError
from gpt2train.model.loss import IGNORE


class TrainingData(Dataset):
    """Packed samples of corpora of one context length by global index; only the ratios of the weights matter."""

    def __init__(self, corpora: Sequence[Samples], weights: Sequence[float], options: DocumentSettings) -> None:
        self.corpora, self.options = corpora, options
        self.context = corpora[0].context
        self.tokens = sum(corpus.tokens for corpus in corpora)
        self._mixture = Mixture(weights)

    @property
    def per_epoch(self) -> int:
        """Samples until the first corpus repeats."""
        return self._mixture.per_epoch([corpus.per_epoch for corpus in self.corpora])

    def epochs(self, samples: int) -> list[tuple[str, int, float]]:
        """Prefix, number of tokens and number of epochs of each corpus in this many samples."""
        shares = zip(self.corpora, self._mixture.shares, strict=True)
        return [(str(corpus.prefix), corpus.tokens, samples * share / corpus.per_epoch) for corpus, share in shares]

    def batch(self, indices: Sequence[int] | np.ndarray, until: int | None = None) -> Batch:
        """Read the samples with these global indices.

        Those from `until` on are padding: they repeat the last sample before it, with ignored targets.

        Raises:
            UserError: a token is outside the vocabulary.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        tokens, documents = (np.empty((len(wanted), self.context + 1), dtype=np.int64) for _ in range(2))
        for rows, corpus, inner in self._by_corpus(wanted if until is None else wanted.clip(max=until - 1)):
            tokens[rows], documents[rows] = corpus.read(inner)
        targets = tokens[:, 1:].copy()
        if self.options.eod_mask_loss:
            targets[documents[:, 1:] != documents[:, :-1]] = IGNORE
        if until is not None:
            targets[wanted >= until] = IGNORE
        documents = documents[:, :-1] - documents[:, :1]
        extra = {}
        if self.options.reset_positions:
            extra["positions"] = torch.from_numpy(positions_within(documents))
        if self.options.mask_documents:
            extra["documents"] = torch.from_numpy(documents)
        return Batch(torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(targets), extra)

    def counted(self, indices: Sequence[int] | np.ndarray) -> int:
        """Count the targets of these samples that are not ignored, without reading tokens.

        Every process computes it for the whole step, so that all divide the loss by the same number. It is at least 1:
        if all documents have one token, all targets are ignored, and the sum of the losses is 0.
        """
        count = len(indices) * self.context
        if not self.options.eod_mask_loss:
            return count
        ends = sum(corpus.document_ends(inner) for _, corpus, inner in self._by_corpus(np.asarray(indices)))
        return max(1, count - ends)

    def check(self, part: int = 0, parts: int = 1) -> None:
        """Check every token of one of `parts` equal parts of each corpus, as `Samples.check_vocabulary`."""
        for corpus in self.corpora:
            corpus.check_vocabulary(part, parts)

    def _by_corpus(self, indices: np.ndarray) -> list[tuple[np.ndarray, Samples, np.ndarray]]:
        """List (row mask, corpus, indices of these rows in the corpus) for each corpus that the samples belong to."""
        numbers, inner = self._mixture.of(indices)
        masks = [(numbers == number, self.corpora[number]) for number in np.unique(numbers).tolist()]
        return [(rows, corpus, inner[rows]) for rows, corpus in masks]


def positions_within(documents: np.ndarray) -> np.ndarray:
    """Positions that restart at 0 with each document, from document numbers: int64 [..., length], as the result.

    The first document of a sample starts at 0 as well, even if the sample begins inside it.
    """
    index = np.arange(documents.shape[-1])
    starts = np.zeros_like(documents)
    starts[..., 1:] = np.where(documents[..., 1:] != documents[..., :-1], index[1:], 0)
    return index - np.maximum.accumulate(starts, axis=-1)


def packed_data(config: RunConfig, part: Part) -> TrainingData | None:
    """Open the samples of next-token prediction of a run: "train", shuffled by its seed, or "valid", in file order.

    None if there are no validation data. With a split they have the weights of the training corpora, and a corpus
    without a validation sample is left out.

    Raises:
        UserError: a file is missing, has another format, or contains too few tokens, or no target of a validation.
        RunError: a file is truncated, or an index belongs to other data.
    """
    corpora, seed, cache = validation_corpora(config), None, None
    if part == "train":
        corpora, seed = config.data.corpora, config.seed
        cache = Path(config.data.cache or Path(config.output) / CACHE)
    context, vocab, split = config.sample_length, config.vocab, config.data.weights
    samples = [Samples(corpus.prefix, context, vocab, seed, cache, split=split, part=part) for corpus in corpora]
    if not samples:
        return None
    data = TrainingData(samples, [corpus.weight for corpus in corpora], config.documents)
    read = range(min(config.validation.samples, data.per_epoch))
    if part == "valid" and data.counted(read) == 1 < len(read) * context:  # their loss of 0 would be the best of all
        found = f"{corpora[0].prefix}: the first {len(read):,} samples have no target: documents of one token"
        raise UserError(f"{found}; give other validation tokens, or set documents.eod_mask_loss = false")
    return data
