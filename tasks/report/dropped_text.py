"""Characters of pages that the extraction drops, by rule; and rules that drop more than usual on a host.

Of a sample, a twentieth of the pages: the first with a document in evenly spaced shards, which the extraction has read
within its limits. An account takes as long as an extraction, so the workers make them.
"""

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, merge_manifests
from gpt2train.store.output import Origins
from tasks.core.shards import read_table
from tasks.core.url_lists import host_of
from tasks.core.worker_pool import WorkerPool, result
from tasks.extract.account import RULES, characters_by_rule, page_account
from tasks.extract.blocks import KEPT
from tasks.extract.settings import ACCOUNTED_ENGINE
from tasks.sources.index import read_pages, shard_behind

MIN_SAMPLE, MAX_SAMPLE, MAX_SHARDS = 100, 1000, 32  # pages, and shards
SHARE = 20  # pages of which one is in the sample
MIN_PAGES = 5  # of a host that is compared
MIN_EXCESS = 0.2  # of a host's characters, dropped by a rule beyond its share of all pages
MIN_FACTOR = 2  # of the rule's share of all pages
TOP = 20


def dropped_text(
    root: Folder, by_step: Mapping[str, Manifest], pool: WorkerPool
) -> Callable[[], dict[str, Any] | None]:
    """Start to sum up the characters by rule in a sample of pages; the result is a function that waits for them.

    It returns the sums, and the hosts on which a rule drops an unusual share; None without pages.

    Raises:
        RunError, FileNotFoundError, WorkerLostError: the pages are gone, or a worker was (the function raises it).
    """
    made = by_step.get("extract")
    if made is None or made.parameters.get("engine") != ACCOUNTED_ENGINE:
        return lambda: None
    read = Origins(by_step.values()).behind(made.inputs.get("download", ""))
    if not read:
        return lambda: None
    pages, tables = merge_manifests(read), bool(made.parameters.get("tables", True))
    numbers = range(len(made.outputs))[:: -(-len(made.outputs) // MAX_SHARDS) or 1]
    limit = min(MAX_SAMPLE, max(MIN_SAMPLE, made.outcome.seen // SHARE)) // max(1, len(numbers))
    accounts = [
        pool.submit(_accounts, root / made.folder, name, root / pages.folder, shard_behind(pages, name), limit, tables)
        for name in (made.outputs[number].name for number in numbers)
    ]
    return functools.partial(_summed, accounts)


Account = tuple[str, Counter[str]]  # host of a page, and its characters by rule


def _summed(accounts: Sequence[Future[list[Account]]]) -> dict[str, Any] | None:
    hosts: dict[str, list[Counter[str]]] = defaultdict(list)
    for host, counts in itertools.chain.from_iterable(map(result, accounts)):
        hosts[host].append(counts)
    total = _sum(counts for found in hosts.values() for counts in found)
    if not total.total():
        return None
    rules = [
        {"rule": rule or "kept", "reason": RULES.get(rule, ""), "characters": size, "share": size / total.total()}
        for rule, size in total.most_common()
    ]
    return {"pages": sum(map(len, hosts.values())), "rules": rules, "hosts": _unusual(hosts, total)[:TOP]}


def _accounts(documents: Folder, name: str, pages: Folder, shard: str, limit: int, tables: bool) -> list[Account]:
    """Read the first pages of a shard that have a document, and sum up the characters of each."""
    remaining = Counter(read_table(documents, name, ["url"])["url"].to_pylist()[:limit])
    found: list[Account] = []
    for page in read_pages(pages, shard) if remaining else ():
        if remaining[page.url] > 0:
            remaining[page.url] -= 1
            if account := page_account(page, tables):
                found.append((host_of(page.url) or "", characters_by_rule(account[2])))
            if not remaining.total():
                break
    return found


def _unusual(hosts: Mapping[str, list[Counter[str]]], total: Counter[str]) -> list[dict[str, Any]]:
    """Hosts and rules with more than the rule's usual share, those that drop the most characters first."""
    found = []
    for host, pages in hosts.items():
        own = _sum(pages)
        for rule, size in own.items():
            share, usual = size / max(1, own.total()), total[rule] / total.total()
            is_unusual = share >= max(usual + MIN_EXCESS, MIN_FACTOR * usual)
            if rule != KEPT and len(pages) >= MIN_PAGES and is_unusual:
                row = {"host": host, "rule": rule, "pages": len(pages), "characters": size}
                found.append({**row, "share": share, "usual": usual})
    return sorted(found, key=lambda row: (-row["characters"], row["host"], row["rule"]))


def _sum(counts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total
