"""Statistics of the data steps for the report: lengths, languages, hosts, duplicates, rejected rows.

Everything is bounded: long lists are cut to the top entries, and a large corpus is sampled by the first rows of evenly
spaced shards, which the page states.
"""

import difflib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.data.text_units import has_unspaced, units_of
from gpt2train.runs.contamination import RESULT, parse_result
from gpt2train.store.counts import count_of
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest
from tasks.core.shards import read_rows, read_table
from tasks.core.worker_pool import WorkerPool, result
from tasks.dedup.cluster_report import Cluster, largest_clusters
from tasks.dedup.lost_sources import MAX_LOST_SHARE, lost_sources
from tasks.download.shard_writer import REFRESH, changes
from tasks.report.dropped_text import dropped_text
from tasks.report.pictures import length_histogram

log = logging.getLogger("gpt2train")
T = TypeVar("T")

TOP = 20  # entries of a list
MAX_SHARDS, MAX_ROWS = 32, 5000  # sampled shards of each step, and rows of each shard
MAX_CLUSTERS, MAX_MEMBERS = 10, 8
FOUND_LANGUAGE = re.compile(r"found (\S+), expected")  # in the detail of a row rejected for its language


def findings(root: Folder, by_step: Mapping[str, Manifest], samples: int, pool: WorkerPool) -> dict[str, Any]:
    """Facts of the data part of the page as plain values; empty for steps that the run does not have.

    There are at most `samples` rejected rows per reason. What takes longest is made in worker processes meanwhile.
    """
    before, after = by_step.get("extract"), by_step.get("shuffle")
    dedup, download = by_step.get("dedup"), by_step.get("download")
    lengths = [(name, _lengths(root, step)) for name, step in (("extracted", before), ("kept", after)) if step]
    picture = pool.submit(length_histogram, lengths) if any(len(sizes) for _, sizes in lengths) else None
    dropped = dropped_text(root, by_step, pool)
    clusters = largest_clusters(root / dedup.folder, dedup, MAX_CLUSTERS, MAX_MEMBERS) if dedup else []
    found = {
        "reasons": reasons([step for name, step in by_step.items() if name != "cloze"]),  # passages, not documents
        "lengths": [_summary(name, sizes) for name, sizes in lengths if len(sizes)],
        "languages": languages(root, by_step.get("clean"), after),
        "hosts": hosts(root, download) if download else [],
        "consent": consent_signals(root, download) if download else None,
        "refresh": refresh_changes(root, download) if download else None,
        "lines": _boilerplate_lines(root, by_step.get("boilerplate")),
        "clusters": [_cluster(found) for found in clusters],
        "rejected": {
            name: rejected_samples(root, manifest, samples)
            for name, manifest in by_step.items()
            if manifest.outcome.rejected
        },
        "sampled": any(
            len(step.outputs) > MAX_SHARDS or sum(record.rows or 0 for record in step.outputs) > MAX_SHARDS * MAX_ROWS
            for step in (before, after)
            if step
        ),
    }
    made = {
        "length_picture": _unless_lost(lambda: result(picture)) if picture else None,
        "dropped": _unless_lost(dropped),
    }
    return found | made


def _unless_lost(wait: Callable[[], T]) -> T | None:
    """Wait for a part of the page that workers make; without it a report is still a report."""
    try:
        return wait()
    except Exception as error:  # noqa: BLE001 - lost pages or workers, and whatever a library raises for a hostile page
        log.warning("warning: a part of the report is left out: %s: %s", type(error).__name__, error)
        return None


def contamination(root: Folder, tokens: Manifest | None) -> list[dict[str, Any]]:
    """Overlap of evaluation sets with the tokens, by `gpt2train data contamination`; empty if of other tokens."""
    if tokens is None or not root.size(RESULT):
        return []
    return [one for one in parse_result(root.read_bytes(RESULT)) if one["tokens_identity"] == tokens.identity]


def reasons(manifests: Sequence[Manifest], top: int = TOP) -> list[dict[str, Any]]:
    """Most frequent reasons for dropped rows over all steps, and the sum of the others."""
    counted = [
        (-count, manifest.step, reason) for manifest in manifests for reason, count in manifest.outcome.reasons.items()
    ]
    counted.sort()
    found = [{"step": step, "reason": reason, "count": -less} for less, step, reason in counted[:top]]
    rest = -sum(less for less, _, _ in counted[top:])
    return found + ([{"step": "", "reason": count_of(len(counted) - top, "other"), "count": rest}] if rest else [])


def languages(root: Folder, clean: Manifest | None, after: Manifest | None) -> list[dict[str, Any]]:
    """Documents by language, before cleaning (if it detected one) and at the end; most frequent first."""
    seen: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    if clean is not None:
        for record in _spread(clean.outputs):
            seen.update(_column(root / clean.folder, record, "language"))
        for record in _spread(clean.outcome.rejected):
            table = _head(root / clean.folder, record, ["reason", "detail"])
            for detail in table.filter(pc.equal(table["reason"], "wrong_language"))["detail"].to_pylist():
                seen.update(FOUND_LANGUAGE.findall(detail or ""))
    if after is not None:
        for record in _spread(after.outputs):
            kept.update(_column(root / after.folder, record, "language"))
    top = sorted(seen | kept, key=lambda name: (-seen[name], -kept[name], name))
    return [{"language": name, "before": max(seen[name], kept[name]), "after": kept[name]} for name in top[:TOP]]


def hosts(root: Folder, download: Manifest) -> list[dict[str, Any]]:
    """Hosts with the most failures, from the host table of the download."""
    for record in download.outcome.audit:
        if record.name.startswith("hosts"):
            table = _head(root / download.folder, record, None)
            return table.filter(pc.greater(table["failed"], 0)).slice(0, TOP).to_pylist()
    return []


def consent_signals(root: Folder, download: Manifest) -> dict[str, list[dict[str, Any]]] | None:
    """Signals against training and licenses that sites stated, and the hosts with the most; None if none was found."""
    found = [record for record in download.outcome.audit if record.name.startswith("consent")]
    rows = read_table(root / download.folder, found[0].name).to_pylist() if found else []
    rows.sort(key=lambda row: (-row["pages"], row["value"], row["host"]))
    kinds: dict[str, list[dict[str, Any]]] = {"signal": [], "license": []}
    for (kind, value), some in groupby(sorted(rows, key=_kind_and_value), key=_kind_and_value):
        hosts_of = [*some]
        counts = {"urls": sum(row["pages"] for row in hosts_of), "dropped": sum(row["dropped"] for row in hosts_of)}
        kinds[kind].append({"name": value, **counts, "hosts": len(hosts_of)})
    worst = [{"name": row["value"], "urls": row["pages"], **row} for row in rows if row["kind"] == "signal"]
    licenses = sorted(kinds["license"], key=lambda row: (-row["urls"], row["name"]))
    return {"signals": kinds["signal"], "hosts": worst[:TOP], "licenses": licenses[:TOP]} if rows else None


def refresh_changes(root: Folder, download: Manifest) -> dict[str, Any] | None:
    """Number of URLs by change at the last refresh, and the first URLs that are not as they were; None without one."""
    counts = changes(download)
    found: dict[str, list[dict[str, Any]]] = {change: [] for change in counts if change not in ("unchanged", "fresh")}
    for record in download.outcome.audit if counts else ():
        if all(len(found[change]) >= min(TOP, counts[change]) for change in found):
            break
        if record.name.startswith(REFRESH) and record.name.endswith(".parquet"):
            for row in read_rows(root / download.folder, record.name):
                if len(some := found.get(row["change"], [])) < TOP and row["change"] in found:
                    some.append(row)
    urls = [row for change, rows in found.items() if change != "missing" for row in rows]
    return {"counts": counts, "urls": urls} if counts else None


def _kind_and_value(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["kind"], row["value"]


def _boilerplate_lines(root: Folder, boilerplate: Manifest | None) -> list[dict[str, Any]]:
    """Removed lines that the most documents had."""
    if boilerplate is None:
        return []
    [record] = boilerplate.outcome.audit
    return _head(root / boilerplate.folder, record, None).slice(0, TOP).to_pylist()


def duplicates(root: Folder, dedup: Manifest | None) -> dict[str, Any] | None:
    """Characters that the deduplication removed and lost, and the sources that lost almost all documents.

    None if the run has no deduplication, or an older one that did not count them.
    """
    if dedup is None or "removed_characters" not in dedup.outcome.facts:
        return None
    facts, lost = dedup.outcome.facts, lost_sources(root / dedup.folder, dedup)
    return {
        "policy": dedup.parameters["policy"],
        "removed": facts["removed_characters"],
        "lost": facts.get("lost_characters", 0),
        "sources": lost[:TOP],
        "hidden": len(lost) - len(lost[:TOP]),
        "share": MAX_LOST_SHARE,
    }


def rejected_samples(root: Folder, manifest: Manifest, samples: int) -> dict[str, dict[str, Any]]:
    """Count and first rejected rows of each reason, sorted by reason; rows are in the order of the shards."""
    found: dict[str, list[dict[str, Any]]] = {reason: [] for reason in sorted(manifest.outcome.reasons)}
    folder = root / manifest.folder
    for record in manifest.outcome.rejected:
        wanted = [reason for reason, rows in found.items() if len(rows) < samples]
        if not wanted:
            break
        # Read the reasons alone first: most shards have no row to show.
        codes = read_table(folder, record.name, ["reason"])["reason"].to_numpy()
        indices = [int(p) for reason in wanted for p in np.flatnonzero(codes == reason)[: samples - len(found[reason])]]
        if indices:
            for row in read_table(folder, record.name).take(sorted(indices)).to_pylist():
                found[row["reason"]].append(row)
    return {reason: {"count": manifest.outcome.reasons.get(reason), "rows": rows} for reason, rows in found.items()}


def word_diff(one: str, other: str) -> list[tuple[str, str]]:
    """Word-level difference of two texts: (`same` | `gone` | `new`, words) pairs.

    Letters of scripts without spaces between words are compared one by one.
    """
    left, right = units_of(one), units_of(other)
    parts: list[tuple[str, str]] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if a < b:
            parts.append(("same" if tag == "equal" else "gone", _joined(left[a:b])))
        if c < d and tag != "equal":
            parts.append(("new", _joined(right[c:d])))
    return parts


def _joined(units: Sequence[str]) -> str:
    """Join units by spaces, but none between letters of scripts without spaces between words."""
    return " ".join("".join(some) if unspaced else " ".join(some) for unspaced, some in groupby(units, has_unspaced))


def _cluster(cluster: Cluster) -> dict[str, Any]:
    """Facts of a cluster, with the difference between the kept document and a dropped one."""
    kept = next((member for member in cluster.members if member.reason is None), cluster.members[0])
    # Prefer a near duplicate: it has a difference to show.
    others = sorted((m for m in cluster.members if m.id != kept.id), key=lambda m: m.reason != "near_duplicate")
    other = others[0] if others else None
    return {
        "size": cluster.size,
        "kept": kept,
        "other": other,
        "others": others[1:],
        "hidden": cluster.size - len(cluster.members),
        "diff": word_diff(kept.excerpt, other.excerpt) if other and kept.excerpt and other.excerpt else [],
    }


def _spread(records: Sequence[FileRecord]) -> Sequence[FileRecord]:
    """At most MAX_SHARDS of the files, evenly spaced."""
    return records[:: -(-len(records) // MAX_SHARDS) or 1]


def _head(folder: Folder, record: FileRecord, columns: list[str] | None) -> pa.Table:
    """About the first MAX_ROWS rows of a file, read in batches, so that the cost does not depend on its size."""
    with folder.open(record.name) as file:
        parquet = pq.ParquetFile(file)
        batches, rows = [], 0
        for batch in parquet.iter_batches(batch_size=1024, columns=columns):
            batches.append(batch)
            rows += batch.num_rows
            if rows >= MAX_ROWS:
                break
        schema = parquet.schema_arrow
        return pa.Table.from_batches(batches, pa.schema([schema.field(c) for c in columns or schema.names]))


def _column(folder: Folder, record: FileRecord, name: str) -> Iterator[str]:
    yield from (value or "none" for value in _head(folder, record, [name])[name].to_pylist())


def _lengths(root: Folder, manifest: Manifest) -> np.ndarray:
    """Characters of each document in the sample."""
    found = [
        pc.utf8_length(_head(root / manifest.folder, record, ["text"])["text"]).to_numpy()
        for record in _spread(manifest.outputs)
    ]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _summary(name: str, sizes: np.ndarray) -> dict[str, Any]:
    low, middle, high = np.percentile(sizes, [10, 50, 90])
    return {"name": name, "documents": len(sizes), "p10": int(low), "median": int(middle), "p90": int(high)}
