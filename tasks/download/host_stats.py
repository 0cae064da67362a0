"""Statistics per host, from the ledgers: the sites that cost a crawl pages and time.

Memory is bounded: of more than `MAX_HOSTS` hosts, those with the fewest failures and pages are summed in one row.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

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
MAX_HOSTS = 200_000
OTHERS = "(other hosts)"


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
