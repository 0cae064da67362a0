"""Documents for tests of the corpus steps: rows of schema CLEAN cut into shards, with a manifest."""

import concurrent.futures
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import CLEAN, DOCUMENT, commit_rows, read_rows
from tasks.core.step import Step
from tasks.core.worker_pool import WorkerPool


class InlinePool(WorkerPool):
    """Pool that calls in this process: spawning would take most of the time of a small test."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def submit(self, function: Callable[..., Any], *args: Any, **_limits: float | None) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - as a pool would hand it on
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


class Inline(Runner):
    """Runs every batch in a thread of this process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pool = InlinePool(1)

    def batches(self, *args: Any, **options: Any) -> list[Outcome]:
        return super().batches(*args, **{**options, "where": "thread"})


def row(text: str, url: str = "", document_id: str = "", split: str | None = "train") -> dict[str, Any]:
    """A document; id and URL are derived from the text if not given."""
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return {
        "id": document_id or digest,
        "url": url or f"http://example.org/{digest}",
        "text": text,
        "source": "test",
        "language": "en",
        "tokens": len(text.split()),
        "split": split,
    }


def documents_of(root: Folder, rows: list[dict[str, Any]], per_shard: int = 1000) -> Manifest:
    return shards_of(root, [rows[i : i + per_shard] for i in range(0, len(rows), per_shard)] or [[]])


def shards_of(
    root: Folder,
    shards: Iterable[list[dict[str, Any]]],
    name: str = "clean",
    schema: pa.Schema = CLEAN,
    folder: str | None = None,
    **parameters: Any,
) -> Manifest:
    step = Step(root, name, version=1, parameters=parameters, inputs={}, folder=folder)
    step.begin()
    outcomes = [commit_rows(step.folder, f"part-{n:05d}.parquet", rows, [], schema) for n, rows in enumerate(shards)]
    return step.commit(Outcome.total(outcomes))


def cleaned(root: Folder, *shards: Sequence[tuple[str, str]], min_tokens: int = 20) -> Manifest:
    """A finished step `clean` of documents that are given as text and split."""
    rows = [
        [
            {"id": f"{number}-{n}", "url": f"http://a.example/{number}/{n}", "text": text, "tokens": 1, "split": split}
            for n, (text, split) in enumerate(shard)
        ]
        for number, shard in enumerate(shards)
    ]
    return shards_of(root, rows, min_tokens=min_tokens)


def extracted(root: Folder, *shards: list[dict[str, Any]], **parameters: Any) -> Manifest:
    return shards_of(root, shards, "extract", DOCUMENT, "documents", **parameters)


def rows_of(root: Folder, manifest: Manifest) -> list[dict[str, Any]]:
    return [found for record in manifest.outputs for found in read_rows(root / manifest.folder, record.name)]


def rejected_of(root: Folder, manifest: Manifest) -> list[dict[str, Any]]:
    return [found for record in manifest.outcome.rejected for found in read_rows(root / manifest.folder, record.name)]


def content_of(root: Folder, manifest: Manifest) -> dict[str, str]:
    return {record.name: record.sha256 for record in manifest.outcome.files}


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from map(json.loads, file)


def texts_of(path: Path, count: int) -> list[str]:
    return [found["text"] for found in islice(read_jsonl(path), count)]


def real_texts(open_data: Path) -> list[str]:
    """251 texts of up to 1,000 characters: 100 news articles, 100 speeches, 51 passages in as many languages."""
    texts = texts_of(open_data / "neardup/minhash_articles_100.jsonl", 100)
    texts += texts_of(open_data / "text/speeches_dev.jsonl.gz", 100)
    texts += texts_of(open_data / "lang/udhr_lang_dev.jsonl.gz", 700)[::14]
    return [text[:1000] for text in texts]


def pieces_of_novels(open_data: Path, count: int) -> list[str]:
    """The first pieces of 1,500 characters of five novels, one after the other."""
    novels = texts_of(open_data / "text/novels_dev.jsonl.gz", 5)
    pieces = [text[start : start + 1500] for text in novels for start in range(0, 99_000, 1500)]
    return pieces[:count]
