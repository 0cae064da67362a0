"""Data of span corruption and prefix language modelling: packed samples, of which each gives an input and a target."""

import numpy as np
import torch

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.data.dataset import Dataset, Indices
from gpt2train.data.document_split import Part
from gpt2train.data.run_tokenizer import find_run_tokenizer, without_tokenizer
from gpt2train.data.samples import Samples
from gpt2train.data.sentinels import TOP, SpecialTokens, find_special_tokens, needs_tokenizer
from gpt2train.data.span_corruption import corrupt, corrupted_lengths, noise_mask, prefix_length
from gpt2train.data.training_data import TrainingData, packed_data
from gpt2train.errors import UserError
from gpt2train.model.families import MODELS
from gpt2train.model.loss import IGNORE
from gpt2train.model.objectives import SpanCorruptionOptions

VALIDATION = 2**62  # added to the indices of validation samples, which get other spans than those of the training


def special_tokens(config: RunConfig) -> SpecialTokens:
    """Find the special tokens of a run in its tokenizer.

    Raises:
        UserError: a sentinel does not exist, or there is no tokenizer to look it up.
    """
    options = SpanCorruptionOptions.model_validate(config.objective.options)
    folder, tokenizer = find_run_tokenizer(config) or (None, None)
    start = int(config.model.options["start_id"])
    if tokenizer is None and needs_tokenizer(options):
        wanted = f"the sentinels {options.sentinels}" if options.sentinels != TOP else "objective.options.end_id = -1"
        remedy = 'copy it there as tokenizer/, or set objective.options.sentinels = "top" and end_id'
        raise UserError(f"{wanted} need the run's tokenizer, and {without_tokenizer(config)}; {remedy}")
    return find_special_tokens(options, start, config.vocab, tokenizer, folder)


class SpanData(Dataset):
    """Samples for an encoder and a decoder.

    Args:
        packed: samples of `sample_length` tokens.
        config: settings of the run.
        special: special tokens.
        offset: number that is added to the index from which the spans of a sample follow.
    """

    def __init__(self, packed: TrainingData, config: RunConfig, special: SpecialTokens, offset: int) -> None:
        self.packed, self.special, self._seed, self._offset = packed, special, config.seed, offset
        self._options = SpanCorruptionOptions.model_validate(config.objective.options)
        self._length, self._inputs = config.sample_length, config.model.context
        self._targets = MODELS[config.model.family].lengths(config.shape)[1]

    @property
    def per_epoch(self) -> int:
        """Samples until the first corpus repeats."""
        return self.packed.per_epoch

    def epochs(self, samples: int) -> list[tuple[str, int, float]]:
        """Prefix, number of tokens and number of epochs of each corpus in this many samples."""
        return self.packed.epochs(samples)

    def batch(self, indices: Indices, until: int | None = None) -> Batch:
        """Read the samples with these indices; the targets of those from `until` on are ignored.

        The batch's tokens are the encoder's, int64 [samples, context]; further tensors are `decoder_tokens` [samples,
        decoder_context], and with padded inputs their `lengths` [samples].
        """
        wanted = np.asarray(indices, dtype=np.int64)
        read = self.packed.batch(wanted, until).tokens.numpy()
        inputs, decoder = (np.full((len(wanted), n), self.special.start) for n in (self._inputs, self._targets))
        targets = np.full((len(wanted), self._targets), IGNORE)
        lengths = np.empty(len(wanted), dtype=np.int64)
        for row, index in enumerate((wanted if until is None else wanted.clip(max=until - 1)).tolist()):
            source, target = self._pair(read[row], index)
            lengths[row] = len(source)
            inputs[row, : len(source)], targets[row, : len(target)] = source, target
            decoder[row, 1 : len(target)] = target[:-1]
        if until is not None:
            targets[wanted >= until] = IGNORE
        extra = {"decoder_tokens": torch.from_numpy(decoder)}
        if self._padded:
            extra["lengths"] = torch.from_numpy(lengths)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), extra)

    def counted(self, indices: Indices) -> int:
        """Count the targets of these samples, spans, sentinels and end tokens, without reading tokens."""
        if self._options.task == "spans":
            return len(indices) * self._span_lengths[1]
        return sum(self._length - self._prefix(int(index)) + 1 for index in indices)

    def check(self, part: int = 0, parts: int = 1) -> None:
        """Check one of `parts` equal parts of each corpus; UserError for a token that is a sentinel or unknown."""
        self.packed.check(part, parts)
        for corpus in self.packed.corpora:
            self._check_sentinels(corpus, part, parts)

    def _check_sentinels(self, corpus: Samples, part: int, parts: int) -> None:
        least, most = min(self.special.sentinels), max(self.special.sentinels)
        for chunk in corpus.chunks(part, parts):
            near = chunk[(chunk >= least) & (chunk <= most)]
            found = near[np.isin(near, self.special.sentinels)]
            if len(found):
                raise UserError(
                    f"{corpus.prefix}.bin contains the token id {found[0]}, which is a sentinel of the span "
                    "corruption; make the tokens with a tokenizer that has sentinels of its own"
                )

    def _pair(self, tokens: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Input and target of a sample, each with its end token."""
        if self._options.task == "prefix":
            prefix = self._prefix(index)
            return np.append(tokens[:prefix], self.special.end), np.append(tokens[prefix:], self.special.end)
        options = self._options
        mask = noise_mask(len(tokens), options.noise_density, options.mean_span, self._seed, index + self._offset)
        return corrupt(tokens, mask, self.special.sentinels, self.special.end)

    def _prefix(self, index: int) -> int:
        return prefix_length(self._length, self._inputs, self._targets, self._seed, index + self._offset)

    @property
    def _span_lengths(self) -> tuple[int, int]:
        return corrupted_lengths(self._length, self._options.noise_density, self._options.mean_span)

    @property
    def _padded(self) -> bool:
        return self._options.task == "prefix" or self._span_lengths[0] < self._inputs


def span_data(config: RunConfig, part: Part) -> SpanData | None:
    """Open the samples of a run, "train" or "valid".

    Raises:
        UserError: a file is missing or holds too few tokens, a sentinel does not exist, or documents are to be kept
            apart, which this objective cannot.
        RunError: a file is truncated.
    """
    for name, chosen in config.documents.model_dump().items():
        if chosen:
            raise UserError(f"documents.{name} is for next-token prediction; leave it out with {config.objective.name}")
    packed = packed_data(config, part)
    if packed is None:
        return None
    return SpanData(packed, config, special_tokens(config), 0 if part == "train" else VALIDATION)
