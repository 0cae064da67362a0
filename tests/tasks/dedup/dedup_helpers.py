"""The dedup step over given documents, and its audit."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpt2train.store.manifest import Folder, Manifest
from tasks.core.shards import read_rows
from tasks.dedup.step import DedupSettings, dedup
from tests.tasks.corpus import Inline, documents_of

WORDS = [f"word{number:03d}" for number in range(400)]


def words(*spans: tuple[int, int]) -> str:
    return " ".join(word for start, end in spans for word in WORDS[start:end])


def run(
    folder: Path, rows: list[dict[str, Any]], settings: DedupSettings | None = None, per_shard: int = 1000
) -> tuple[Folder, Manifest]:
    root = Folder(folder)
    documents = documents_of(root, rows, per_shard)
    with Inline(workers=1) as runner:
        return root, dedup(root, documents, settings or DedupSettings(), runner)


def audit(root: Folder, manifest: Manifest, kind: str) -> list[dict[str, Any]]:
    names = [record.name for record in manifest.outcome.audit if record.name.startswith(kind)]
    return [found for name in names for found in read_rows(root / "dedup", name)]


def jaccard(one: Iterable[int], other: Iterable[int]) -> float:
    left, right = set(one), set(other)
    return len(left & right) / len(left | right) if left | right else 0.0
