"""Pages of the user, one a file, as a source of pages: checked and cut into batches, without a copy.

`webpages/part-00000-00000.parquet` (schema `index.INDEX`), with a rejected twin. A page is called by its file's name.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from gpt2train.settings import Settings
from tasks.inputs import InputFile, open_input
from tasks.runner import Runner
from tasks.shards import commit_rows, rejected_row
from tasks.sources.commit import commit_some
from tasks.sources.index import INDEX, index_row, where_of, whole_page, write_places
from tasks.sources.texts import grouped
from tasks.steps import Manifest, Outcome, Step, digest
from tasks.storage import Folder

ENDINGS = (".html", ".htm", ".xhtml")


class WebpagesSettings(Settings):
    """Which files are taken as pages."""

    max_bytes: int = Field(16 * 2**20, ge=1)
    """Bytes of one page, unpacked."""
    shard_rows: int = Field(1000, ge=1)
    """Pages a shard of the index; a shard is what the extraction takes, and repeats when killed, at a time."""
    shard_bytes: int = Field(256 * 2**20, ge=1)
    """Bytes of files after which a shard ends early."""


def webpages(root: Folder, files: Sequence[InputFile], settings: WebpagesSettings, runner: Runner) -> Manifest:
    """Index pages that are files into `webpages/`; one batch a shard.

    Raises:
        UserError: not one file can be used; the message counts the reasons.
    """
    step = Step(
        root,
        "webpages",
        version=1,
        parameters=settings,
        inputs={"files": digest([[file.name, file.identity] for file in files])},
    )
    batches = grouped(files, settings.shard_rows, settings.shard_bytes)
    write_places(step.folder, batches)
    if done := runner.finished(step):
        return done
    total = Outcome.total(runner.batches(step, "part", batches, webpages_part, settings, where=where_of(root, files)))
    return commit_some(step, total, "the pages given with --documents cannot be used", "no pages")


def webpages_part(folder: Folder, name: str, files: Sequence[InputFile], settings: WebpagesSettings) -> Outcome:
    """Index some files; runs in a worker."""
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    for file in files:
        with open_input(file.place) as stream:
            body = stream.read(settings.max_bytes + 1)
        row = {"url": file.name, "source": file.name}
        if len(body) > settings.max_bytes:
            rejected.append(rejected_row(row, "too_large", f"{file.name}: more than {settings.max_bytes:,} bytes"))
        elif not body.strip():
            rejected.append(rejected_row(row, "empty", f"{file.name}: nothing but spaces"))
        else:
            kept.append(index_row(file, whole_page(file.name, file.name, body)))
    facts = {"bytes": sum(row["bytes"] for row in kept)}
    return commit_rows(folder, f"{name}-00000.parquet", kept, rejected, INDEX, facts)
