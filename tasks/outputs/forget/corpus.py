"""What an output holds of the pages to remove: rows of every step, documents, tokens, duplicates and their texts."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from gpt2train.errors import RunError
from gpt2train.settings import Record
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.inner_path import InnerPath
from gpt2train.store.manifest import MANIFEST, Manifest, Outcome
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
    kept: int = 0
    """Rows of its outputs: URLs, pages, documents."""
    rejected: int = 0
    other: int = 0
    """Rows of ledgers, clusters and other files for inspection."""
    files: tuple[InnerPath, ...] = ()


class Found(Record):
    """Pages of a removal in an output."""

    urls: tuple[str, ...] = ()
    """URLs in the forms that occur, sorted."""
    redirected: tuple[str, ...] = ()
    """URLs that were redirected to them, sorted; only their pages are removed."""
    documents: tuple[str, ...] = ()
    """Ids of documents, sorted."""
    tokens: dict[str, int] = {}
    """Tokens of these documents by split."""
    steps: tuple[StepCount, ...] = ()
    orphans: tuple[str, ...] = ()
    """URLs of documents that were dropped as copies of one of the pages, sorted."""
    user_files: tuple[str, ...] = ()
    """Names of the user's files that have the pages, sorted."""
    texts: tuple[str, ...] = ()
    """Distinct texts of the pages, and their forms in tokens."""


def find_pages(output: Output, wanted: Forgotten) -> Found:
    """Search every file that a manifest names."""
    redirected = {
        row["url"]
        for folder, manifest in output.manifests.items()
        if manifest.step in SOURCES
        for _, record in _records(manifest.outcome)
        for row in rows_of(output.root / manifest.folder, record, wanted)
        if row.get("url") and not wanted.matches(row["url"])
    }
    pages = wanted.united(Forgotten(urls=tuple(sorted(map(url_hash, redirected)))))
    search = _Search(wanted, pages)
    for folder, manifest in output.manifests.items():
        search.add(output.root / manifest.folder, folder, manifest)
    return search.found(redirected)


class _Search:
    """Sums over the steps of an output.

    Args:
        wanted: URLs and domains, by which the rows of steps that take pages from outside are found.
        pages: the same and the URLs that were redirected to them, by which documents are found.
    """

    def __init__(self, wanted: Forgotten, pages: Forgotten) -> None:
        self._wanted, self._pages = wanted, pages
        self._urls, self._documents, self._orphans, self._files = set[str](), set[str](), set[str](), set[str]()
        self._texts: dict[str, None] = {}
        self._tokens: Counter[str] = Counter()
        self._steps: list[StepCount] = []

    def add(self, place: Folder, folder: str, manifest: Manifest) -> None:
        """Add the rows of one step."""
        counts: Counter[str] = Counter()
        names = []
        meant = self._wanted if manifest.step in SOURCES else self._pages
        for kind, record in _records(manifest.outcome):
            found = list(rows_of(place, record, meant))
            rows = [row for row in found if meant.matches_row(row)]
            self._orphans.update(row["url"] for row in found if row.get("url") and not meant.matches_row(row))
            for row in rows:
                self._add_row(row, kind, manifest, record.name)
            counts[kind] += len(rows)
            names += [record.name] if rows else []
        if names:
            self._steps.append(StepCount(step=manifest.step, folder=folder, files=tuple(names), **counts))

    def _add_row(self, row: Mapping[str, Any], kind: str, manifest: Manifest, name: str) -> None:
        self._urls.update(row[name] for name in URL_COLUMNS if row.get(name) and self._wanted.matches(row[name]))
        if row.get("text"):
            self._texts[row["text"]] = None
        if kind == "kept":
            self._documents.update(row[name] for name in ("id", "doc_id") if row.get(name))
        if manifest.step in FROM_FILES and row.get("source"):
            self._files.add(row["source"])
        if manifest.step == "tokenize" and "end" in row:
            self._tokens[name.partition("/")[0]] += row["end"] - row["start"]

    def found(self, redirected: set[str]) -> Found:
        """Return the sums."""
        return Found(
            urls=tuple(sorted(self._urls)),
            redirected=tuple(sorted(redirected)),
            documents=tuple(sorted(self._documents)),
            tokens=dict(sorted(self._tokens.items())),
            steps=tuple(self._steps),
            orphans=tuple(sorted(self._orphans - self._urls - redirected)),
            user_files=tuple(sorted(self._files)),
            texts=tuple(self._texts),
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
