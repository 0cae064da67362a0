"""Settings of the cleaning."""

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.filters.filter_chain import FilterSettings
from tasks.clean.language import LanguageSettings
from tasks.clean.splits import SplitSettings


class CleanSettings(Settings):
    """Conditions that a document must meet to be kept."""

    min_tokens: int = Field(128, ge=0)
    """Minimum tokens of a document. Counted with the tokenizer if it is known, else as pieces of the pre-tokenizer of
    GPT-2, a lower bound, and as letters in scripts without spaces between words. The end-of-text token is not counted
    (Megatron counts it, so its 128 equal 127 here)."""
    straight_quotes: bool = True
    """Replace curly quotes by straight ones, the default of ftfy, but not in texts and lines mostly in scripts without
    spaces between words."""
    language: LanguageSettings = LanguageSettings()
    """Language test."""
    filters: FilterSettings = FilterSettings()
    """Opt-in quality filters; all are off by default."""
    split: SplitSettings = SplitSettings()
    """Shares of the train, valid and test splits."""
