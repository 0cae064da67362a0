"""What goes to the workers that take pages apart, and what comes back; the libraries that do it stay in the workers."""

from typing import Literal, NamedTuple

WORN = 86  # exit code of a worker that hands its call back, because it has grown

Compare = Literal["doubtful", "always", "never"]


class Wanted(NamedTuple):
    """What cleaning will keep."""

    min_tokens: int
    languages: tuple[str, ...]
    share: float
    """Probability of these languages together from which a place could be one of them."""


class Recipe(NamedTuple):
    """How pages are taken apart."""

    compare: Compare = "doubtful"
    """Which texts trafilatura compares with those of readability and justext."""
    tables: bool = True
    """Keep the text of tables."""
    dates: bool = False
    """Search the publication date, up to the day of the fetch, where the page does not state it. Without such a bound
    the answer would depend on the day of the extraction."""
    flags: bool = True
    """Reject soft 404s, parked domains and placeholders."""
    wanted: Wanted | None = None
    """What cleaning keeps: pages that it would surely drop are not extracted. None extracts all."""
    memory_mb: int | None = None
    """Megabytes of address space that a call may add to the worker."""
    worn_mb: int | None = None
    """Megabytes by which the worker may grow before it is replaced."""


class Extracted(NamedTuple):
    """What a page holds, or why it holds nothing (`reason` is None where it does)."""

    text: str = ""
    title: str | None = None
    date: str | None = None
    language: str | None = None
    reason: str | None = None
    detail: str = ""
