"""What an output holds of the pages to remove: rows of every step, documents, tokens, duplicates and their texts."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from gpt2train.errors import RunError
from gpt2train.settings import Record
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.inner_path import InnerPath
from gpt2train.store.manifest import MANIFEST, Outcome
from gpt2train.store.output import COPIES, Output
from tasks.core.forgotten import URL_COLUMNS, Forgotten, url_hash
from tasks.outputs.forget.archives import archive_urls

BATCHES = "/_batches/"
KEEPER = ("kept_url",)  # columns that name the page kept in place of another
SOURCES = ("discover", "blacklist", "download", "commoncrawl", "warcs", "webpages", "texts")
FROM_FILES = ("blacklist", "warcs", "webpages", "texts")  # steps that read files of the user
RUNS = ("runs/", "task/", COPIES)


class StepCount(Record):
    """Rows of the pages in one step."""

    step: str
    folder: InnerPath
    kept: int = 0  # rows of its outputs: URLs, pages, documents
    rejected: int = 0
    other: int = 0  # rows of ledgers, clusters and other files for inspection
    files: tuple[InnerPath, ...] = ()


class Found(Record):
    """Pages of a removal in an output."""

    urls: tuple[str, ...] = ()  # URLs in the forms that occur, sorted
    redirected: tuple[str, ...] = ()  # URLs that were redirected to them, sorted; only their pages are removed
    documents: tuple[str, ...] = ()  # ids of documents, sorted
    tokens: dict[str, int] = {}  # tokens of these documents by split
    steps: tuple[StepCount, ...] = ()
    orphans: tuple[str, ...] = ()  # URLs of documents that were dropped as copies of one of the pages, sorted
    user_files: tuple[str, ...] = ()  # names of the user's files that have the pages, sorted
    texts: tuple[str, ...] = ()  # distinct texts of the pages, and their forms in tokens


def find_pages(output: Output, wanted: Forgotten) -> Found:
    """Search every file that a manifest names.

    Documents are found by the URLs that were redirected to the pages too, rows of steps that take pages from outside
    are not.
    """
    redirected = {
        row["url"]
        for manifest in output.manifests.values()
        if manifest.step in SOURCES
        for _, record in _records(manifest.outcome)
        for row in rows_of(output.root / manifest.folder, record, wanted)
        if row.get("url") and not wanted.matches(row["url"])
    }
    pages = wanted.united(Forgotten(urls=tuple(sorted(map(url_hash, redirected)))))
    urls, documents, orphans, user_files, texts = set[str](), set[str](), set[str](), set[str](), dict[str, None]()
    tokens, steps = Counter[str](), list[StepCount]()
    for folder, manifest in output.manifests.items():
        meant = wanted if manifest.step in SOURCES else pages
        counts, names = Counter[str](), list[str]()
        for kind, record in _records(manifest.outcome):
            rows = []
            for row in rows_of(output.root / manifest.folder, record, meant):
                if meant.matches_row(row):
                    rows.append(row)
                elif row.get("url"):
                    orphans.add(row["url"])
            urls.update(
                row[name] for row in rows for name in URL_COLUMNS if row.get(name) and wanted.matches(row[name])
            )
            texts |= {row["text"]: None for row in rows if row.get("text")}
            if kind == "kept":
                documents.update(row[name] for row in rows for name in ("id", "doc_id") if row.get(name))
            if manifest.step in FROM_FILES:
                user_files.update(row["source"] for row in rows if row.get("source"))
            for row in rows:
                if manifest.step == "tokenize" and "end" in row:
                    tokens[record.name.partition("/")[0]] += row["end"] - row["start"]
            counts[kind] += len(rows)
            names += [record.name] if rows else []
        if names:
            steps.append(StepCount(step=manifest.step, folder=folder, files=tuple(names), **counts))
    return Found(
        urls=tuple(sorted(urls)),
        redirected=tuple(sorted(redirected)),
        documents=tuple(sorted(documents)),
        tokens=dict(sorted(tokens.items())),
        steps=tuple(steps),
        orphans=tuple(sorted(orphans - urls - redirected)),
        user_files=tuple(sorted(user_files)),
        texts=tuple(texts),
    )


def rows_of(folder: Folder, record: FileRecord, wanted: Forgotten) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file that are of the pages, and those of documents dropped as copies of them."""
    if record.name.endswith(".warc.gz"):
        for urls in archive_urls(folder, record.name):
            if wanted.matches(*urls):
                yield dict(zip(URL_COLUMNS, (urls[-1], urls[0]), strict=True))
    elif record.name.endswith(".parquet"):
        try:
            with folder.open(record.name) as file:
                yield from _matching(pq.ParquetFile(file), wanted)
        except FileNotFoundError:
            return  # removed by a removal that was killed
        except (OSError, ValueError) as error:
            raise RunError(f"{folder.url}/{record.name} cannot be read: {error}; run the flow with --verify") from error


def _matching(file: pq.ParquetFile, wanted: Forgotten) -> Iterator[dict[str, Any]]:
    names = [name for name in (*URL_COLUMNS, *KEEPER) if name in file.schema_arrow.names]
    if not names:
        return
    for group in range(file.num_row_groups):
        columns = file.read_row_group(group, columns=names).to_pylist()
        chosen = [number for number, row in enumerate(columns) if wanted.matches(*row.values())]
        if chosen:
            yield from file.read_row_group(group).take(chosen).to_pylist()


def _records(outcome: Outcome) -> Iterator[tuple[str, FileRecord]]:
    for kind, records in (("kept", outcome.outputs), ("rejected", outcome.rejected), ("other", outcome.audit)):
        for record in records:
            yield kind, record


def unfinished(output: Output) -> list[str]:
    """Return the folders of steps that have committed batches and no manifest, or a journal of fetched pages."""
    found = {name.partition(BATCHES)[0] for name in output.sizes if BATCHES in name}
    found |= {name.partition("/_journal/")[0] for name in output.sizes if "/_journal/" in name}
    return sorted(name for name in found if f"{name}/{MANIFEST}" not in output.sizes and not name.startswith(RUNS))
