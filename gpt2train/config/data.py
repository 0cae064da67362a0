"""Token files, and how samples are made of them."""

from pydantic import Field, PositiveInt, field_validator

from gpt2train.settings import Settings


class Corpus(Settings):
    """One of several corpora that are mixed."""

    prefix: str
    """Token files (`.bin/.idx`), named without their ending."""
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Share of the samples, relative to the other corpora's weights."""


class DataSettings(Settings):
    """Token files (`.bin/.idx`), named without their ending."""

    train: str | tuple[Corpus, ...]
    """Prefix of the training tokens, or several corpora with their weights."""
    valid: str | None = None
    """Prefix of the validation tokens; None trains without validation."""
    cache: str | None = None
    """Folder where the order of a corpus of more than about a million documents is kept, for other runs to use as well;
    None: `index/` in the run folder."""

    @field_validator("train")
    @classmethod
    def _not_empty(cls, value: str | tuple[Corpus, ...]) -> str | tuple[Corpus, ...]:
        if not value:
            raise ValueError("at least one corpus is needed: a prefix, or a list of {prefix, weight}")
        return value

    @property
    def corpora(self) -> tuple[Corpus, ...]:
        """The training corpora, one or several."""
        return (Corpus(prefix=self.train),) if isinstance(self.train, str) else self.train


class MixSettings(Settings):
    """Corpora beside the tokens that the data flow made."""

    corpora: tuple[Corpus, ...] = ()
    """Token files made elsewhere with the same tokenizer. They are known by their path: changed tokens need another."""
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Share of the flow's own tokens, relative to the weights of `corpora`."""


class SampleSettings(Settings):
    """What a sample that crosses documents shows of it."""

    reset_positions: bool = False
    """Positions begin anew with each document."""
    mask_documents: bool = False
    """A token attends within its own document only."""
    eod_mask_loss: bool = False
    """Predicting what follows the end of a document counts nothing."""


class ValidationSettings(Settings):
    """Loss on a fixed set, the same at every validation and on every layout."""

    every: PositiveInt = 250
    """Steps between validations; the last step is always validated."""
    samples: PositiveInt = 256
    """Samples of the set; all there are when the data has fewer."""
