"""Types sent to and returned by the extraction workers; importing them loads no HTML library."""

from typing import Literal, NamedTuple

WORKER_OUTGROWN = 86  # exit code of a worker that refuses a call because its memory has grown

Compare = Literal["doubtful", "always", "never"]


class PrefilterRules(NamedTuple):
    """Rules by which the prefilter predicts whether cleaning drops a page."""

    min_tokens: int
    """Minimum tokens of a document (`clean.min_tokens`)."""
    languages: tuple[str, ...]
    """Languages that cleaning keeps (`clean.language.keep`)."""
    share: float
    """Minimum probability of these languages together in any sample of the text."""


class ExtractOptions(NamedTuple):
    """Options of the extraction of one page."""

    fallbacks: Compare = "doubtful"
    """When trafilatura compares its text with those of readability and justext."""
    tables: bool = True
    """Keep the text of tables."""
    dates: bool = False
    """Search the publication date if the page does not state it. The day of the fetch is the upper bound: without a
    bound the result would depend on the day of the extraction."""
    detect_soft_404: bool = True
    """Reject soft 404s, parked domains and placeholders."""
    wanted: PrefilterRules | None = None
    """Rules of the prefilter: pages that cleaning is certain to drop are not extracted. None: extract all."""
    memory_mb: int | None = None
    """Megabytes of address space that a call may add to the worker; None: no limit."""
    worker_recycle_mb: int | None = None
    """Megabytes by which the worker may grow before it is replaced; None: never."""


class ExtractResult(NamedTuple):
    """Main text and metadata of a page, or the reason of its rejection."""

    text: str = ""
    title: str | None = None
    date: str | None = None
    """ISO date of publication."""
    language: str | None = None
    """Language stated by the page (ISO 639); it may be wrong."""
    reason: str | None = None
    """Reason code of the rejection; None: the page has a main text."""
    detail: str = ""
    """Details of the rejection for a reader."""
