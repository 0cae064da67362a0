"""What the data steps did, as a reader wants to see it: lengths, languages, hosts, repeated texts, dropped rows.

Everything is bounded: the longest lists are cut at the top entries, and of a large corpus the first rows of evenly
spaced shards are looked at; the page says so.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.dedup.audit import Cluster, Member, largest_clusters
from tasks.report.pictures import data_uri, length_histogram
from tasks.shards import read_table
from tasks.steps import Manifest
from tasks.storage import FileRecord, Folder

TOP = 20  # entries of a list
SHARDS, ROWS = 32, 5000  # looked at of each step, and of each shard
CLUSTERS, MEMBERS = 10, 8
FOUND = re.compile(r"found (\S+), expected")  # the detail of a row of another language


def findings(root: Folder, by_step: Mapping[str, Manifest], samples: int) -> dict[str, Any]:
    """Everything of the page's data part, as plain values; what a run has no step for is empty.

    Args:
        by_step: manifests by the name of their step.
        samples: rejected rows shown for each reason.
    """
    before, after = by_step.get("extract"), by_step.get("shuffle")
    dedup, download = by_step.get("dedup"), by_step.get("download")
    lengths = [(name, _lengths(root, step)) for name, step in (("extracted", before), ("kept", after)) if step]
    return {
        "reasons": reasons([step for name, step in by_step.items() if name != "cloze"]),  # passages, not documents
        "lengths": [_summary(name, sizes) for name, sizes in lengths if len(sizes)],
        "length_picture": data_uri(length_histogram(lengths)) if any(len(sizes) for _, sizes in lengths) else None,
        "languages": languages(root, by_step.get("clean"), after),
        "hosts": hosts(root, download) if download else [],
        "clusters": [_cluster(found) for found in _clusters(root, dedup)] if dedup else [],
        "rejected": {
            name: rejected_samples(root, manifest, samples)
            for name, manifest in by_step.items()
            if manifest.outcome.rejected
        },
        "sampled": any(len(step.outputs) > SHARDS or _rows(step) > SHARDS * ROWS for step in (before, after) if step),
    }


def reasons(manifests: Sequence[Manifest], top: int = TOP) -> list[dict[str, Any]]:
    """The most frequent reasons for which any step dropped rows, and the sum of the others."""
    counted = [
        (-count, manifest.step, reason) for manifest in manifests for reason, count in manifest.outcome.reasons.items()
    ]
    counted.sort()
    found = [{"step": step, "reason": reason, "count": -less} for less, step, reason in counted[:top]]
    rest = -sum(less for less, _, _ in counted[top:])
    return found + ([{"step": "", "reason": f"{len(counted) - top} others", "count": rest}] if rest else [])


def languages(root: Folder, clean: Manifest | None, after: Manifest | None) -> list[dict[str, Any]]:
    """Documents by language, before cleaning (as far as it looked) and at the end; the most frequent first."""
    seen: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    if clean is not None:
        for record in _spread(clean.outputs):
            seen.update(_column(root / clean.folder, record, "language"))
        for record in _spread(clean.outcome.rejected):
            table = _head(root / clean.folder, record, ["reason", "detail"])
            for detail in table.filter(pc.equal(table["reason"], "wrong_language"))["detail"].to_pylist():
                seen.update(FOUND.findall(detail or ""))
    if after is not None:
        for record in _spread(after.outputs):
            kept.update(_column(root / after.folder, record, "language"))
    top = sorted(seen | kept, key=lambda name: (-seen[name], -kept[name], name))
    return [{"language": name, "before": max(seen[name], kept[name]), "after": kept[name]} for name in top[:TOP]]


def hosts(root: Folder, download: Manifest) -> list[dict[str, Any]]:
    """The hosts with the most failures, from the table that the download keeps."""
    for record in download.outcome.audit:
        if record.name.startswith("hosts"):
            table = _head(root / download.folder, record, None)
            return table.filter(pc.greater(table["failed"], 0)).slice(0, TOP).to_pylist()
    return []


def rejected_samples(root: Folder, manifest: Manifest, samples: int) -> dict[str, dict[str, Any]]:
    """For each reason, sorted by name: the count, and the first rejected rows in the order of the shards."""
    found: dict[str, list[dict[str, Any]]] = {reason: [] for reason in sorted(manifest.outcome.reasons)}
    folder = root / manifest.folder
    for record in manifest.outcome.rejected:
        wanted = [reason for reason, rows in found.items() if len(rows) < samples]
        if not wanted:
            break
        # The reasons alone first: of most shards no row is shown.
        codes = read_table(folder, record.name, ["reason"])["reason"].to_numpy()
        places = [int(p) for reason in wanted for p in np.flatnonzero(codes == reason)[: samples - len(found[reason])]]
        if places:
            for row in read_table(folder, record.name).take(sorted(places)).to_pylist():
                found[row["reason"]].append(row)
    return {reason: {"count": manifest.outcome.reasons.get(reason), "rows": rows} for reason, rows in found.items()}


def word_diff(one: str, other: str) -> list[tuple[str, str]]:
    """What turns one text into another, word by word: (`same` | `gone` | `new`, words)."""
    ours, theirs = one.split(), other.split()
    parts: list[tuple[str, str]] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag == "equal":
            parts.append(("same", " ".join(ours[a:b])))
            continue
        if a < b:
            parts.append(("gone", " ".join(ours[a:b])))
        if c < d:
            parts.append(("new", " ".join(theirs[c:d])))
    return parts


def _clusters(root: Folder, dedup: Manifest) -> list[Cluster]:
    return largest_clusters(root / dedup.folder, dedup, count=CLUSTERS, members=MEMBERS)


def _cluster(cluster: Cluster) -> dict[str, Any]:
    """A cluster with the difference between what was kept and one that was dropped for it."""
    kept = next((member for member in cluster.members if member.reason is None), cluster.members[0])
    # A text that differs says more than a copy.
    others = sorted((m for m in cluster.members if m.id != kept.id), key=lambda m: m.reason != "near_duplicate")
    other: Member | None = others[0] if others else None
    return {
        "size": cluster.size,
        "kept": kept,
        "other": other,
        "others": others[1:],
        "hidden": cluster.size - len(cluster.members),
        "diff": word_diff(kept.excerpt, other.excerpt) if other and kept.excerpt and other.excerpt else [],
    }


def _spread(records: Sequence[FileRecord]) -> Sequence[FileRecord]:
    """At most SHARDS of the files, evenly spaced."""
    return records[:: -(-len(records) // SHARDS) or 1]


def _rows(manifest: Manifest) -> int:
    return sum(record.rows or 0 for record in manifest.outputs)


def _head(folder: Folder, record: FileRecord, columns: list[str] | None) -> pa.Table:
    """The first ROWS rows of a file; a batch at a time, so that a large file costs no more."""
    with folder.open(record.name) as file:
        parquet = pq.ParquetFile(file)
        batches, rows = [], 0
        for batch in parquet.iter_batches(batch_size=1024, columns=columns):
            batches.append(batch)
            rows += batch.num_rows
            if rows >= ROWS:
                break
        schema = (
            parquet.schema_arrow if columns is None else pa.schema([parquet.schema_arrow.field(c) for c in columns])
        )
        return pa.Table.from_batches(batches, schema=schema)


def _column(folder: Folder, record: FileRecord, name: str) -> Iterator[str]:
    yield from (value or "none" for value in _head(folder, record, [name])[name].to_pylist())


def _lengths(root: Folder, manifest: Manifest) -> np.ndarray:
    """Characters of each document of the files that are looked at."""
    found = [
        pc.utf8_length(_head(root / manifest.folder, record, ["text"])["text"]).to_numpy()
        for record in _spread(manifest.outputs)
    ]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _summary(name: str, sizes: np.ndarray) -> dict[str, Any]:
    low, middle, high = np.percentile(sizes, [10, 50, 90])
    return {"name": name, "documents": len(sizes), "p10": int(low), "median": int(middle), "p90": int(high)}
