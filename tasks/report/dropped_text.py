"""Characters of pages that the extraction drops, by rule; and rules that drop more than usual on a host.

Of a sample, a twentieth of the pages: the first with a document in evenly spaced shards, which the extraction has read
within its limits. An account takes as long as an extraction.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, merge_manifests
from gpt2train.store.output import Origins
from tasks.core.shards import read_table
from tasks.core.url_lists import host_of
from tasks.download.warc import Page
from tasks.extract.account import RULES, characters_by_rule, page_account
from tasks.extract.blocks import KEPT
from tasks.extract.settings import ACCOUNTED_ENGINE
from tasks.sources.index import pages_behind

MIN_SAMPLE, MAX_SAMPLE, MAX_SHARDS = 100, 1000, 32  # pages, and shards
SHARE = 20  # pages of which one is in the sample
MIN_PAGES = 5  # of a host that is compared
MIN_EXCESS = 0.2  # of a host's characters, dropped by a rule beyond its share of all pages
MIN_FACTOR = 2  # of the rule's share of all pages
TOP = 20


def dropped_text(root: Folder, by_step: Mapping[str, Manifest]) -> dict[str, Any] | None:
    """Characters by rule in a sample of pages, and the hosts on which a rule drops an unusual share.

    None without pages, or if they are gone.
    """
    made = by_step.get("extract")
    if made is None or made.parameters.get("engine") != ACCOUNTED_ENGINE:
        return None
    pages = Origins(by_step.values()).behind(made.inputs.get("download", ""))
    if not pages:
        return None
    hosts: dict[str, list[Counter[str]]] = defaultdict(list)
    try:
        for page in _sample(root, made, merge_manifests(pages)):
            if found := page_account(page, bool(made.parameters.get("tables", True))):
                hosts[host_of(page.url) or ""].append(characters_by_rule(found[2]))
    except (RunError, FileNotFoundError):
        return None
    total = _sum(counts for found in hosts.values() for counts in found)
    if not total.total():
        return None
    rules = [
        {"rule": rule or "kept", "reason": RULES.get(rule, ""), "characters": size, "share": size / total.total()}
        for rule, size in total.most_common()
    ]
    return {"pages": sum(map(len, hosts.values())), "rules": rules, "hosts": _unusual(hosts, total)[:TOP]}


def _sample(root: Folder, made: Manifest, pages: Manifest) -> Iterator[Page]:
    """Yield the first pages that have a document, of evenly spaced shards."""
    numbers = range(len(made.outputs))[:: -(-len(made.outputs) // MAX_SHARDS) or 1]
    limit = min(MAX_SAMPLE, max(MIN_SAMPLE, made.outcome.seen // SHARE)) // max(1, len(numbers))
    for number in numbers:
        name = made.outputs[number].name
        wanted = read_table(root / made.folder, name, ["url"])["url"].to_pylist()[:limit]
        remaining = Counter(wanted)
        for page in pages_behind(root, pages, name) if wanted else ():
            if remaining[page.url] > 0:
                remaining[page.url] -= 1
                yield page
                if not remaining.total():
                    break


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
