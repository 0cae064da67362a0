"""Statistics per host, from the ledgers: sites that cost a crawl pages and time, and their signals and licenses.

Memory is bounded: of more than `MAX_HOSTS` hosts, those with the fewest failures and pages are summed in one row. Of
more than `MAX_SIGNALS` rows, those with the fewest pages are summed by signal, and licenses of few pages are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import FileRecord, Folder
from tasks.core.shards import read_rows
from tasks.core.url_lists import host_of

HOSTS_FILE = "hosts"  # followed by the round of the retry and .parquet
HOSTS = pa.schema(
    [
        pa.field("host", pa.string(), nullable=False),
        pa.field("urls", pa.int64(), nullable=False),
        pa.field("ok", pa.int64(), nullable=False),
        pa.field("failed", pa.int64(), nullable=False),
        pa.field("top_reason", pa.string()),  # the most frequent reason; None without failures
        pa.field("seconds", pa.float64(), nullable=False),  # sum over all requests
    ]
)
CONSENT_FILE = "consent"  # the same
SIGNALS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # signal, license
        pa.field("value", pa.string(), nullable=False),  # reason code; address of the license
        pa.field("host", pa.string(), nullable=False),
        pa.field("pages", pa.int64(), nullable=False),
        pa.field("dropped", pa.int64(), nullable=False),  # of them for this signal
    ]
)
MAX_HOSTS, MAX_SIGNALS = 200_000, 200_000
OTHERS = "(other hosts)"

Key = tuple[str, str, str]  # kind, value, host


@dataclass
class Host:
    """Counts of one host."""

    urls: int = 0
    milliseconds: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, urls: int, milliseconds: int, reasons: Iterable[str] | Counter[str]) -> None:
        """Add counts."""
        self.urls += urls
        self.milliseconds += milliseconds
        self.reasons.update(reasons)

    def row(self, name: str) -> dict[str, Any]:
        """Return the row of schema `HOSTS`."""
        failed = self.reasons.total()
        return {
            "host": name,
            "urls": self.urls,
            "ok": self.urls - failed,
            "failed": failed,
            "top_reason": min(self.reasons, key=lambda reason: (-self.reasons[reason], reason), default=None),
            "seconds": self.milliseconds / 1000,
        }


def tally_hosts(folder: Folder, ledgers: Iterable[FileRecord], max_hosts: int = MAX_HOSTS) -> pa.Table:
    """Return a table of schema `HOSTS`, sorted by failures in descending order; hosts beyond `max_hosts` are summed."""
    hosts: defaultdict[str, Host] = defaultdict(Host)
    others = Host()

    def sum_others() -> None:
        for name in _ranked(hosts)[max_hosts:]:
            others.add(**vars(hosts.pop(name)))

    for record in ledgers:
        for row in read_rows(folder, record.name, ["url", "reason", "elapsed_ms"]):
            reasons = [row["reason"]] if row["reason"] else []
            hosts[host_of(row["url"])].add(1, row["elapsed_ms"] or 0, reasons)
        if len(hosts) > 2 * max_hosts:
            sum_others()
    sum_others()
    rows = [hosts[name].row(name) for name in _ranked(hosts)] + ([others.row(OTHERS)] if others.urls else [])
    return pa.Table.from_pylist(rows, schema=HOSTS)


def _ranked(hosts: Mapping[str, Host]) -> list[str]:
    return sorted(hosts, key=lambda name: (-hosts[name].reasons.total(), -hosts[name].urls, name))


def tally_signals(folder: Folder, ledgers: Iterable[FileRecord], max_rows: int = MAX_SIGNALS) -> pa.Table:
    """Return a table of schema `SIGNALS`; within a kind and value, hosts with the most pages come first."""
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
    return pa.Table.from_pylist([dict(zip(SIGNALS.names, row, strict=True)) for row in rows], schema=SIGNALS)


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
