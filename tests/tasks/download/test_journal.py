"""The journal of a shard: complete records survive truncation."""

import gzip
from pathlib import Path

import pytest

from gpt2train.errors import RunError
from tasks.download.journal import Journal


def test_a_truncated_journal_keeps_its_complete_records(tmp_path: Path) -> None:
    urls = [f"http://a.test/{n}" for n in range(3)]
    records = [gzip.compress(b"page" * n) for n in (1, 2)]
    with Journal(tmp_path / "j", "key", urls) as journal:
        journal.add(2, {"url": urls[2]}, records[0])
        journal.add(0, {"url": urls[0]}, b"")
        journal.add(1, {"url": urls[1]}, records[1])
    rows, pages = (tmp_path / "j.rows").read_bytes(), (tmp_path / "j.pages").read_bytes()
    ends = [rows.index(b"\n") + 1]
    while ends[-1] < len(rows):
        ends.append(rows.index(b"\n", ends[-1]) + 1)
    orders = [set(), {2}, {2, 0}, {2, 0, 1}]
    for cut in sorted({0, *ends, *(end - 1 for end in ends), *range(1, len(rows), 9)}):
        (tmp_path / "j.rows").write_bytes(rows[:cut])
        (tmp_path / "j.pages").write_bytes(pages)
        with Journal(tmp_path / "j", "key", urls) as journal:
            assert journal.done == orders[max(0, sum(end <= cut for end in ends) - 1)]
            for index in {0, 1, 2} - journal.done:
                journal.add(index, {"url": urls[index]}, records[0])
            found = journal.rows()
            assert [row["url"] for row, _, _ in found] == urls
            assert all(gzip.decompress(journal.page(*at) or gzip.compress(b"")) is not None for _, *at in found)
    (tmp_path / "j.rows").write_bytes(rows)
    (tmp_path / "j.pages").write_bytes(pages[:-1])  # as after a power cut: the row is there, its page is not
    with Journal(tmp_path / "j", "key", urls) as journal:
        assert journal.done == {2, 0}
    for key, other in (("else", urls), ("key", urls[::-1])):
        with Journal(tmp_path / "j", key, other) as journal:
            assert journal.done == set()


def test_a_full_disk_is_one_error_line(tmp_path: Path) -> None:
    (tmp_path / "j.pages").symlink_to("/dev/full")
    with (
        pytest.raises(RunError, match=r"no space left while writing .*j\.pages: free some"),
        Journal(tmp_path / "j", "key", ["http://a/"]) as journal,
    ):
        journal.add(0, {}, b"a page")
