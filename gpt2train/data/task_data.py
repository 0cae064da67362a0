"""Samples of fine-tuning: one sample is one document of a token file, padded on the right to the context.

The sequences of a document say what is in the loss:

    classification   the tokens of the sample, then one number: its class
    answers          prompt, answer, prompt, answer, …; the loss is that of the answers alone

Unlike the packed samples of pretraining, samples do not share a context. Each epoch has its own order, a function of
the seed and the epoch's number.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.data.dataset import Dataset, Indices
from gpt2train.data.document_split import Part
from gpt2train.data.epoch import permutation
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.errors import UserError
from gpt2train.model.loss import IGNORE

T = TypeVar("T", bound="TaskData")
PADDING = 0  # any token: nothing that is in the loss attends to it


class TaskData(Dataset):
    """Documents of a token file as samples.

    Args:
        prefix: path of the token files without extension.
        context: tokens of a padded sample.
        vocab: vocabulary size.
        seed: seed of the order of each epoch; None keeps the order of the file.
        split: weights by which the documents are split, if they are.
        part: part of the split.

    Raises:
        UserError: a file is missing, has no documents, or documents of another form.
        RunError: the files are truncated or do not belong together.
    """

    def __init__(
        self,
        prefix: str | Path,
        context: int,
        vocab: int,
        seed: int | None = None,
        *,
        split: Sequence[float] | None = None,
        part: Part = "train",
    ) -> None:
        self.prefix, self.context, self.vocab, self.seed = prefix, context, vocab, seed
        self.dataset = open_tokens(prefix, split, part)
        self.firsts = np.asarray(self.dataset.documents, dtype=np.int64)
        self.ends = np.concatenate(([0], np.cumsum(self.dataset.lengths, dtype=np.int64)))
        if not self.per_epoch:
            raise UserError(f"{prefix} has no samples; give more data, or another split")
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))
        self._check_form()

    @property
    def per_epoch(self) -> int:
        """Number of samples."""
        return len(self.firsts) - 1

    def epochs(self, samples: int) -> list[tuple[str, int, float]]:
        """Prefix, number of tokens and number of epochs in this many samples."""
        return [(str(self.prefix), int(self.ends[-1]), samples / self.per_epoch)]

    def documents_of(self, indices: Indices) -> np.ndarray:
        """Document numbers of samples, int64 [len(indices)]."""
        numbers, slots = np.divmod(np.asarray(indices, dtype=np.int64), self.per_epoch)
        found = np.empty(len(slots), dtype=np.int64)
        for number in np.unique(numbers).tolist():
            rows = numbers == number
            found[rows] = self._epoch(number)[slots[rows]]
        return found

    def batch(self, indices: Indices, until: int | None = None) -> Batch:
        """Read the samples with these indices; see `Dataset.batch`."""
        wanted = np.asarray(indices, dtype=np.int64)
        documents = self.documents_of(wanted if until is None else wanted.clip(max=until - 1))
        batch = self._batch(documents)
        if until is not None:
            batch.targets[torch.from_numpy(wanted >= until)] = IGNORE
        return batch

    def check(self, part: int = 0, parts: int = 1) -> None:
        """Check the tokens and labels of one of `parts` equal parts of the documents.

        Raises:
            UserError: one is out of range.
        """
        first, last = self.per_epoch * part // parts, self.per_epoch * (part + 1) // parts
        for document in range(first, last):
            self._check_document(document)

    def sequences(self, document: int) -> list[np.ndarray]:
        """Sequences of a document, int64."""
        numbers = range(int(self.firsts[document]), int(self.firsts[document + 1]))
        return [self.dataset.tokens[int(self.ends[n]) : int(self.ends[n + 1])].astype(np.int64) for n in numbers]

    def _epoch(self, number: int) -> np.ndarray:
        if self.seed is None:
            return np.arange(self.per_epoch)
        if self._order[0] != number:
            self._order = number, permutation(self.per_epoch, self.seed, number)
        return self._order[1]

    def _check_tokens(self, document: int, tokens: np.ndarray, limit: int) -> None:
        name = f"{self.prefix}: sample {document}"
        if len(tokens) > limit:
            raise UserError(f"{name} has {len(tokens)} tokens, above {limit}; raise model.context, or make it shorter")
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab:
            raise UserError(
                f"{name} has the token id {int(tokens.max())}, but the vocabulary has {self.vocab:,}; these tokens "
                "were made with another tokenizer"
            )

    @abstractmethod
    def _check_form(self) -> None:
        """Check the number of sequences of each document."""

    @abstractmethod
    def _check_document(self, document: int) -> None:
        """Check the tokens of a document."""

    @abstractmethod
    def _batch(self, documents: np.ndarray) -> Batch:
        """Read documents."""


class LabelledData(TaskData):
    """Samples of a classification, each with the number of its class, which is the target."""

    labels = 0

    def counted(self, indices: Indices) -> int:
        """Count the samples."""
        return max(1, len(indices))

    def _check_form(self) -> None:
        lengths = np.asarray(self.dataset.lengths)
        pairs = bool((np.diff(self.firsts) == 2).all())
        if not (pairs and (lengths[self.firsts[:-1]] > 0).all() and (lengths[self.firsts[:-1] + 1] == 1).all()):
            raise UserError(
                f"{self.prefix} is not labelled samples: documents of two sequences, tokens and label; make it with "
                "python -m flows.finetune"
            )

    def _check_document(self, document: int) -> None:
        tokens, label = self.sequences(document)
        self._check_tokens(document, tokens, self.context)
        if not 0 <= int(label[0]) < self.labels:
            raise UserError(
                f"{self.prefix}: sample {document} has the label {int(label[0])}, but model.labels is {self.labels}; "
                "raise it, or correct the label"
            )

    def _batch(self, documents: np.ndarray) -> Batch:
        tokens = np.full((len(documents), self.context), PADDING, dtype=np.int64)
        lengths, targets = (np.empty(len(documents), dtype=np.int64) for _ in range(2))
        for row, document in enumerate(documents.tolist()):
            sample, label = self.sequences(document)
            tokens[row, : len(sample)], lengths[row], targets[row] = sample, len(sample), label[0]
        extra = {"lengths": torch.from_numpy(lengths)}
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), extra)


class AnswerData(TaskData):
    """Samples of prompts and answers; the targets are the tokens of the answers."""

    def counted(self, indices: Indices) -> int:
        """Count the tokens of the answers that a token precedes."""
        return max(1, int(self._counts[self.documents_of(indices)].sum()))

    def check_validation(self, samples: int) -> None:
        """Raise a UserError if the first samples have no target: their loss of 0 would make any checkpoint the best."""
        read = self.documents_of(range(min(samples, self.per_epoch)))
        if not self._counts[read].any():
            found = f"{self.prefix}: the first {len(read):,} samples have no token of an answer"
            raise UserError(f"{found}, and validation reads those; raise validation.samples, or give other samples")

    def _check_form(self) -> None:
        lengths = np.asarray(self.dataset.lengths, dtype=np.int64)
        odd = np.zeros(len(lengths) + 1, dtype=np.int64)
        place = np.arange(len(lengths)) - np.repeat(self.firsts[:-1], np.diff(self.firsts))
        np.cumsum(lengths * (place % 2), out=odd[1:])
        self._counts = odd[self.firsts[1:]] - odd[self.firsts[:-1]]
        if (np.diff(self.firsts) < 2).any():
            remedy = "make it with python -m flows.finetune"
            raise UserError(f"{self.prefix} is not prompts and answers: documents of two sequences or more; {remedy}")
        self._counts -= lengths[self.firsts[:-1]] == 0  # nothing precedes the first token
        if not self._counts.any():
            raise UserError(f"{self.prefix} has no token of an answer, so that nothing is learned; give other samples")

    def _check_document(self, document: int) -> None:
        self._check_tokens(document, np.concatenate(self.sequences(document)), self.context + 1)

    def _batch(self, documents: np.ndarray) -> Batch:
        tokens = np.full((len(documents), self.context), PADDING, dtype=np.int64)
        targets = np.full((len(documents), self.context), IGNORE, dtype=np.int64)
        for row, document in enumerate(documents.tolist()):
            found = self.sequences(document)
            sample = np.concatenate(found)
            in_loss = np.concatenate([np.full(len(part), number % 2 == 1) for number, part in enumerate(found)])
            tokens[row, : len(sample) - 1] = sample[:-1]
            targets[row, : len(sample) - 1] = np.where(in_loss[1:], sample[1:], IGNORE)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets))


def labelled_data(config: RunConfig, part: Part) -> LabelledData | None:
    """Open the samples of a classification, "train" or "valid".

    Raises:
        UserError: the model has no classes, or as `TaskData`.
    """
    if config.model.labels < 2:
        raise UserError(f"model.labels is {config.model.labels}, but a classification needs 2 classes or more")
    found = _open(LabelledData, config, part)
    if found is not None:
        found.labels = config.model.labels
    return found


def answer_data(config: RunConfig, part: Part) -> AnswerData | None:
    """Open the prompts and answers, "train" or "valid"; errors as `TaskData`."""
    found = _open(AnswerData, config, part)
    if found is not None and part == "valid":
        found.check_validation(config.validation.samples)
    return found


def _open(kind: type[T], config: RunConfig, part: Part) -> T | None:
    data, is_train = config.data, part == "train"
    if len(data.corpora) > 1:
        raise UserError(f"the objective {config.objective.name} takes one token file, not a mixture of corpora")
    if not (is_train or data.may_validate):
        return None
    prefix, seed = data.corpora[0].prefix, config.seed if is_train else None
    if not is_train:
        prefix = data.valid or prefix
    return kind(prefix, config.model.context, config.vocab, seed, split=data.weights, part=part)
