"""Settings of token files, data mixture, document boundaries and validation."""

import math
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from gpt2train.settings import Place, PositiveNumber, Settings

SPLIT_PARTS = 3  # train, valid, test
MIN_WEIGHT = 1e-9  # of a corpus that is used


def split_weights(split: str) -> tuple[float, ...]:
    """Weights of train, valid and test of a split such as `949,50,1`; those that are left out are 0.

    Raises:
        ValueError: it is not one to three numbers, one is negative, or nothing would be left for training.
    """
    try:
        weights = [float(part) for part in split.split(",")]
    except ValueError:
        weights = []
    if not 0 < len(weights) <= SPLIT_PARTS or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError("a split is the weights of train, valid and test, as '949,50,1'")
    if not weights[0]:
        raise ValueError("this split leaves nothing for training; its first weight must be above 0")
    return (*weights, *[0.0] * (SPLIT_PARTS - len(weights)))


def _checked_weight(weight: float) -> float:
    if 0 < weight < MIN_WEIGHT:
        raise ValueError(f"{weight:g} is below {MIN_WEIGHT:g}; raise it, or give 0 to leave the corpus out")
    return weight


def _checked_split(split: str) -> str:
    split_weights(split)
    return split


Weight = Annotated[float, Field(ge=0, le=1e9), AfterValidator(_checked_weight)]
# A number alone, as the form of the UI and the command line of Prefect may send it, is its text.
Split = Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(_checked_split)]


class Corpus(Settings):
    """One corpus of a data mixture."""

    prefix: Place
    """Path of the token files (`.bin/.idx`) without extension, or of a raw `.bin` of nanoGPT or llm.c with it."""
    weight: Weight = 1.0
    """Share of the samples, relative to the other corpora's weights. 0 leaves the corpus out, as Megatron-LM does."""


class DataSettings(Settings):
    """Token files (`.bin/.idx`), named by their path without extension."""

    train: Place | tuple[Corpus, ...]
    """Prefix of the training tokens, or several corpora with their weights. An objective of a plug-in may take another
    text, such as the path of its file."""
    valid: Place | None = None
    """Prefix of the validation tokens; None trains without validation, unless `split` is given."""
    split: Split | None = Field(None, exclude_if=lambda split: split is None)
    """Weights by which the documents of `train` are split into training, validation and test data, in the order of the
    files: `"949,50,1"` (Megatron-LM's `--split`). None trains on all documents."""
    cache: Place | None = None
    """Folder in which the sample order of corpora of more than about a million documents is cached, also for other
    runs; None: `index/` in the run folder."""

    @field_validator("train")
    @classmethod
    def _not_empty(cls, value: str | tuple[Corpus, ...]) -> str | tuple[Corpus, ...]:
        if not value:
            raise ValueError("at least one corpus is needed: a prefix, or a list of {prefix, weight}")
        if not isinstance(value, str) and not any(corpus.weight for corpus in value):
            raise ValueError("all weights are 0, which leaves nothing for training; raise one")
        return value

    @model_validator(mode="after")
    def _validated_once(self) -> "DataSettings":
        if self.split is not None and self.valid is not None:
            raise ValueError("data.split and data.valid both name validation data; leave one out")
        return self

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weights of `split`; None without one."""
        return None if self.split is None else split_weights(self.split)

    @property
    def may_validate(self) -> bool:
        """True if validation data are named; a split of few documents may leave none."""
        return self.valid is not None or (self.weights is not None and self.weights[1] > 0)

    @property
    def corpora(self) -> tuple[Corpus, ...]:
        """Training corpora, one or several, without those of weight 0."""
        if isinstance(self.train, str):
            return (Corpus(prefix=self.train),)
        return tuple(corpus for corpus in self.train if corpus.weight)


class MixtureSettings(Settings):
    """Data mixture: corpora in addition to the tokens of the data flow."""

    corpora: tuple[Corpus, ...] = ()
    """Token files made elsewhere with the same tokenizer. Identified by path: changed tokens need a new path."""
    weight: Weight = 1.0
    """Share of the tokens of the data flow, relative to the weights of `corpora`."""


class DocumentSettings(Settings):
    """Handling of document boundaries within a sample."""

    reset_positions: bool = False
    """Restart positions at 0 with each document."""
    mask_documents: bool = False
    """Restrict attention to the token's own document."""
    eod_mask_loss: bool = False
    """Exclude the prediction after each end-of-document token from the loss."""


class SampleSettings(Settings):
    """Text that the model writes at each validation; it needs the tokenizer, in the run folder or beside the tokens."""

    tokens: Annotated[int, Field(ge=0, le=512)] | None = None
    """Tokens to write; 0 writes none. None: 32, or none if weights are gathered or copied to the device for each
    forward (`parallel.zero` 3, `parallel.cpu_offload` of weights), since a token costs as much of that as a step."""
    prompt: str = Field("", max_length=2000)
    """Text to continue; by default the sample begins like a document."""
    temperature: float = Field(0.8, ge=0, le=10)
    """Temperature of sampling; 0 takes the most likely token."""
    seed: int = Field(0, ge=0, le=2**53 - 1)
    """Seed of sampling, the same at each validation; training does not depend on it."""


class TaskSelection(Settings):
    """Tasks that are scored as `gpt2train evaluate` scores them."""

    names: tuple[Place, ...] = ()
    """Tasks that come with the package (hellaswag, blimp, core, ...), or paths of TOML files; none by default."""
    data: Place | None = None
    """Folder of the tasks' data files, or the data file of one task."""
    limit: PositiveNumber | None = None
    """Items of each task that are scored; by default all."""
    partial: bool = False
    """Leave out the tasks of a suite that have no data."""

    @model_validator(mode="after")
    def _has_data(self) -> "TaskSelection":
        if self.names and self.data is None:
            raise ValueError("tasks.names needs tasks.data, the folder of the tasks' data files")
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            raise ValueError(f"tasks.names has {twice[0]} twice; give it once")
        return self


class TaskScoreSettings(TaskSelection):
    """Tasks that are scored during the training; rank 0 reads their data."""

    limit: PositiveNumber = 200
    """Items of each task that are scored, the same each time."""
    every: PositiveNumber = 1
    """Validations from one scoring to the next; the last step is always scored."""


class ValidationSettings(Settings):
    """Validation on a fixed set of samples, the same at every validation and on every layout."""

    interval: PositiveNumber = 250
    """Steps between validations; the last step is always validated."""
    samples: PositiveNumber = 256
    """Samples of the validation set; all of them if the data has fewer. Megatron-LM's `--eval-iters` are batches: 10 of
    8 samples are 80."""
    # Left out of a run's files by default, so that files and fingerprints of older runs stay the same.
    sample: SampleSettings = Field(SampleSettings(), exclude_if=lambda sample: sample == SampleSettings())
    """Sample text."""
    tasks: TaskScoreSettings = Field(TaskScoreSettings(), exclude_if=lambda tasks: not tasks.names)
    """Scores on tasks."""
    stop_at: dict[str, float] = Field({}, exclude_if=lambda values: not values)
    """Columns of a validation and the values at which the run ends, when it has reached all of them: from above for
    losses, bits per byte and perplexities, from below for all others. `{valid_task_core_centred = 0.2565}` ends a run
    that is as good as GPT-2."""

    @model_validator(mode="after")
    def _measured(self) -> "ValidationSettings":
        for column in self.stop_at:
            if not column.startswith("valid_"):
                raise ValueError(f"stop_at has {column!r}; the columns of a validation begin with valid_")
            if column.startswith("valid_task_") and not self.tasks.names:
                raise ValueError(f"stop_at has {column}, which is no score without tasks.names; give the tasks")
        return self
