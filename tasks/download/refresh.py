"""Refresh of a finished download: every URL is asked for again, and the pages that have not changed stay.

    pages/part-00000.refresh-1.warc.gz              all pages: those that stay as copies of their records
    pages/ledger/part-00000.refresh-1.parquet
    pages/refresh/part-00000.refresh-1.parquet      one row per URL: `change`, reason (schema `CHANGED`)
    pages/refresh/part-00000.refresh-1.warc.gz      revisit records of the pages that the server confirmed

Readers of `pages/` find every page in one archive, as after a first download. A shard without any change keeps its
files. The new manifest replaces the old one atomically; until then the old download stays valid, and a killed refresh
goes on where it was.
"""

import hashlib
import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from gpt2train.errors import RunError
from gpt2train.io.counts import count_of
from tasks.core.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import read_rows, write_rows
from tasks.core.step import Step
from tasks.core.storage import FileRecord, Folder
from tasks.download.crawl import Crawler
from tasks.download.host_stats import HOSTS_FILE
from tasks.download.journal import Journal, journal_folder
from tasks.download.ledger import Row, counts_of, ledgers_of
from tasks.download.revisit import encode_revisit
from tasks.download.shard_writer import CHANGES, REFRESH, REFRESH_FACT, changes, finish, write_shard
from tasks.download.warc import encode_head, members, response_spans

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
        """Return the files of a shard."""
        name = self.archives[number].name.replace(".warc.gz", ".parquet")
        dropped = (self.rejected[f"rejected/{name}"],) if f"rejected/{name}" in self.rejected else ()
        return Outcome(outputs=(self.archives[number],), audit=(self.ledgers[number],), rejected=dropped)


@dataclass
class EarlierPages:
    """Earlier rows and records of the URLs of one shard, in whichever earlier shard they are.

    Attributes:
        places: Number of the earlier shard, and of the row in its ledger, by index of the URL.
    """

    folder: Folder
    earlier: EarlierDownload
    number: int
    urls: Sequence[str]
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    _ledgers: dict[int, list[Row]] = field(default_factory=dict)
    _spans: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lacking = {url: index for index, url in enumerate(self.urls)}
        order = sorted(range(len(self.earlier.ledgers)), key=lambda number: (abs(number - self.number), number))
        for number in order[:MAX_PARTS]:
            if not lacking:
                break
            rows = list(read_rows(self.folder, self.earlier.ledgers[number].name))
            for position, row in enumerate(rows):
                if (index := lacking.pop(row["url"], None)) is not None:
                    self.places[index] = number, position
                    self._ledgers[number] = rows

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
            archive = self.earlier.archives[number].name
            with self.folder.open(archive) as file:
                for index in group:
                    offset, length = self._spans_of(number)[self.places[index][1]]
                    file.seek(offset)
                    data = file.read(length)
                    if len(data) != length:
                        raise RunError(f"{self.folder.url}/{archive} is truncated; remove it and run again")
                    yield data

    def _spans_of(self, number: int) -> dict[int, tuple[int, int]]:
        """Return offset and length of the record of each ledger row with a page."""
        if number not in self._spans:
            record = self.earlier.archives[number]
            kept = [position for position, row in enumerate(self._ledgers[number]) if not row["reason"]]
            with self.folder.open(record.name) as file:
                sha256, sizes = hashlib.sha256(), []
                for member in members(file, record.bytes):
                    sha256.update(member)
                    sizes.append(len(member))
            if sha256.hexdigest() != record.sha256:
                raise RunError(f"{self.folder.url}/{record.name} is damaged; remove it and run again")
            spans = list(zip(itertools.accumulate(sizes), sizes[1:], strict=False))  # without the warcinfo
            if len(kept) != len(spans):  # a page that holds the first bytes of a member, or another release of zlib
                with self.folder.open(record.name) as file:
                    spans = response_spans(file)
            if len(kept) != len(spans):
                raise RunError(
                    f"{self.folder.url}/{record.name} holds {count_of(len(spans), 'page')}, its ledger {len(kept)}; "
                    "remove it and run again"
                )
            self._spans[number] = dict(zip(kept, spans, strict=True))
        return self._spans[number]


def refresh(step: Step, done: Manifest, urls: Manifest, runner: Runner, crawler: Crawler, at_once: int) -> Manifest:
    """Ask for every URL again, `at_once` shards at a time, and return the new manifest of the download."""
    runner.skipped.discard(step.name)
    step.start_timing()
    # The fingerprint of the batches depends on the manifest that they start from.
    inputs: dict[str, Manifest | str] = {"refresh": done, "blacklist": urls}
    work = Step(step.root, step.name, version=step.version, parameters={}, inputs=inputs, folder=step.folder_name)
    earlier = EarlierDownload.of(done)
    outcomes = runner.batches(
        work,
        "refresh",
        [record.name for record in urls.outputs],
        refresh_shard,
        step.root / urls.folder,
        crawler,
        work.fingerprint,
        earlier,
        where="thread",
        at_once=at_once,
        rows=[record.rows or 0 for record in urls.outputs],
    )
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
    before = EarlierPages(folder, earlier, number, [url for _, url, _ in pending])
    known = before.rows()
    with Journal(journal_folder(folder) / name, key, [url for _, url, _ in pending]) as journal:
        crawler.fetch(name, [item for item in pending if item[0] not in journal.done], journal, known)
        entries = journal.rows()
        rows = [row for row, _, _ in entries]
        stem = f"part-{number:05d}.refresh-{earlier.round}"
        audit = (_write_changes(folder, stem, rows), *_write_revisits(folder, stem, rows, known))
        if before.is_own_ledger(rows):
            files = earlier.files_of(number)
            named = {"outputs": files.outputs, "audit": files.audit, "rejected": files.rejected}
            written = counts_of(rows).model_copy(update=named)
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
    archive = f"{REFRESH}{stem}.warc.gz"
    with folder.writing(archive) as draft, draft.open("wb") as file:
        file.write(encode_head(archive, min(revisit["date"] for _, revisit in revisits)))
        file.writelines(encode_revisit(*pair) for pair in revisits)
    return (folder.record(archive, rows=len(revisits)),)
