"""Shards in groups of bounded size."""

from tasks.core.shards import in_groups
from tasks.core.storage import FileRecord


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
