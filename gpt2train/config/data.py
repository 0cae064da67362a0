"""Settings of token files, data mixture, document boundaries and validation."""

from pydantic import Field, field_validator

from gpt2train.settings import PositiveNumber, Settings


class Corpus(Settings):
    """One corpus of a data mixture."""

    prefix: str
    """Path of the token files (`.bin/.idx`) without extension."""
    weight: float = Field(1.0, ge=1e-9, le=1e9)
    """Share of the samples, relative to the other corpora's weights."""


class DataSettings(Settings):
    """Token files (`.bin/.idx`), named by their path without extension."""

    train: str | tuple[Corpus, ...]
    """Prefix of the training tokens, or several corpora with their weights."""
    valid: str | None = None
    """Prefix of the validation tokens; None trains without validation."""
    cache: str | None = None
    """Folder in which the sample order of corpora of more than about a million documents is cached, also for other
    runs; None: `index/` in the run folder."""

    @field_validator("train")
    @classmethod
    def _not_empty(cls, value: str | tuple[Corpus, ...]) -> str | tuple[Corpus, ...]:
        if not value:
            raise ValueError("at least one corpus is needed: a prefix, or a list of {prefix, weight}")
        return value

    @property
    def corpora(self) -> tuple[Corpus, ...]:
        """Training corpora, one or several."""
        return (Corpus(prefix=self.train),) if isinstance(self.train, str) else self.train


class MixtureSettings(Settings):
    """Data mixture: corpora in addition to the tokens of the data flow."""

    corpora: tuple[Corpus, ...] = ()
    """Token files made elsewhere with the same tokenizer. Identified by path: changed tokens need a new path."""
    weight: float = Field(1.0, ge=1e-9, le=1e9)
    """Share of the tokens of the data flow, relative to the weights of `corpora`."""


class DocumentSettings(Settings):
    """Handling of document boundaries within a sample."""

    reset_positions: bool = False
    """Restart positions at 0 with each document."""
    mask_documents: bool = False
    """Restrict attention to the token's own document."""
    eod_mask_loss: bool = False
    """Exclude the prediction after each end-of-document token from the loss."""


class ValidationSettings(Settings):
    """Validation on a fixed set of samples, the same at every validation and on every layout."""

    interval: PositiveNumber = 250
    """Steps between validations; the last step is always validated."""
    samples: PositiveNumber = 256
    """Samples of the validation set; all of them if the data has fewer."""
