"""Documents to documents without the lines that many documents of their host share.

The first pass counts, for each host and line, the documents that have it; a line is known by a hash of 63 bits of host
and line. The counts of a group of shards are a file in the order of the hashes, so that they are added up by ranges of
hashes in bounded memory. The second pass removes the frequent lines from all documents of the host.
"""

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.boilerplate.settings import BoilerplateSettings
from tasks.core.document import trim
from tasks.core.runner import Runner
from tasks.core.shards import (
    DOCUMENT,
    EXCERPT,
    commit_rows,
    in_groups,
    read_rows,
    read_table,
    rejected_row,
    write_numbers,
    write_table,
)
from tasks.core.step import Step
from tasks.core.url_lists import host_of

BLANK_LINES = re.compile(r"\n{3,}")
LETTER_CHARACTERS = 100  # of a line, in which letters are counted
VERSION = 2
GROUP_ROWS, GROUP_BYTES, MAX_GROUPS = 1 << 14, 64 << 20, 512
MAX_LINES = 1 << 24  # counts that are added up in memory at a time: 400 MB
BITS = 63  # of a hash
COUNT = pa.schema([("line", pa.int64()), ("host", pa.int64()), ("documents", pa.int64())])
LINE = pa.schema([("host", pa.string()), ("line", pa.string()), ("documents", pa.int64()), ("lines", pa.int64())])


def boilerplate(root: Folder, documents: Manifest, settings: BoilerplateSettings, runner: Runner) -> Manifest:
    """Remove the repeated lines of each host into `boilerplate/`; `id` and URL of a document stay."""
    step = Step(
        root,
        "boilerplate",
        version=VERSION,
        parameters=settings,
        inputs={"documents": documents},
        packages=("unicodedata",),
    )
    if done := runner.finished(step):
        return done
    source, records = root / documents.folder, documents.outputs
    shards = [record.name for record in records]
    cuts = in_groups(records, GROUP_ROWS, GROUP_BYTES, MAX_GROUPS) if records else []
    groups = [tuple(shards[shard] for shard in cut) for cut in cuts]
    counted = runner.batches(step, "count", groups, count_group, source, settings)
    counts = [outcome.outputs[0] for outcome in counted]
    hosts = [outcome.outputs[1].name for outcome in counted]
    ranges = 1 << (sum(record.rows or 0 for record in counts) // MAX_LINES).bit_length()
    options = (ranges, [record.name for record in counts], hosts, settings)
    found = runner.batches(step, "frequent", range(ranges), find_frequent, *options)
    frequent = tuple(record for outcome in found for record in outcome.outputs)
    parts = runner.batches(step, "part", shards, remove_lines, source, frequent, settings)
    removed = [record.name for outcome in parts for record in outcome.audit]
    [lines] = runner.batches(step, "lines", [tuple(removed)], add_lines)
    total = Outcome.total(parts)
    # The files of counts, and those of the removed lines of each part, are intermediate.
    return step.commit(total.model_copy(update={"audit": lines.outputs, "facts": total.facts | lines.facts}))


def count_group(
    folder: Folder, name: str, shards: Sequence[str], source: Folder, settings: BoilerplateSettings
) -> Outcome:
    """Count the documents of each line, and of each host, of a group of shards."""
    hosts: Counter[int] = Counter()
    lines: Counter[tuple[int, int]] = Counter()
    for shard in shards:
        for row in read_rows(source, shard, ["url", "text"]):
            if host := host_of(row["url"]):
                key = hash_of(host)
                hosts[key] += 1
                lines.update({(line, key) for _, _, line in candidates(row["text"], host, settings.min_letters)})
    number = name.rpartition("-")[2]
    keys = np.array([*lines], dtype=np.int64).reshape(-1, 2)
    columns = {"line": keys[:, 0], "host": keys[:, 1], "documents": np.array([*lines.values()], dtype=np.int64)}
    counts = pa.table(columns, schema=COUNT).sort_by([("line", "ascending"), ("host", "ascending")])
    documents = pa.table({"host": sorted(hosts), "documents": [hosts[host] for host in sorted(hosts)]})
    return Outcome(
        outputs=(
            write_numbers(folder, f"counts/{number}.parquet", counts),
            write_numbers(folder, f"hosts/{number}.parquet", documents.cast(COUNT.remove(0))),
        )
    )


def find_frequent(
    folder: Folder,
    name: str,
    part: int,
    ranges: int,
    counts: Sequence[str],
    hosts: Sequence[str],
    settings: BoilerplateSettings,
) -> Outcome:
    """Write the hashes of the frequent lines in one of `ranges` equal ranges, ascending."""
    size = 1 << (BITS + 1 - ranges.bit_length())
    low, last = part * size, (part + 1) * size - 1  # the end of all ranges is no int64
    total = pa.concat_tables([_range(folder, file, low, last) for file in counts] or [COUNT.empty_table()])
    total = total.group_by(["line", "host"]).aggregate([("documents", "sum")])
    total = total.filter(pc.greater_equal(total["documents_sum"], settings.min_documents))
    sizes = pa.concat_tables([read_table(folder, file) for file in hosts] or [COUNT.remove(0).empty_table()])
    sizes = sizes.group_by("host").aggregate([("documents", "sum")]).sort_by("host")
    host = np.searchsorted(sizes["host"].to_numpy(), total["host"].to_numpy())
    share = total["documents_sum"].to_numpy() / sizes["documents_sum"].to_numpy()[host]
    lines = np.sort(total["line"].to_numpy()[share >= settings.min_share])
    return Outcome(outputs=(write_numbers(folder, f"frequent/{name}.parquet", pa.table({"line": lines})),))


def remove_lines(
    folder: Folder,
    name: str,
    part: str,
    source: Folder,
    frequent: tuple[FileRecord, ...],
    settings: BoilerplateSettings,
) -> Outcome:
    """Remove the frequent lines from one shard; runs in a worker."""
    known = _load(folder.url, frequent)
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    removed: dict[tuple[str, str], list[int]] = {}
    facts = Counter(documents_changed=0, lines_removed=0, characters_removed=0)
    for row in read_rows(source, part):
        host, text = host_of(row["url"]), row["text"]
        found = list(candidates(text, host, settings.min_letters)) if host else []
        marked = known[np.minimum(np.searchsorted(known, [key for _, _, key in found]), len(known) - 1)]
        repeated = [one for one, key in zip(found, marked.tolist(), strict=True) if one[2] == key]
        if not repeated:
            kept.append(row)
            continue
        for line, times in Counter(line for _, line, _ in repeated).items():
            counts = removed.setdefault((host, line[:EXCERPT]), [0, 0])
            counts[0] += 1
            counts[1] += times
        left = without_lines(text, {index for index, _, _ in repeated})
        facts.update(documents_changed=1, lines_removed=len(repeated), characters_removed=len(text) - len(left))
        if left:
            kept.append({**row, "text": left})
        else:
            rejected.append(rejected_row(row, "only_boilerplate", f"{len(repeated)} lines that {host} repeats"))
    outcome = commit_rows(folder, f"{name}.parquet", kept, rejected, DOCUMENT, dict(facts))
    rows = [
        {"host": host, "line": line, "documents": documents, "lines": lines}
        for (host, line), (documents, lines) in sorted(removed.items())
    ]
    audit = write_table(folder, f"removed/{name}.parquet", pa.Table.from_pylist(rows, LINE))
    return outcome.model_copy(update={"audit": (audit,)})


def add_lines(folder: Folder, name: str, removed: Sequence[str]) -> Outcome:
    """Add up the removed lines of all shards, those of the most documents first."""
    table = pa.concat_tables([read_table(folder, file) for file in removed] or [LINE.empty_table()])
    table = table.group_by(["host", "line"]).aggregate([("documents", "sum"), ("lines", "sum")])
    table = table.rename_columns({"documents_sum": "documents", "lines_sum": "lines"}).select(LINE.names).cast(LINE)
    order = [("documents", "descending"), ("host", "ascending"), ("line", "ascending")]
    record = write_table(folder, "lines/part-00000.parquet", table.sort_by(order).combine_chunks())
    return Outcome(outputs=(record,), facts={"distinct_lines": len(table)})


def _range(folder: Folder, name: str, low: int, last: int) -> pa.Table:
    """Counts of the lines whose hash is in a range, both ends included; other row groups are not read."""
    return read_table(folder, name, filters=[("line", ">=", low), ("line", "<=", last)])


@functools.lru_cache(maxsize=2)
def _load(url: str, frequent: tuple[FileRecord, ...]) -> npt.NDArray[np.int64]:
    """Hashes of all frequent lines, ascending, after one that no line has."""
    folder = Folder(url)
    found = [read_table(folder, record.name)["line"].to_numpy() for record in frequent]
    return np.concatenate([np.array([-1], dtype=np.int64), *found])


def hash_of(text: str) -> int:
    """63-bit hash of a text, so that it is a positive int64."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def candidates(text: str, host: str, min_letters: int) -> Iterator[tuple[int, str, int]]:
    """Yield index, text and hash of each line that may be removed; white space does not distinguish lines."""
    for index, raw in enumerate(text.split("\n")):
        if len(raw) >= min_letters:
            line = " ".join(raw.split())
            if sum(map(str.isalpha, line[:LETTER_CHARACTERS])) >= min_letters:
                yield index, line, hash_of(f"{host}\n{line}")


def without_lines(text: str, indices: Collection[int]) -> str:
    """Text without the lines with these indices; the blank lines around them are joined."""
    left = [line for index, line in enumerate(text.split("\n")) if index not in indices]
    return trim(BLANK_LINES.sub("\n\n", "\n".join(left)))
