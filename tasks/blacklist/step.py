"""The blacklist as a step: URL lists of any length in, shards of the URLs to fetch out.

    urls/part-00000.parquet            `url`, `source`: what is to be fetched, in the order of the lists
    urls/rejected/part-00000.parquet   the rest, with their reasons, in the same order

Three stages. `read`: each list is streamed and judged row by row, and the key of what passes set down. `repeat`: equal
keys are found, cell by cell. `write`: the lists are gone through once more, in order. No stage holds a list in memory.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.errors import UserError
from tasks.blacklist.listed import read_listed
from tasks.blacklist.parity import MegatronJudge
from tasks.blacklist.repeats import KeyWriter, cells_of, find_repeats, read_array, rows_between, write_array
from tasks.blacklist.rules import EXTENSIONS, Judge, Rules, blocked_names
from tasks.blacklist.settings import BlacklistSettings
from tasks.inputs import PACKED, InputFile, suffix_of
from tasks.runner import Runner, Where
from tasks.shards import REJECTED, write_table
from tasks.steps import Manifest, Outcome, Step, digest
from tasks.storage import FileRecord, Folder
from tasks.urls import LONGEST, read_urls

URLS = pa.schema([pa.field("url", pa.string(), nullable=False), pa.field("source", pa.string())])
JUDGED = pa.schema([("url", pa.string()), ("reason", pa.string()), ("detail", pa.string())])
BLOCK_ROWS = 2**16
REJECTED_ROWS = 100_000  # a file


def blacklist(root: Folder, lists: Sequence[InputFile], settings: BlacklistSettings, runner: Runner) -> Manifest:
    """Drop URLs by domain, extension, length, form and repetition; write the rest in their order.

    Raises:
        UserError: a list cannot be read, or no URL is left; the message counts the reasons.
    """
    listed = read_listed(settings.domain_lists)
    names = blocked_names() if settings.block_names else frozenset()
    inputs = {
        "lists": digest([[item.name, item.identity] for item in lists]),
        "domains": listed.digest,
        "names": digest(sorted(names)),
    }
    parameters = settings.model_dump(mode="json", exclude={"domain_lists"})  # by their content, not by their place
    step = Step(root, "blacklist", version=2, parameters=parameters, inputs=inputs, folder="urls", packages=("tld",))
    if done := runner.finished(step):
        return done
    rules = Rules(names, EXTENSIONS if settings.block_extensions else (), listed, settings.min_length)
    cells = cells_of(sum((item.bytes or 2**30) * (8 if suffix_of(item.place) in PACKED else 1) for item in lists))
    # A cluster's workers have the output's disk, or its store; a list on a disk of this machine they may not have.
    near = root.is_local or all("://" in item.place for item in lists)
    where: Where = "process" if near else "thread"
    read = [
        item.outputs
        for item in runner.batches(step, "read", lists, read_list, rules, settings.parity, cells, where=where)
    ]
    keys = [(key.name, index.name) for _, key, index in read]
    found = Outcome.total(runner.batches(step, "repeat", range(cells), find_repeats, keys))
    judged = [(rows.name, item.name) for (rows, _, _), item in zip(read, lists, strict=True)]
    repeated = [record.name for record in found.outputs]
    (total,) = runner.batches(step, "write", [judged], write_shards, repeated, settings.shard_rows)
    if not total.kept:
        counts = ", ".join(f"{reason} {count}" for reason, count in total.reasons.items())
        raise UserError(
            f"every one of the {total.seen} URLs was rejected ({counts}); see {step.folder.url}/rejected, "
            "then mend the list or the [blacklist] settings"
        )
    return step.commit(total)


def read_list(folder: Folder, name: str, item: InputFile, rules: Rules, parity: str | None, cells: int) -> Outcome:
    """Judge each row of one list: writes the verdicts, the keys of what passes, and the index of the keys."""
    judge = MegatronJudge(rules) if parity else Judge(rules)
    target, keys = f"work/{name}.parquet", f"work/{name}.keys"
    count = 0
    with (
        folder.writing(target) as rows_draft,
        folder.writing(keys) as keys_draft,
        pq.ParquetWriter(rows_draft, JUDGED, compression="lz4", use_dictionary=["reason"]) as writer,
        KeyWriter(keys_draft, cells) as scatter,
    ):
        rows = read_urls(item.place)
        while block := list(itertools.islice(rows, BLOCK_ROWS)):
            verdicts = [_too_long(number) if url is None else judge(url) for number, url in block]
            good = [(key, row) for row, (_, _, key) in enumerate(verdicts, start=count) if key]
            scatter.add([key for key, _ in good], [row for _, row in good])
            details = [
                f"row {number}: {detail}" if reason == "malformed" else detail
                for (number, _), (reason, detail, _) in zip(block, verdicts, strict=True)
            ]
            columns = [[url for _, url in block], [reason for reason, _, _ in verdicts], details]
            writer.write_table(pa.table([pa.array(column, pa.string()) for column in columns], schema=JUDGED))
            count += len(block)
    index = np.array(scatter.index, dtype=np.int64).reshape(-1, cells + 1)
    records = (folder.record(target, rows=count), folder.record(keys))
    return Outcome(outputs=(*records, *write_array(folder, f"work/{name}.index.npy", index).outputs))


def write_shards(
    folder: Folder, name: str, judged: Sequence[tuple[str, str]], repeated: Sequence[str], shard_rows: int
) -> Outcome:
    """Go through all lists in order, take out what is repeated, and write both kinds of shards.

    Args:
        judged: (file of verdicts, name of the list), in the order of the lists.
        repeated: files with the positions of repeated rows.
    """
    positions = [read_array(folder, name) for name in repeated]
    kept, dropped = Shards(folder, "", URLS, shard_rows), Shards(folder, "rejected/", REJECTED, REJECTED_ROWS)
    reasons: Counter[str] = Counter()
    for number, (verdicts, source) in enumerate(judged):
        begin = 0
        with folder.open(verdicts) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=BLOCK_ROWS):
                again = np.zeros(len(batch), dtype=bool)
                again[[row - begin for row in rows_between(positions, number, begin, begin + len(batch))]] = True
                begin += len(batch)
                reason = pc.if_else(pa.array(again), "duplicate", batch["reason"])
                good = pc.equal(reason, "")
                kept.add(_columns(batch.filter(good), URLS, source=source))
                rejected = _columns(
                    batch.set_column(1, "reason", reason).filter(pc.invert(good)), REJECTED, source=source
                )
                reasons.update(
                    {pair["values"]: pair["counts"] for pair in rejected["reason"].value_counts().to_pylist()}
                )
                dropped.add(rejected)
    outputs, rejected_files = kept.close(), dropped.close()
    return Outcome(
        outputs=outputs,
        rejected=rejected_files,
        seen=kept.rows + dropped.rows,
        kept=kept.rows,
        reasons=dict(sorted(reasons.items())),
    )


class Shards:
    """Files of equally many rows, cut from tables as they come."""

    def __init__(self, folder: Folder, prefix: str, schema: pa.Schema, size: int) -> None:
        self.rows = 0
        self._folder, self._prefix, self._size = folder, prefix, size
        self._pending = schema.empty_table()
        self._records: list[FileRecord] = []

    def add(self, table: pa.Table) -> None:
        """Append rows; writes each file that is full."""
        self.rows += table.num_rows
        self._pending = pa.concat_tables([self._pending, table])
        while self._pending.num_rows >= self._size:
            self._write(self._pending.slice(0, self._size))
            self._pending = self._pending.slice(self._size)

    def close(self) -> tuple[FileRecord, ...]:
        """Write what is left; returns all files."""
        if self._pending.num_rows:
            self._write(self._pending)
        return tuple(self._records)

    def _write(self, table: pa.Table) -> None:
        name = f"{self._prefix}part-{len(self._records):05d}.parquet"
        self._records.append(write_table(self._folder, name, table.combine_chunks()))


def _too_long(number: int) -> tuple[str, str, bytes]:
    return "too_long", f"row {number}: more than {LONGEST} bytes", b""


def _columns(batch: Any, schema: pa.Schema, source: str) -> pa.Table:
    """A batch in another schema: `source` filled in, missing columns null."""
    given = {name: batch[name] for name in batch.schema.names} | {"source": pa.repeat(source, len(batch))}
    columns = [given.get(field.name, pa.nulls(len(batch), field.type)) for field in schema]
    return pa.table(columns, schema=schema)
