"""Shards in groups of bounded size, and samples of their texts."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt2train.errors import RunError
from gpt2train.store.folder import FileRecord, Folder
from tasks.core.shards import ROW_GROUP, in_groups, read_table, sample_texts, write_table


def test_shards_are_grouped_within_bounds() -> None:
    def record(rows: int, size: int = 1) -> FileRecord:
        return FileRecord(name="x", bytes=size, sha256="", rows=rows)

    def cut(*records: FileRecord) -> list[list[int]]:
        return [list(places) for places in in_groups(records, 10, 100, 4)]

    assert cut() == [[]]
    assert cut(record(11)) == [[0]]
    assert cut(*[record(4)] * 5) == [[0, 1], [2, 3], [4]]
    assert cut(record(1, 60), record(1, 60), record(1, 40)) == [[0], [1, 2]]
    assert cut(*[record(10)] * 16) == [[n, n + 1, n + 2, n + 3] for n in (0, 4, 8, 12)]


def test_a_sample_is_of_evenly_spaced_texts_and_reads_the_row_groups_that_it_needs(tmp_path: Path) -> None:
    folder, draw = Folder(tmp_path), random.Random(3)
    texts = [f"{row} " + "é" * draw.randrange(400) for row in range(3 * ROW_GROUP + 17)]
    write_table(folder, "a.parquet", pa.table({"text": pa.array(texts, pa.large_string())}))
    spaced = [text.encode() for text in texts[:: len(texts) // 64]]
    whole = sample_texts(folder, ["a.parquet"], 1 << 20)
    assert whole == [raw.decode() for raw in spaced]

    found = sample_texts(folder, ["a.parquet"] * 2, 8192)
    assert found[: len(found) // 2] == found[len(found) // 2 :]
    assert 2048 < sum(len(text.encode()) for text in found[: len(found) // 2]) <= 4096
    assert [text[:9] for text in found[: len(found) // 2]] == [text[:9] for text in whole[: len(found) // 2]]

    last = pq.read_metadata(tmp_path / "a.parquet").row_group(2).column(0)
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    start = last.dictionary_page_offset or last.data_page_offset
    damaged[start : start + 64] = b"\xff" * 64
    (tmp_path / "a.parquet").write_bytes(damaged)
    assert sample_texts(folder, ["a.parquet"] * 2, 8192) == found  # of the first row group
    for read in (lambda: sample_texts(folder, ["a.parquet"], 1 << 20), lambda: read_table(folder, "a.parquet")):
        with pytest.raises(RunError, match=r"a\.parquet is not the Parquet file expected"):
            read()
    with pytest.raises(FileNotFoundError):
        read_table(folder, "absent.parquet")


def test_a_local_table_is_read_by_arrow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of Arrow may free a file when the process ends: one of Python would need the interpreter then."""
    folder, table = Folder(tmp_path), pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    write_table(folder, "a.parquet", table)
    monkeypatch.delattr(Folder, "open")
    assert read_table(folder, "a.parquet", ["b", "a"]).equals(table.select(["b", "a"]))
    assert read_table(folder, "a.parquet", ["b"], [("a", ">", 1)])["b"].to_pylist() == ["y", "z"]
