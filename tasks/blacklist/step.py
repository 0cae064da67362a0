"""The blacklist step: URL lists of any length -> shards of the URLs to fetch.

    urls/part-00000.parquet            `url`, `source`: the URLs to fetch, in the order of the lists
    urls/rejected/part-00000.parquet   the other URLs, with their reasons, in the same order

Three stages. `read`: each list is streamed and classified row by row, and the keys of the kept rows are written.
`repeat`: duplicate keys are found, cell by cell. `write`: the classified rows are read again in order, and the shards
are written. No stage holds a list in memory.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.data.packed_file import PACKED
from gpt2train.errors import UserError
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, Outcome, digest
from tasks.blacklist.duplicate_urls import KeyWriter, cells_of, find_duplicates, read_array, rows_between, write_array
from tasks.blacklist.megatron_rules import MegatronClassifier
from tasks.blacklist.rules import Rules, UrlClassifier, rules_of
from tasks.blacklist.settings import BlacklistSettings
from tasks.core.forgotten import REASON, forgotten_beside, name_of, read_forgotten
from tasks.core.input_files import InputFile, check_unchanged, suffix_of, where_to_read
from tasks.core.runner import Runner
from tasks.core.shards import REJECTED, read_rows, write_table
from tasks.core.step import Step
from tasks.core.url_lists import LONGEST, read_urls, without_credentials

URLS = pa.schema([pa.field("url", pa.string(), nullable=False), pa.field("source", pa.string())])
CLASSIFIED_ROWS = pa.schema([("url", pa.string()), ("reason", pa.string()), ("detail", pa.string())])
BLOCK_ROWS = 2**16  # rows in memory at a time
REJECTED_ROWS = 100_000  # per file


def blacklist(
    root: Folder,
    lists: Sequence[InputFile],
    settings: BlacklistSettings,
    runner: Runner,
    *,
    discovered: Manifest | None = None,
) -> Manifest:
    """Drop URLs by domain, extension, length, form and duplication; write the others in their order.

    `discovered` is the step that found some of the lists.

    Raises:
        UserError: A list cannot be read, or no URL is kept; the message has the counts of the reasons.
    """
    rules = rules_of(settings)
    inputs = {
        "lists": digest([[item.name, item.identity] for item in lists]),
        "domains": rules.listed.digest,
        "names": digest(sorted(rules.names)),
        **read_forgotten(root).inputs,
    }
    # The fingerprint has the content of `domain_lists`; without `head` it is that of earlier releases.
    left_out = {"domain_lists"} if settings.head else {"domain_lists", "head"}
    parameters = settings.model_dump(mode="json", exclude=left_out)
    found_by = (discovered,) if discovered else ()  # its lists are in `lists`; other captures are no other URLs
    # No `packages`: a crawl continues with its list if tld has a new list of public suffixes, or idna new tables.
    step = Step(root, "blacklist", version=4, parameters=parameters, inputs=inputs, folder="urls", read=found_by)
    if done := runner.finished(step):
        return done
    cells = cells_of(sum((item.bytes or 2**30) * (8 if suffix_of(item.location) in PACKED else 1) for item in lists))
    outcomes = runner.batches(step, "read", lists, read_list, rules, settings, cells, where=where_to_read(lists, root))
    read = [outcome.outputs for outcome in outcomes]
    keys = [(key.name, index.name) for _, key, index in read]
    found = Outcome.total(runner.batches(step, "repeat", range(cells), find_duplicates, keys))
    classified = [(rows.name, item.name) for (rows, _, _), item in zip(read, lists, strict=True)]
    duplicates = [record.name for record in found.outputs]
    (total,) = runner.batches(step, "write", [classified], write_shards, duplicates, settings.shard_rows)
    if not total.kept:
        counts = ", ".join(f"{reason} {count}" for reason, count in total.reasons.items())
        rows = (row for record in total.rejected for row in read_rows(step.folder, record.name))
        if detail := next((row["detail"] for row in rows if row["detail"]), None):
            counts += f"; {detail}"
        remedy = f"see {step.folder.url}/rejected, then fix the list or the [blacklist] settings"
        raise UserError(f"every one of the {total.seen} URLs was rejected ({counts}); {remedy}")
    return step.commit(total)


def read_list(
    folder: Folder, name: str, item: InputFile, rules: Rules, settings: BlacklistSettings, cells: int
) -> Outcome:
    """Classify each row of one list; write the verdicts, the keys of the kept rows, and the index of the keys."""
    classifier = MegatronClassifier(rules) if settings.parity else UrlClassifier(rules)
    forgotten = forgotten_beside(folder)

    def classify(number: int, listed: str | None, url: str | None) -> tuple[str, str, bytes]:
        if listed is None or url is None:
            return "too_long", f"row {number}: more than {LONGEST} bytes", b""
        if forgotten.matches(url):
            return REASON, "", b""
        if settings.credentials == "reject" and url != listed:
            return "credentials", "a user name or password before the host", b""
        return classifier(listed if settings.parity else url)  # by Megatron-LM's rules a user name is malformed

    target, keys = f"work/{name}.parquet", f"work/{name}.keys"
    count = 0
    with (
        folder.writing(target) as rows_draft,
        folder.writing(keys) as keys_draft,
        pq.ParquetWriter(rows_draft, CLASSIFIED_ROWS, compression="lz4", use_dictionary=["reason"]) as writer,
        KeyWriter(keys_draft, cells) as key_writer,
    ):
        rows = itertools.islice(read_urls(item.location), settings.head)
        while read := list(itertools.islice(rows, BLOCK_ROWS)):
            block = [(number, None if url is None else without_credentials(url)) for number, url in read]
            verdicts = [classify(*row, url) for row, (_, url) in zip(read, block, strict=True)]
            kept = [(key, row) for row, (_, _, key) in enumerate(verdicts, start=count) if key]
            key_writer.add([key for key, _ in kept], [row for _, row in kept])
            details = [
                f"row {number}: {detail}" if reason == "malformed" else detail
                for (number, _), (reason, detail, _) in zip(block, verdicts, strict=True)
            ]
            urls = [
                name_of(url) if url and reason == REASON else url
                for (_, url), (reason, _, _) in zip(block, verdicts, strict=True)
            ]
            columns = [urls, [reason for reason, _, _ in verdicts], details]
            writer.write_table(pa.table([pa.array(column, pa.string()) for column in columns], schema=CLASSIFIED_ROWS))
            count += len(block)
        check_unchanged(item)
    index = np.array(key_writer.index, dtype=np.int64).reshape(-1, cells + 1)
    records = (folder.record(target, rows=count), folder.record(keys))
    return Outcome(outputs=(*records, *write_array(folder, f"work/{name}.index.npy", index).outputs))


def write_shards(
    folder: Folder, name: str, classified: Sequence[tuple[str, str]], duplicates: Sequence[str], shard_rows: int
) -> Outcome:
    """Read the classified rows of all lists in order, drop duplicates, and write the kept and the rejected shards.

    `classified` has the file of verdicts and the name of each list; `duplicates` are files with positions of rows.
    """
    positions = [read_array(folder, name) for name in duplicates]
    kept, dropped = Shards(folder, "", URLS, shard_rows), Shards(folder, "rejected/", REJECTED, REJECTED_ROWS)
    reasons: Counter[str] = Counter()
    for number, (verdicts, source) in enumerate(classified):
        begin = 0
        with folder.open(verdicts) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=BLOCK_ROWS):
                duplicate = np.zeros(len(batch), dtype=bool)
                duplicate[[row - begin for row in rows_between(positions, number, begin, begin + len(batch))]] = True
                begin += len(batch)
                reason = pc.if_else(pa.array(duplicate), "duplicate", batch["reason"])
                is_kept = pc.equal(reason, "")
                kept.add(_columns(batch.filter(is_kept), URLS, source=source))
                batch = batch.set_column(1, "reason", reason).filter(pc.invert(is_kept))
                rejected = _columns(batch, REJECTED, source=source)
                counts = rejected["reason"].value_counts().to_pylist()
                reasons.update({pair["values"]: pair["counts"] for pair in counts})
                dropped.add(rejected)
    return Outcome(
        outputs=kept.close(),
        rejected=dropped.close(),
        seen=kept.rows + dropped.rows,
        kept=kept.rows,
        reasons=dict(sorted(reasons.items())),
    )


class Shards:
    """Writer of Parquet files with `size` rows each, from tables of any size."""

    def __init__(self, folder: Folder, prefix: str, schema: pa.Schema, size: int) -> None:
        self.rows = 0
        self._folder, self._prefix, self._size = folder, prefix, size
        self._pending = schema.empty_table()
        self._records: list[FileRecord] = []

    def add(self, table: pa.Table) -> None:
        """Append rows; write each file that is full."""
        self.rows += table.num_rows
        self._pending = pa.concat_tables([self._pending, table])
        while self._pending.num_rows >= self._size:
            self._write(self._pending.slice(0, self._size))
            self._pending = self._pending.slice(self._size)

    def close(self) -> tuple[FileRecord, ...]:
        """Write the remaining rows and return all files."""
        if self._pending.num_rows:
            self._write(self._pending)
        return tuple(self._records)

    def _write(self, table: pa.Table) -> None:
        name = f"{self._prefix}part-{len(self._records):05d}.parquet"
        self._records.append(write_table(self._folder, name, table.combine_chunks()))


def _columns(batch: Any, schema: pa.Schema, source: str) -> pa.Table:
    """Convert a batch to another schema, with `source` filled in and missing columns null."""
    given = {name: batch[name] for name in batch.schema.names} | {"source": pa.repeat(source, len(batch))}
    columns = [given.get(field.name, pa.nulls(len(batch), field.type)) for field in schema]
    return pa.table(columns, schema=schema)
