"""Texts of the user as documents: JSON lines, Parquet, WET, and files that are one text each.

`texts/part-00000-00000.parquet`, schema `shards.DOCUMENT`, in the order of the files and of the records in them, with a
rejected twin. A record without a URL is called `<file>#<id>`, or `<file>#<row>`; a text file by its name.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from gpt2train.settings import Settings
from tasks.extract import document_id
from tasks.inputs import InputFile
from tasks.runner import Runner
from tasks.shards import DOCUMENT, commit_rows, rejected_row
from tasks.sources.commit import commit_some
from tasks.sources.index import where_of
from tasks.sources.rows import Item, read_items
from tasks.steps import Manifest, Outcome, Step, digest
from tasks.storage import Folder


class TextsSettings(Settings):
    """How texts are read from files, and cut into shards."""

    max_bytes: int = Field(16 * 2**20, ge=1)
    """Bytes of one JSON line, text or text file; what is longer is rejected without being held."""
    shard_rows: int = Field(5000, ge=1)
    """Documents a shard; a shard is what the cleaning takes, and repeats when killed, at a time."""
    shard_bytes: int = Field(64 * 2**20, ge=1)
    """Characters of text after which a shard ends early: it is held in memory."""


def texts(root: Folder, files: Sequence[InputFile], key: str, settings: TextsSettings, runner: Runner) -> Manifest:
    """Read loose texts into `texts/`; one batch a large file, or as many small ones as make a shard.

    Args:
        root: the output URL.
        files: each of a kind that `rows` knows.
        key: of the text, in JSON and Parquet.
        settings: bounds and sizes.
        runner: where the batches run.

    Raises:
        UserError: a file is not what its name says, or not one record can be used; the message counts the reasons.
    """
    step = Step(
        root,
        "texts",
        version=1,
        parameters=settings.model_dump(mode="json") | {"key": key},
        inputs={"files": digest([[file.name, file.identity] for file in files])},
        packages=("orjson", "pyarrow"),
    )
    if done := runner.finished(step):
        return done
    batches = grouped(files, settings.shard_rows, settings.shard_bytes)
    total = Outcome.total(runner.batches(step, "part", batches, texts_part, key, settings, where=where_of(root, files)))
    return commit_some(step, total, "the files given with --documents hold no text that can be used", "no records")


def grouped(files: Sequence[InputFile], count: int, size: int) -> list[tuple[InputFile, ...]]:
    """Files in their order, together as long as they are fewer than `count` and smaller than `size` bytes in all."""
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
    """Read some files; runs in a worker."""
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
            where = ", ".join(filter(None, (file.name, item.place)))
            rejected.append(rejected_row(row, item.reason, f"{where}: {item.detail}"))
    if kept or rejected or not outcomes:
        flush()
    return Outcome.total(outcomes)


def _items(files: Sequence[InputFile], key: str, max_bytes: int) -> Iterator[tuple[InputFile, Item]]:
    for file in files:
        for item in read_items(file, key, max_bytes):
            yield file, item


def document(file: InputFile, item: Item) -> dict[str, Any]:
    """The row of a record, schema `shards.DOCUMENT`; `id` is always that of the content, since dedup and shuffle go
    by it."""
    place = item.fields.get("id") or item.place.rpartition(" ")[2].replace(",", "")
    url = item.fields.get("url") or (f"{file.name}#{place}" if place else file.name)
    row = {"url": url, "source": file.name, "title": item.fields.get("title"), "date": item.fields.get("date")}
    return row | ({} if item.reason else {"id": document_id(url, item.text), "text": item.text})
