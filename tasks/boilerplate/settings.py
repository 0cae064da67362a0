"""Settings of the removal of repeated lines."""

from pydantic import Field

from gpt2train.settings import Settings


class BoilerplateSettings(Settings):
    """Lines that are removed because many documents of one host have them."""

    enabled: bool = False
    """Run the step, before cleaning. Documents whose URL has no host are unchanged."""
    min_documents: int = Field(10, ge=2)
    """Minimum documents of a host that have a line, for the line to be removed from all of them."""
    min_share: float = Field(0.3, gt=0, le=1)
    """Minimum share of the documents of the host that have the line."""
    min_letters: int = Field(16, ge=1)
    """Minimum letters of such a line, counted in its first 100 characters; shorter lines stay, as headings, brackets
    and short statements of code repeat too."""
