"""Settings of the extraction, and what its workers return; importing them loads no HTML library."""

from typing import Literal, NamedTuple

from pydantic import Field

from gpt2train.settings import Settings

WORKER_OUTGROWN = 86  # exit code of a worker that refuses a call because its memory has grown

Engine = Literal["trafilatura", "structure"]
ACCOUNTED_ENGINE: Engine = "structure"  # its rules are known, so that dropped parts have an account


class ExtractSettings(Settings):
    """Settings of the main text extraction."""

    engine: Engine = "structure"
    """Program that finds the main text. `structure`: this project's own, by the containers, links and classes of the
    page; keeps lists, tables and code as they are. `trafilatura`: that library's text, at a third of the speed."""
    tables: bool = True
    """Keep the text of tables."""
    dates: bool = False
    """Search the page for a publication date if its tags do not state one; slow."""
    prefilter: bool = True
    """Skip pages that cleaning is certain to drop: the whole text is too short for `clean.min_tokens`, or no sample of
    it could be in a language of `clean.language.keep`."""
    prefilter_min_prob: float = Field(0.1, gt=0, le=1)
    """The prefilter accepts a page if the kept languages together reach this probability in any sample of its text."""
    detect_soft_404: bool = True
    """Reject pages without content that were sent with status 200: soft 404s, parked domains, placeholders."""
    deadline: float = Field(30.0, gt=0, le=3600)
    """CPU seconds per page before its worker is killed, independent of the load of the machine; an average page takes
    0.05. The wall clock limit is 20 times as long."""
    memory_mb: int | None = Field(2048, ge=256)
    """Megabytes of address space that one page may use on top of the idle worker; none: no limit."""
    worker_recycle_mb: int | None = Field(1024, ge=64)
    """Megabytes by which a worker may grow before it is replaced; none: never."""
    max_crashed: float = Field(0.5, gt=0, le=1)
    """Stop the step if more than this share of the pages of a shard crash: the cause is then the machine, not the
    pages."""


class PrefilterRules(Settings):
    """Rules by which the prefilter predicts whether cleaning drops a page."""

    min_tokens: int
    """Minimum tokens of a document (`clean.min_tokens`)."""
    languages: tuple[str, ...]
    """Languages that cleaning keeps (`clean.language.keep`)."""
    share: float
    """Minimum probability of these languages together in any sample of the text."""


class ExtractOptions(ExtractSettings):
    """Settings of the extraction, with those of the cleaning that the prefilter applies."""

    wanted: PrefilterRules | None = None
    """Rules of the prefilter: pages that cleaning is certain to drop are not extracted. None: extract all."""


class ExtractResult(NamedTuple):
    """Main text and metadata of a page, or the reason of its rejection."""

    text: str = ""
    title: str | None = None
    date: str | None = None  # ISO date of publication
    language: str | None = None  # language stated by the page (ISO 639); it may be wrong
    reason: str | None = None  # reason code of the rejection; None: the page has a main text
    detail: str = ""  # details of the rejection for a reader
    by_fetch_day: bool = False
    """The day of the fetch, the latest possible date of the page, has shaped the date or its lack."""
