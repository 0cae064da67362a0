"""Counts of a manifest, compared with each other and with the files that have what is counted."""

from collections import Counter
from collections.abc import Iterator

import pyarrow.parquet as pq

from gpt2train.store.counts import count_of
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest

TABLES = (".parquet", ".warc.gz")  # files whose rows or pages are what a step keeps
WIDTHS = (2, 4)  # bytes of a token


def rows_of(folder: Folder, record: FileRecord) -> int | None:
    """Return the rows of a Parquet file by its footer; None for another file."""
    if not record.name.endswith(".parquet"):
        return None
    with folder.open(record.name) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def count_problems(manifest: Manifest) -> Iterator[str]:
    """Yield the contradictions between the counts of a manifest.

    The counts of tokens and documents are those that cards, reports and the passport show.
    """
    outcome = manifest.outcome
    if manifest.step == "tokenize":
        yield from _token_problems(manifest)
    rows = [one.rows for one in outcome.outputs if one.rows is not None and one.name.endswith(TABLES)]
    if not rows or len(rows) < len(outcome.outputs):
        return
    dropped = sum(outcome.reasons.values())
    if outcome.kept != sum(rows):
        yield f"its manifest counts {outcome.kept:,} kept rows, its outputs have {sum(rows):,}"
    if outcome.seen != outcome.kept + dropped:
        yield f"its manifest counts {count_of(outcome.seen, 'row')}, {outcome.kept:,} kept and {dropped:,} dropped"


def _token_problems(manifest: Manifest) -> Iterator[str]:
    found: Counter[str] = Counter()
    for record in manifest.outcome.outputs:
        split, _, name = record.name.partition("/")
        if name.endswith(".bin"):
            found[f"{split}_tokens"] += record.rows or 0
            if record.rows and record.bytes not in [record.rows * width for width in WIDTHS]:
                yield f"{record.name}: {record.rows:,} tokens in the manifest, which do not give {record.bytes:,} bytes"
        elif name.endswith(".parquet"):
            found[f"{split}_documents"] += record.rows or 0
    for name, stated in manifest.outcome.facts.items():
        if name in found and stated != found[name]:
            yield f"its manifest states {name}: {stated:,}, its files have {found[name]:,}"
