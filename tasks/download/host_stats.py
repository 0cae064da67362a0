"""Statistics per host, from the ledgers: the sites that cost a crawl pages and time.

Memory is bounded: of more than `MAX_HOSTS` hosts, those with the fewest failures and pages are summed in one row.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from tasks.core.shards import read_rows
from tasks.core.storage import FileRecord, Folder
from tasks.download.urls import host_of

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

    @property
    def failed(self) -> int:
        """Number of pages that failed."""
        return self.reasons.total()

    def add(self, other: "Host") -> None:
        """Add the counts of another host."""
        self.urls += other.urls
        self.milliseconds += other.milliseconds
        self.reasons.update(other.reasons)


def tally_hosts(folder: Folder, ledgers: Iterable[FileRecord], max_hosts: int = MAX_HOSTS) -> pa.Table:
    """Return a table of schema `HOSTS`, sorted by failures in descending order.

    Args:
        folder: Folder of the download.
        ledgers: Ledger files.
        max_hosts: Maximum number of hosts in the table; the others are summed in one row.
    """
    hosts: dict[str, Host] = {}
    others = Host()
    for record in ledgers:
        for row in read_rows(folder, record.name, ["url", "reason", "elapsed_ms"]):
            host = hosts.setdefault(host_of(row["url"]), Host())
            host.urls += 1
            host.milliseconds += row["elapsed_ms"] or 0
            if row["reason"]:
                host.reasons[row["reason"]] += 1
        if len(hosts) > 2 * max_hosts:
            for name in _ranked(hosts)[max_hosts:]:
                others.add(hosts.pop(name))
    for name in _ranked(hosts)[max_hosts:]:
        others.add(hosts.pop(name))
    entries = [(name, hosts[name]) for name in _ranked(hosts)] + ([(OTHERS, others)] if others.urls else [])
    rows = [
        {
            "host": name,
            "urls": host.urls,
            "ok": host.urls - host.failed,
            "failed": host.failed,
            "top_reason": min(host.reasons, key=lambda reason: (-host.reasons[reason], reason), default=None),
            "seconds": host.milliseconds / 1000,
        }
        for name, host in entries
    ]
    return pa.Table.from_pylist(rows, schema=HOSTS)


def hosts_file(audit: Iterable[FileRecord]) -> FileRecord | None:
    """Return the host table among the audit files of a download, or None."""
    return next((record for record in audit if record.name.startswith(HOSTS_FILE)), None)


def _ranked(hosts: dict[str, Host]) -> list[str]:
    return sorted(hosts, key=lambda name: (-hosts[name].failed, -hosts[name].urls, name))
