"""The table of memory of each rank."""

import numpy as np

from gpt2train.monitoring.memory_report import HEAD, MAX_ROWS, RankMemory, peak_resident, table

GIB = 2**30


def row(rank: int, pp: int = 0, dp: int = 0, tp: int = 0, allocated: int = 0) -> RankMemory:
    return RankMemory(rank, f"node{rank}", pp, dp, tp, 89_714_688, 2 * GIB, allocated, 2 * allocated)


def test_the_table_has_one_line_per_rank() -> None:
    title, head, first, second = table([row(0), row(1, tp=1, allocated=3 * GIB // 2)], "at the end")
    assert (title, head) == ("memory at the end", HEAD)
    assert first.split() == ["0", "node0", "0", "0", "0", "89,714,688", "2.00", "GiB", "-", "-"]
    assert second.split()[4:] == ["1", "89,714,688", "2.00", "GiB", "1.50", "GiB", "3.00", "GiB"]
    assert len(head) == len(first) == len(second)


def test_with_many_ranks_only_the_largest_of_each_group_is_listed() -> None:
    rows = [row(rank, pp=rank % 2, dp=rank // 2, allocated=rank * GIB) for rank in range(MAX_ROWS + 2)]
    title, _, *lines = table(rows, "at the end")
    assert f"of {MAX_ROWS + 2} ranks" in title
    assert [int(line.split()[0]) for line in lines] == [MAX_ROWS, MAX_ROWS + 1]


def test_the_peak_stays_after_memory_is_freed() -> None:
    before = peak_resident()
    block = np.ones(64 << 20, np.uint8)
    del block
    assert before > 10 << 20
    assert peak_resident() >= before
    assert peak_resident() - before < 80 << 20
