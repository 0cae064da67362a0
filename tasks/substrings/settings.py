"""Settings of the removal of repeated runs of words."""

from pydantic import Field

from gpt2train.settings import Settings


class SubstringSettings(Settings):
    """Runs of words that are removed where they repeat."""

    enabled: bool = False
    """Run the step, after the deduplication of whole documents."""
    min_words: int = Field(50, ge=8, le=1000)
    """Minimum words of a repeated run. All but its first occurrence are removed, within a document too. Case and
    punctuation count, white space does not; in scripts without spaces between words each letter is a word."""
