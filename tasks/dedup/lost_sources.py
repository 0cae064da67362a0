"""Alarm for hosts and sources that lose almost all of their documents to the deduplication."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.shards import read_table, write_table
from tasks.core.url_lists import hosts_of
from tasks.dedup.settings import DedupSettings

log = logging.getLogger("gpt2train")

MAX_LOST_SHARE = 0.9  # of the documents of a host or source: above this it is named
MIN_DOCUMENTS = 20  # of a host or source that may be named
MAX_NAMED = 5  # in the log
SOURCE = pa.schema(
    [
        ("kind", pa.string()),  # host, source
        ("name", pa.string()),
        ("documents", pa.int64()),  # without those that a previous run has
        ("dropped", pa.int64()),
    ]
)


class LostSource(NamedTuple):
    """Host or source that has lost more than `MAX_LOST_SHARE` of its documents."""

    kind: str  # `host` or `source`
    name: str
    documents: int  # documents before the deduplication, without duplicates of documents of previous runs
    dropped: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name} lost {self.dropped:,} of {self.documents:,} documents"


def count_sources(folder: Folder, name: str, item: str, kept: Sequence[str], rejected: Sequence[str]) -> Outcome:
    """Count the documents of each host and source that lost any, into `sources/part-00000.parquet`.

    A duplicate of a document of a previous run is not counted: its text is in the output of that run.
    """
    counts = [_count(read_table(folder, shard, ["url", "source"]), 0) for shard in kept]
    for file in rejected:
        table = read_table(folder, file, ["url", "source", "reason"])
        counts.append(_count(table.filter(pc.invert(pc.ends_with(table["reason"], "_earlier"))), 1))
    total = pa.concat_tables(counts).group_by(["kind", "name"]).aggregate([("documents", "sum"), ("dropped", "sum")])
    total = total.rename_columns({"documents_sum": "documents", "dropped_sum": "dropped"})
    table = total.select(SOURCE.names).cast(SOURCE)
    table = table.filter(pc.greater(table["dropped"], 0)).sort_by([("kind", "ascending"), ("name", "ascending")])
    return Outcome(outputs=(write_table(folder, "sources/part-00000.parquet", table.combine_chunks()),))


def lost_sources(folder: Folder, manifest: Manifest) -> list[LostSource]:
    """Read the hosts and sources that lost almost all documents, those with the most dropped documents first."""
    found: list[LostSource] = []
    for record in manifest.outcome.audit:
        if record.name.startswith("sources/"):
            table = read_table(folder, record.name)
            share = pc.divide(table["dropped"].cast(pa.float64()), table["documents"].cast(pa.float64()))
            lost = pc.and_(pc.greater(share, MAX_LOST_SHARE), pc.greater_equal(table["documents"], MIN_DOCUMENTS))
            found += [LostSource(**row) for row in table.filter(lost).to_pylist()]
    return sorted(found, key=lambda source: (-source.dropped, source))


def check_sources(folder: Folder, manifest: Manifest, settings: DedupSettings) -> None:
    """Log the lost sources of a finished deduplication.

    Raises:
        RunError: there is one, and `settings.stop_on_lost_source` is set.
    """
    lost = lost_sources(folder, manifest)
    if not lost:
        return
    named = "; ".join(map(str, lost[:MAX_NAMED]))
    more = f"; and {len(lost) - MAX_NAMED:,} more" if len(lost) > MAX_NAMED else ""
    if settings.stop_on_lost_source:
        raise RunError(
            f"dedup: {named}{more}: duplicates of other documents, more than {MAX_LOST_SHARE:.0%}; see "
            f"{folder.url}/rejected for what was kept instead, then remove the source or set "
            "dedup.stop_on_lost_source = false to go on"
        )
    log.warning(f"dedup: {named}{more}; see {folder.url}/rejected for what was kept instead")


def _count(table: pa.Table, dropped: int) -> pa.Table:
    """Counts of the hosts and sources of some documents, all of which were dropped or none."""
    hosts = hosts_of(table["url"])
    parts = []
    for kind, names in (("host", hosts), ("source", table["source"])):
        counted = pa.Table.from_struct_array(pc.value_counts(names.combine_chunks()))
        counted = counted.filter(counted["values"].is_valid())
        number = counted["counts"]
        kinds, none = pa.array([kind] * len(counted), pa.string()), pa.array([0] * len(counted), pa.int64())
        parts.append(pa.table([kinds, counted["values"], number, number if dropped else none], schema=SOURCE))
    return pa.concat_tables(parts)
