"""The texts step: the user's JSON lines, Parquet, WET and text files -> documents.

`texts/part-00000-00000.parquet`, schema `shards.DOCUMENT`, in the order of the files and of their records, with a file
of rejected rows. A record without a URL gets `<file>#<id>` or `<file>#<row>`; a text file gets its name.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from gpt2train.settings import Settings
from tasks.core.document import document_id
from tasks.core.input_files import InputFile
from tasks.core.runner import Runner
from tasks.core.shards import DOCUMENT, commit_rows, rejected_row
from tasks.core.step import Manifest, Outcome, Step, digest
from tasks.core.storage import Folder
from tasks.sources.commit import commit_some
from tasks.sources.index import where_of
from tasks.sources.text_records import Item, read_items


class TextsSettings(Settings):
    """Settings of the texts step: size limits and shard sizes."""

    max_bytes: int = Field(16 * 2**20, ge=1)
    """Maximum bytes of one JSON line, text or text file; longer ones are rejected without being read into memory."""
    shard_rows: int = Field(5000, ge=1)
    """Documents per shard. A shard is one batch of the cleaning, and is repeated after a kill."""
    shard_bytes: int = Field(64 * 2**20, ge=1)
    """Characters of text after which a shard ends early, because it is held in memory."""


def texts(root: Folder, files: Sequence[InputFile], key: str, settings: TextsSettings, runner: Runner) -> Manifest:
    """Read text records into `texts/`; a batch is a large file or as many small files as fill a shard.

    Args:
        root: Output URL.
        files: Files with suffixes of `text_records.ENDINGS`.
        key: Key of the text in JSON and Parquet.
        settings: Size limits and shard sizes.
        runner: Runner of the batches.

    Raises:
        UserError: A file does not have the format of its suffix, or no record is usable; the message has the counts of
            the reasons.
    """
    step = Step(
        root,
        "texts",
        version=1,
        parameters=settings.model_dump(mode="json") | {"key": key},
        inputs={"files": digest([[file.name, file.identity] for file in files])},
        packages=("orjson",),
    )
    if done := runner.finished(step):
        return done
    batches = grouped(files, settings.shard_rows, settings.shard_bytes)
    total = Outcome.total(runner.batches(step, "part", batches, texts_part, key, settings, where=where_of(root, files)))
    return commit_some(step, total, "the files given with --documents hold no text that can be used", "no records")


def grouped(files: Sequence[InputFile], count: int, size: int) -> list[tuple[InputFile, ...]]:
    """Partition files in their order into groups of at most `count` files and about `size` bytes."""
    groups: list[list[InputFile]] = []
    held = size
    for file in files:
        if held >= size or len(groups[-1]) >= count:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += file.bytes or size
    return [tuple(group) for group in groups]


def texts_part(folder: Folder, name: str, files: Sequence[InputFile], key: str, settings: TextsSettings) -> Outcome:
    """Read the files of one batch; runs in a worker."""
    outcomes: list[Outcome] = []
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    held = 0

    def flush() -> None:
        shard = f"{name}-{len(outcomes):05d}.parquet"
        outcomes.append(commit_rows(folder, shard, kept, rejected, DOCUMENT, {"characters": held}))
        kept.clear()
        rejected.clear()

    for file, item in _items(files, key, settings.max_bytes):
        if len(kept) + len(rejected) >= settings.shard_rows or held >= settings.shard_bytes:
            flush()
            held = 0
        row = document(file, item)
        if item.reason is None:
            kept.append(row)
            held += len(item.text)
        else:
            where = ", ".join(filter(None, (file.name, item.location)))
            rejected.append(rejected_row(row, item.reason, f"{where}: {item.detail}"))
    if kept or rejected or not outcomes:
        flush()
    return Outcome.total(outcomes)


def _items(files: Sequence[InputFile], key: str, max_bytes: int) -> Iterator[tuple[InputFile, Item]]:
    for file in files:
        if fault := file.fault or vanished(file):
            yield file, Item("", reason="unreadable", detail=fault)
            continue
        for item in read_items(file, key, max_bytes):
            yield file, item


def vanished(file: InputFile) -> str | None:
    """Return the reason for which a local file can no longer be opened; None if it can."""
    if "://" in file.location:
        return None
    try:
        Path(file.location).open("rb").close()
    except OSError as error:
        return f"{error.strerror or error} since the run began"
    return None


def document(file: InputFile, item: Item) -> dict[str, Any]:
    """Return a record's row of schema `shards.DOCUMENT`.

    `id` is always the hash of the content, since dedup and shuffle depend on it.
    """
    fragment = item.fields.get("id") or item.location.rpartition(" ")[2].replace(",", "")
    url = item.fields.get("url") or (f"{file.name}#{fragment}" if fragment else file.name)
    row = {"url": url, "source": file.name, "title": item.fields.get("title"), "date": item.fields.get("date")}
    return row | ({} if item.reason else {"id": document_id(url, item.text), "text": item.text})
