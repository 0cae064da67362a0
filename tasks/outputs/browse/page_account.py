"""Account of the page behind a document: its parts, kept or dropped, and the rule of each."""

from typing import TYPE_CHECKING

from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import Manifest
from gpt2train.store.output import FinishedStep, MissingInputError, Output
from gpt2train.store.rows import Row
from tasks.extract.settings import ACCOUNTED_ENGINE

if TYPE_CHECKING:
    from tasks.download.warc import Page


def accounted_step(steps: list[FinishedStep]) -> FinishedStep | None:
    """Extraction of an output whose pages can be explained; None if it has none."""
    found = (step for step in steps if step.manifest.step == "extract")
    return next((step for step in found if step.manifest.parameters.get("engine") == ACCOUNTED_ENGINE), None)


def account_of(output: Output, identity: str, url: str) -> Row:
    """Account of the page of a document, or of a page without one, by its URL.

    Raises:
        UserError: the output has no such page, or it is gone.
    """
    from tasks.extract.account import account_fragment, page_account

    if (step := accounted_step(output.steps)) is None:
        raise UserError("this output has no extraction with the engine structure; give that of a flow that reads pages")
    stage = step.stage(step.columns(), identity, url)
    if stage.row is None or stage.place is None:
        raise UserError(f"the extraction has no page of {identity or url}; look for a part of its URL or text")
    page = _page(output, step.manifest, stage.place.file.rpartition("/")[2], stage.row["url"])
    found = page_account(page, bool(step.manifest.parameters.get("tables", True)))
    if found is None:
        raise UserError(f"{page.url} has no markup, so that there is nothing to explain")
    encoding, text, parts = found
    return {"url": page.url, "encoding": encoding, "characters": len(text), "html": account_fragment(parts)}


def _page(output: Output, made: Manifest, file: str, url: str) -> "Page":
    """Page of a URL in the shard that a file of the extraction was made of."""
    from tasks.sources.index import pages_behind

    gone = f"the page of {url} is no longer there; run the data flow again to restore it"
    try:
        pages = output.input(made, "download")
        found = next((page for page in pages_behind(output.root, pages, file) if page.url == url), None)
    except (MissingInputError, RunError, FileNotFoundError, ValueError, IndexError) as error:
        raise UserError(gone) from error
    if found is None or found.fault:
        raise UserError(gone)
    return found
