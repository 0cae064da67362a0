"""Reading ahead of mapped files: any place of any array is accepted, and the pages of each place are asked for."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from gpt2train.data import token_arrays as module
from gpt2train.data.indexed import map_array
from gpt2train.data.token_arrays import ConcatenatedArrays, read_ahead


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Addresses of the pages that the system was asked for; the real call is made and succeeds."""
    if module._madvise is None:
        pytest.skip("this system has no madvise")
    call, pages = module._madvise, list[int]()

    def recorded(address: int, size: int, advice: int) -> int:
        assert call(address, size, advice) == 0
        pages.append(address)
        return 0

    monkeypatch.setattr(module, "_madvise", recorded)
    return pages


def test_the_pages_of_each_place_are_asked_for_once(tmp_path: Path, asked: list[int]) -> None:
    page = mmap.PAGESIZE
    np.arange(4 * page, dtype="<u2").tofile(tmp_path / "a.bin")  # eight pages
    array, _ = map_array(tmp_path / "a.bin", "<u2", 4 * page, 0)
    assert array.ctypes.data % page == 0
    for places, items, pages in (
        ([0, 1, 5], 16, [0]),
        ([page // 2 - 1], 2, [0, 1]),  # the first item ends a page
        ([4 * page - 1, 3], 16, [0, 7]),  # nothing beyond the end
        ([], 16, []),
    ):
        asked.clear()
        read_ahead(array, np.array(places, dtype=np.int64), items)
        assert [(address - array.ctypes.data) // page for address in asked] == pages
    both = ConcatenatedArrays([array, np.empty(0, array.dtype), array[: page // 2]])
    asked.clear()
    read_ahead(both, np.array([4 * page, 0], dtype=np.int64), 1)
    assert len(asked) == 2 and len(set(asked)) == 1  # the same page of the file, from both parts


def test_arrays_in_memory_and_systems_without_the_call(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(5000)
    read_ahead(array, np.array([0, 4999]), 16)
    assert 2 <= len(asked) <= 4 and (array == np.arange(5000)).all()  # each part may lie in two pages
    asked.clear()
    read_ahead(np.empty(0, dtype=np.uint16), np.empty(0, dtype=np.int64), 16)
    monkeypatch.setattr(module, "_madvise", None)
    read_ahead(np.arange(5), np.array([0]), 16)
    assert asked == []
