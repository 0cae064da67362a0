"""Counts of the signals and licenses of a download by host, from the ledgers."""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import FileRecord, Folder
from tasks.core.shards import read_rows
from tasks.core.url_lists import host_of

CONSENT_FILE = "consent"  # followed by the round of the retry and .parquet
TABLE = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # signal, license
        pa.field("value", pa.string(), nullable=False),  # reason code; address of the license
        pa.field("host", pa.string(), nullable=False),
        pa.field("pages", pa.int64(), nullable=False),
        pa.field("dropped", pa.int64(), nullable=False),  # of them for this signal
    ]
)
MAX_ROWS = 200_000  # more are summed by signal, and licenses of few pages are left out
OTHERS = "(other hosts)"

Key = tuple[str, str, str]  # kind, value, host


def tally_signals(folder: Folder, ledgers: Iterable[FileRecord], max_rows: int = MAX_ROWS) -> pa.Table:
    """Return a table of schema `TABLE`; within a kind and value, hosts with the most pages come first."""
    pages: Counter[Key] = Counter()
    dropped: Counter[Key] = Counter()
    for record in ledgers:
        for row in read_rows(folder, record.name, ["url", "reason", "signals", "licenses"]):
            host = host_of(row["url"])
            keys = [("signal", name, host) for name in row["signals"] or []]
            pages.update([*keys, *(("license", link, host) for link in row["licenses"] or [])])
            dropped.update(key for key in keys if key[1] == row["reason"])
        if len(pages) > 2 * max_rows:
            _sum_others(pages, dropped, max_rows)
    _sum_others(pages, dropped, max_rows)
    keys = sorted(pages, key=lambda key: (key[0] == "license", key[1], -pages[key], key[2]))
    rows = [(*key, pages[key], dropped[key]) for key in keys]
    return pa.Table.from_pylist([dict(zip(TABLE.names, row, strict=True)) for row in rows], schema=TABLE)


def signal_counts(table: pa.Table) -> dict[str, int]:
    """Return the pages by signal, as facts of the step."""
    signals = table.filter(pc.equal(table["kind"], "signal"))
    counts: Counter[str] = Counter()
    for row in signals.to_pylist():
        counts[f"{row['value']}_signals"] += row["pages"]
    return dict(counts)


def _sum_others(pages: Counter[Key], dropped: Counter[Key], max_rows: int) -> None:
    """Keep the keys with the most pages, and sum the other signals over their hosts."""
    rest = sorted(pages, key=lambda key: (-pages[key], key))[max_rows:]
    for key in rest:
        kind, value, host = key
        count, lost = pages.pop(key), dropped.pop(key, 0)
        if kind == "signal" or host == OTHERS:
            pages["signal", value, OTHERS] += count
            dropped["signal", value, OTHERS] += lost
