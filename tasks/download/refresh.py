"""Further rounds of a finished download: a refresh asks for every URL again, a retry for those that failed for now.

    pages/part-00000.refresh-1.warc.gz              all pages: those that stay as copies of their records
    pages/ledger/part-00000.refresh-1.parquet
    pages/refresh/part-00000.refresh-1.parquet      one row per URL: `change`, reason (schema `CHANGED`)
    pages/refresh/part-00000.refresh-1.warc.gz      revisit records of the pages that the server confirmed

Readers of `pages/` find every page in one archive, as after a first download. A shard without any change keeps its
files. A retry writes `part-00000.retry-1.warc.gz` and its ledger, for shards with rows to fetch again. The new manifest
replaces the old one atomically; until then the old download stays valid, and a killed round goes on where it was.
"""

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from gpt2train.errors import RunError
from gpt2train.store.counts import count_of
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import read_rows, write_rows
from tasks.core.step import Step
from tasks.download.crawl import Crawler
from tasks.download.host_stats import HOSTS_FILE
from tasks.download.journal import Journal, journal_folder
from tasks.download.ledger import Row, counts_of, ledgers_of
from tasks.download.revisit import encode_revisit
from tasks.download.shard_writer import CHANGES, REFRESH, REFRESH_FACT, changes, finish, write_shard
from tasks.download.warc import is_response, members, record_spans, write_archive

log = logging.getLogger("gpt2train")

CHANGED = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("change", pa.string(), nullable=False),  # one of `revisit.CHANGES`
        pa.field("reason", pa.string(), nullable=False),  # code of the failure; also where the earlier page is kept
        pa.field("detail", pa.string()),
        pa.field("http_status", pa.int32()),  # of today's answer
        pa.field("earlier_sha256", pa.string()),  # of the earlier page; null if there was none
        pa.field("sha256", pa.string()),  # of the page that is now in the corpus; empty if there is none
    ]
)
ROUND = re.compile(r"\.refresh-(\d+)\b")
RETRY_ROUND = re.compile(r"\.retry-(\d+)$")
COUNTED = ["bytes", "retryable", "reason"]
MAX_PARTS = 16  # ledgers that a shard searches for URLs that its own ledger lacks


class EarlierDownload(NamedTuple):
    """A finished download that is refreshed; its shards in order."""

    archives: tuple[FileRecord, ...]
    ledgers: tuple[FileRecord, ...]
    rejected: dict[str, FileRecord]
    round: int

    @classmethod
    def of(cls, done: Manifest) -> "EarlierDownload":
        """Take the shards from the manifest of a download."""
        rounds = [int(found[1]) for record in done.outcome.files for found in ROUND.finditer(record.name)]
        rejected = {record.name: record for record in done.outcome.rejected}
        return cls(done.outputs, tuple(ledgers_of(done.outcome.audit)), rejected, 1 + max(rounds, default=0))

    def files_of(self, number: int) -> Outcome:
        """Return the files of a shard, without counts."""
        name = self.archives[number].name.replace(".warc.gz", ".parquet")
        dropped = (self.rejected[f"rejected/{name}"],) if f"rejected/{name}" in self.rejected else ()
        return Outcome(outputs=(self.archives[number],), audit=(self.ledgers[number],), rejected=dropped)


@dataclass
class EarlierPages:
    """Earlier rows and records of the URLs of one shard, in whichever earlier shard they are."""

    folder: Folder
    earlier: EarlierDownload
    number: int
    # Number of the earlier shard, and of the row in its ledger, by index of the URL.
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    _ledgers: dict[int, list[Row]] = field(default_factory=dict)
    _spans: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)

    def find(self, urls: Sequence[str]) -> None:
        """Find the places of these URLs."""
        lacking = {url: index for index, url in enumerate(urls)}
        order = sorted(range(len(self.earlier.ledgers)), key=lambda number: (abs(number - self.number), number))
        for number in order[:MAX_PARTS]:
            if not lacking:
                break
            rows = self.ledger(number)
            found = {lacking.pop(row["url"]): (number, at) for at, row in enumerate(rows) if row["url"] in lacking}
            self.places |= found
            if not found:
                del self._ledgers[number]

    def ledger(self, number: int) -> list[Row]:
        """Return the rows of an earlier shard."""
        if number not in self._ledgers:
            self._ledgers[number] = list(read_rows(self.folder, self.earlier.ledgers[number].name))
        return self._ledgers[number]

    def rows(self) -> dict[int, Row]:
        """Return the earlier ledger rows by index of the URL."""
        return {index: self._ledgers[number][row] for index, (number, row) in self.places.items()}

    def is_own_ledger(self, rows: Sequence[Row]) -> bool:
        """Return True if these rows are exactly those of the earlier ledger of the same number."""
        before = self._ledgers.get(self.number, [])
        pairs = [({"fresh_until": "", **old}, row) for old, row in zip(before, rows, strict=False)]
        return len(before) == len(rows) and all(
            all(row.get(name) == value for name, value in old.items()) for old, row in pairs
        )

    def records(self, indices: Sequence[int]) -> Iterator[bytes]:
        """Yield the records of earlier pages in their compressed form."""
        for number, group in itertools.groupby(indices, key=lambda index: self.places[index][0]):
            with self.folder.open(self.earlier.archives[number].name) as file:
                for index in group:
                    offset, length = self._spans_of(number)[self.places[index][1]]
                    file.seek(offset)
                    yield file.read(length)

    def _spans_of(self, number: int) -> dict[int, tuple[int, int]]:
        """Return offset and length of the record of each ledger row with a page."""
        if number not in self._spans:
            record = self.earlier.archives[number]
            place = f"{self.folder.url}/{record.name}"
            if self.folder.record(record.name).sha256 != record.sha256:
                raise RunError(f"{place} is damaged; remove it and run again")
            kept = [position for position, row in enumerate(self._ledgers[number]) if not row["reason"]]
            with self.folder.open(record.name) as file:
                sizes = [len(member) for member in members(file, record.bytes)]
            spans = list(zip(itertools.accumulate(sizes), sizes[1:], strict=False))  # without the warcinfo
            if len(kept) != len(spans):  # a page that holds the first bytes of a member, or another release of zlib
                with self.folder.open(record.name) as file:
                    spans = [(span.offset, span.length) for span in record_spans(file) if is_response(span)]
            if len(kept) != len(spans):
                pages = count_of(len(spans), "page")
                raise RunError(f"{place} holds {pages}, its ledger {len(kept)}; remove it and run again")
            self._spans[number] = dict(zip(kept, spans, strict=True))
        return self._spans[number]


def retry(step: Step, done: Manifest, runner: Runner, crawler: Crawler, at_once: int) -> Manifest:
    """Fetch the retryable rows of a finished download, `at_once` shards at a time, and return the new manifest."""
    folder, earlier = step.folder, EarlierDownload.of(done)
    counts = [counts_of(read_rows(folder, record.name, COUNTED)) for record in earlier.ledgers]
    stale = [number for number, count in enumerate(counts) if count.facts["retryable"]]
    rows = [counts[number].facts["retryable"] for number in stale]
    runner.skipped.discard(step.name)
    work = _round(step, {"retry": done})
    args = (crawler, work.fingerprint, earlier)
    outcomes = runner.batches(work, "retry", stale, retry_shard, *args, where="thread", at_once=at_once, rows=rows)
    files = [earlier.files_of(number) for number in range(len(counts))]
    for number, files[number] in zip(stale, outcomes, strict=True):
        counts[number] = counts_of(read_rows(folder, files[number].audit[0].name, COUNTED))
    refreshed = Outcome(
        audit=tuple(record for record in done.outcome.audit if record.name.startswith(REFRESH)),
        facts={name: count for name, count in done.outcome.facts.items() if name.startswith(REFRESH_FACT)},
    )
    names = [record.name for record in done.outcome.audit if record.name.startswith(HOSTS_FILE)]
    hosts = next_name(names[0].removesuffix(".parquet") if names else HOSTS_FILE)
    return finish(step, Outcome.total([*counts, *files, refreshed]), hosts)


def retry_shard(
    folder: Folder, name: str, number: int, crawler: Crawler, key: str, earlier: EarlierDownload
) -> Outcome:
    """Fetch the retryable rows of one shard and rewrite the shard with all other rows unchanged."""
    before = EarlierPages(folder, earlier, number)
    rows = before.ledger(number)
    before.places = {index: (number, index) for index in range(len(rows))}
    pending = [(index, row["url"], row["source"]) for index, row in enumerate(rows) if row["retryable"]]
    with Journal(journal_folder(folder) / name, key, [row["url"] for row in rows]) as journal:
        crawler.fetch(name, [item for item in pending if item[0] not in journal.done], journal)
        fetched = {index: entry for (index, _, _), entry in zip(pending, journal.rows(), strict=True)}
        merged = [fetched[index][0] if index in fetched else row for index, row in enumerate(rows)]
        has_page = [index for index, row in enumerate(rows) if index in fetched or not row["reason"]]
        kept = before.records([index for index in has_page if index not in fetched])
        pages = (journal.page(*fetched[index][1:]) if index in fetched else next(kept) for index in has_page)
        written = write_shard(folder, next_name(earlier.archives[number].name.removesuffix(".warc.gz")), merged, pages)
    # Without counts, which `retry` adds up over all shards: the reject limit has counted these rows before.
    return Outcome(outputs=written.outputs, audit=written.audit, rejected=written.rejected)


def next_name(stem: str) -> str:
    """Return the name of a shard at the next retry: `part-00003` -> `part-00003.retry-1` -> `part-00003.retry-2`."""
    found = RETRY_ROUND.search(stem)
    return f"{RETRY_ROUND.sub('', stem)}.retry-{int(found[1]) + 1 if found else 1}"


def _round(step: Step, inputs: dict[str, Manifest | str]) -> Step:
    """Return the step of a round's batches, whose fingerprint depends on the manifest that they start from."""
    return Step(step.root, step.name, version=step.version, parameters={}, inputs=inputs, folder=step.folder_name)


def refresh(step: Step, done: Manifest, urls: Manifest, runner: Runner, crawler: Crawler, at_once: int) -> Manifest:
    """Ask for every URL again, `at_once` shards at a time, and return the new manifest of the download."""
    runner.skipped.discard(step.name)
    step.start_timing()
    earlier, work = EarlierDownload.of(done), _round(step, {"refresh": done, "blacklist": urls})
    names, rows = [record.name for record in urls.outputs], [record.rows or 0 for record in urls.outputs]
    args = (step.root / urls.folder, crawler, work.fingerprint, earlier)
    outcomes = runner.batches(work, "refresh", names, refresh_shard, *args, where="thread", at_once=at_once, rows=rows)
    manifest = finish(step, Outcome.total(outcomes), f"{HOSTS_FILE}.refresh-{earlier.round}")
    counts = ", ".join(f"{count:,} {change}" for change, count in changes(manifest).items())
    log.info("refresh: %s; by URL in %s", counts, (step.folder / REFRESH.rstrip("/")).url)
    return manifest


def refresh_shard(
    folder: Folder, name: str, shard: str, urls: Folder, crawler: Crawler, key: str, earlier: EarlierDownload
) -> Outcome:
    """Ask for the URLs of one shard again; write its pages, ledger, rejected rows, changes and revisits."""
    number = int(name.rpartition("-")[2])
    pending = [(index, row["url"], row["source"]) for index, row in enumerate(read_rows(urls, shard))]
    before = EarlierPages(folder, earlier, number)
    before.find([url for _, url, _ in pending])
    known = before.rows()
    with Journal(journal_folder(folder) / name, key, [url for _, url, _ in pending]) as journal:
        crawler.fetch(name, [item for item in pending if item[0] not in journal.done], journal, known)
        entries = journal.rows()
        rows = [row for row, _, _ in entries]
        stem = f"part-{number:05d}.refresh-{earlier.round}"
        audit = (_write_changes(folder, stem, rows), *_write_revisits(folder, stem, rows, known))
        if before.is_own_ledger(rows):
            written = Outcome.total([counts_of(rows), earlier.files_of(number)])
        else:
            kept = before.records([index for index, row in enumerate(rows) if row["keeps"]])
            new = (next(kept) if row["keeps"] else journal.page(offset, length) for row, offset, length in entries)
            written = write_shard(folder, stem, rows, new)
    counts = Counter(row["change"] for row in rows)
    found = [change for change in CHANGES if counts[change] or change != "fresh"]
    facts = written.facts | {REFRESH_FACT + change: counts[change] for change in found}
    return written.model_copy(update={"audit": (*written.audit, *audit), "facts": facts})


def _write_changes(folder: Folder, stem: str, rows: Sequence[Row]) -> FileRecord:
    """Write the changes of one shard, by URL."""
    found = []
    for row in rows:
        reason, _, detail = row.get("note", "").partition(": ")
        status = 304 if row.get("revisit", {}).get("status", "").startswith("304") else row["http_status"]
        found.append({**row, "reason": reason, "detail": detail, "http_status": status})
    return write_rows(folder, f"{REFRESH}{stem}.parquet", found, CHANGED)


def _write_revisits(folder: Folder, stem: str, rows: Sequence[Row], known: dict[int, Row]) -> tuple[FileRecord, ...]:
    """Write the revisit records of one shard; nothing if there are none."""
    revisits = [(known[index], row["revisit"]) for index, row in enumerate(rows) if row.get("revisit")]
    if not revisits:
        return ()
    dates, records = [revisit["date"] for _, revisit in revisits], (encode_revisit(*pair) for pair in revisits)
    return (write_archive(folder, f"{REFRESH}{stem}.warc.gz", dates, records),)
