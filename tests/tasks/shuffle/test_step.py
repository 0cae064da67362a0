"""The shuffle step: order by a keyed hash, independent of shards, cells and workers."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.core.shards import CLEAN, read_table
from tasks.core.step import BEGUN, Step
from tasks.shuffle.step import ShuffleSettings, cell_of, count_cells, scatter_shards, shuffle, shuffle_key
from tests.tasks.corpus import Inline, content_of, documents_of, row, rows_of

ROWS = [row(f"text {number}") for number in range(300)]


def run(folder: Path, per_shard: int = 70, **settings: int) -> tuple[Folder, Manifest]:
    root = Folder(folder)
    with Inline(workers=1) as runner:
        return root, shuffle(root, documents_of(root, ROWS, per_shard), ShuffleSettings(**settings), runner)


def test_order_equals_one_plain_sort(tmp_path: Path) -> None:
    """By the seed, whatever the cells are."""
    root, manifest = run(tmp_path, rows_per_cell=50)
    plain = sorted(ROWS, key=lambda r: shuffle_key(1, r["id"]))
    assert rows_of(root, manifest) == [{**dict.fromkeys(CLEAN.names), **r} for r in plain]
    assert len(manifest.outputs) == 6
    assert read_table(root / "shuffled", manifest.outputs[0].name).schema.equals(CLEAN)
    assert (manifest.outcome.seen, manifest.outcome.kept) == (300, 300)
    assert not [name for name in (root / "shuffled").files() if name.startswith("scatter")]
    for name, settings in {"a": {}, "b": {"rows_per_cell": 7}, "c": {"seed": 2}}.items():
        plain = sorted(ROWS, key=lambda r: shuffle_key(settings.get("seed", 1), r["id"]))
        assert [r["id"] for r in rows_of(*run(tmp_path / name, **settings))] == [r["id"] for r in plain]
    assert len({shuffle_key(seed, ROWS[0]["id"]) for seed in (1, 2)}) == 2


def test_every_order_is_equally_likely() -> None:
    """Chi-square over the 24 orders of 4 documents, for consecutive seeds: 49.7 is passed by chance once in 1,000."""
    seeds = 4800
    orders = Counter(tuple(sorted(range(4), key=lambda d: shuffle_key(seed, f"d{d}"))) for seed in range(seeds))
    expected = seeds / 24
    assert len(orders) == 24
    assert sum((count - expected) ** 2 / expected for count in orders.values()) < 49.7


def test_cells_are_bounded_by_rows_and_bytes() -> None:
    assert count_cells(0, 0, ShuffleSettings()) == 1
    assert count_cells(8193, 0, ShuffleSettings()) == 2
    assert count_cells(10**8, 75 * 10**9, ShuffleSettings()) == 1024
    assert count_cells(10**9, 750 * 10**9, ShuffleSettings()) == 2794
    assert count_cells(100, 10**9, ShuffleSettings(bytes_per_cell=10**8)) == 10


def test_large_documents_give_cells_of_fewer_rows(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    large = [row(random.bytes(50_000).hex()) for _ in range(20)]
    root = Folder(tmp_path)
    documents = documents_of(root, [*ROWS, *large], 40)
    size = sum(record.bytes for record in documents.outputs)
    with Inline(workers=1) as runner:
        manifest = shuffle(root, documents, ShuffleSettings(bytes_per_cell=size // 7), runner)
    assert len(manifest.outputs) == 8
    assert max(record.bytes for record in manifest.outputs) < size / 2
    ids = sorted((r["id"] for r in [*ROWS, *large]), key=lambda name: shuffle_key(1, name))
    assert [r["id"] for r in rows_of(root, manifest)] == ids


def test_shards_are_scattered_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = content_of(*run(tmp_path / "one", rows_per_cell=100))
    monkeypatch.setattr("tasks.shuffle.step.GROUP_ROWS", 150)
    monkeypatch.setattr("tasks.shuffle.step.MAX_GROUPS", 3)
    assert content_of(*run(tmp_path / "three", per_shard=20, rows_per_cell=100)) == expected


def test_an_empty_corpus_is_shuffled(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    step = Step(root, "clean", version=1, parameters={}, inputs={})
    with Inline(workers=1) as runner:
        assert not shuffle(root, step.commit(Outcome()), ShuffleSettings(), runner).outputs
        assert not rows_of(root, shuffle(root, documents_of(root, []), ShuffleSettings(), runner))


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1), st.integers(1, 1000))
def test_cells_are_ranges_of_keys(keys: list[bytes], cells: int) -> None:
    numbers = [cell_of(key, cells) for key in sorted(keys)]
    assert numbers == sorted(numbers)
    assert numbers[0] >= 0 and numbers[-1] < cells


def test_a_truncated_scatter_file_is_not_used(tmp_path: Path) -> None:
    """State after a kill: one scattered shard is committed, another is truncated and uncommitted."""
    expected = content_of(*run(tmp_path / "straight", rows_per_cell=100))
    root = Folder(tmp_path / "killed")
    source = documents_of(root, ROWS, 70)
    folder = root / "shuffled"
    shards = [f"part-{number:05d}.parquet" for number in range(5)]
    folder.write_bytes(BEGUN, b"")
    scatter_shards(folder, "scatter-00000", shards, root / "clean", 1, 3)
    path = Path(folder.path("scatter/scatter-00000.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    with Inline(workers=1) as runner:
        assert content_of(root, shuffle(root, source, ShuffleSettings(rows_per_cell=100), runner)) == expected


def test_the_same_document_twice_is_kept_twice(tmp_path: Path) -> None:
    twins = [row("same", url="http://b"), row("same", url="http://a"), row("other")]
    for per_shard in (1, 300):
        root = Folder(tmp_path / str(per_shard))
        with Inline(workers=1) as runner:
            manifest = shuffle(root, documents_of(root, twins, per_shard), ShuffleSettings(), runner)
        assert [r["url"] for r in rows_of(root, manifest) if r["text"] == "same"] == ["http://a", "http://b"]
