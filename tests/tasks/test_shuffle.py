"""The order is that of the keyed hash, whatever the shards, cells and workers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.runner import Runner
from tasks.shards import CLEAN, read_table
from tasks.shuffle import ShuffleSettings, cell_of, scatter_shard, shuffle, shuffle_key
from tasks.steps import Manifest
from tasks.storage import Folder
from tests.tasks.corpus import Inline, content_of, documents_of, row, rows_of

ROWS = [row(f"text {number}") for number in range(300)]


def run(place: Path, per_shard: int = 70, workers: int = 1, **settings: int) -> tuple[Folder, Manifest]:
    root = Folder(place)
    with (Runner if workers > 1 else Inline)(workers=workers) as runner:
        return root, shuffle(root, documents_of(root, ROWS, per_shard), ShuffleSettings(**settings), runner)


def test_order_equals_one_plain_sort(tmp_path: Path) -> None:
    root, manifest = run(tmp_path, rows_per_cell=50)
    plain = sorted(ROWS, key=lambda r: shuffle_key(1, r["id"]))
    assert rows_of(root, manifest) == [{**dict.fromkeys(CLEAN.names), **r} for r in plain]
    assert len(manifest.outputs) == 6
    assert read_table(root / "shuffled", manifest.outputs[0].name).schema.equals(CLEAN)
    assert (manifest.outcome.seen, manifest.outcome.kept) == (300, 300)
    assert not [name for name in (root / "shuffled").files() if name.startswith("scatter")]


def test_bytes_do_not_depend_on_shards_and_workers(tmp_path: Path) -> None:
    one = run(tmp_path / "one", rows_per_cell=100)
    other = run(tmp_path / "other", per_shard=299, workers=2, rows_per_cell=100)
    assert content_of(*one) == content_of(*other)


def test_another_seed_is_another_order_and_cells_are_not(tmp_path: Path) -> None:
    ids = [
        [r["id"] for r in rows_of(*run(tmp_path / name, **settings))]
        for name, settings in {"a": {}, "b": {"rows_per_cell": 7}, "c": {"seed": 2}}.items()
    ]
    assert ids[0] == ids[1] != ids[2]
    assert sorted(ids[0]) == sorted(ids[2])


def test_the_order_is_fair() -> None:
    """Over many seeds each document is first about as often as any other."""
    first = [min(range(5), key=lambda d: shuffle_key(seed, str(d))) for seed in range(5000)]
    assert all(abs(first.count(document) - 1000) < 120 for document in range(5))  # 4 standard deviations


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1), st.integers(1, 1000))
def test_cells_are_ranges_of_keys(keys: list[bytes], cells: int) -> None:
    numbers = [cell_of(key, cells) for key in sorted(keys)]
    assert numbers == sorted(numbers)
    assert numbers[0] >= 0 and numbers[-1] < cells


def test_a_torn_scatter_file_is_not_trusted(tmp_path: Path) -> None:
    """As after kill -9: one scattered shard is committed, another lies there torn and uncommitted."""
    expected = content_of(*run(tmp_path / "straight", rows_per_cell=100))
    root = Folder(tmp_path / "killed")
    source = documents_of(root, ROWS, 70)
    folder = root / "shuffled"
    scatter_shard(folder, "scatter-00000", "part-00000.parquet", root / "clean", 1, 3)
    path = Path(folder.path("scatter/scatter-00000.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    with Inline(workers=1) as runner:
        assert content_of(root, shuffle(root, source, ShuffleSettings(rows_per_cell=100), runner)) == expected


@pytest.mark.parametrize("per_shard", [1, 300])
def test_the_same_document_twice_is_kept_twice(tmp_path: Path, per_shard: int) -> None:
    root = Folder(tmp_path)
    twins = [row("same", url="http://b"), row("same", url="http://a"), row("other")]
    with Inline(workers=1) as runner:
        manifest = shuffle(root, documents_of(root, twins, per_shard), ShuffleSettings(), runner)
    assert [r["url"] for r in rows_of(root, manifest) if r["text"] == "same"] == ["http://a", "http://b"]
