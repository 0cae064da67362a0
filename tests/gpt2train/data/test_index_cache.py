"""Cached epoch indices: equal to built ones, and used only when complete and undamaged."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from gpt2train.data import samples
from gpt2train.data.epoch import HEADER, Epoch, cached_epoch, corpus_identity, read_epoch
from gpt2train.data.samples import Samples
from tests.gpt2train.forked_ranks import SERVER
from tests.gpt2train.indexed_writer import write_documents

BOUNDS = np.cumsum([0, *np.random.default_rng(1).integers(0, 50, 500)])


def get(folder: Path, bounds: np.ndarray = BOUNDS, context: int = 8, seed: int | None = 7, number: int = 0) -> Epoch:
    return cached_epoch(folder, corpus_identity(bounds), bounds, context, seed, number)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != ".lock")


def same(one: Epoch, other: Epoch) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("ends", "shift", "order")]
    return one.context == other.context and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


BUILT = Epoch.build(BOUNDS, 8, 7, 0)


def test_a_cached_epoch_equals_the_built_one_and_is_memory_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = get(tmp_path / "cache")
    monkeypatch.setattr(Epoch, "build", None)  # from here on it must be found
    again = get(tmp_path / "cache")
    assert same(first, BUILT) and same(again, BUILT)
    assert isinstance(again.order, np.memmap) and isinstance(first.order, np.memmap)
    assert len(files(tmp_path / "cache")) == 1


def test_the_cache_file_name_depends_on_all_inputs_of_an_epoch(tmp_path: Path) -> None:
    others = BOUNDS.copy()
    others[1] += 1  # as many tokens, another first document
    inputs = [(BOUNDS, 8, 7, 0), (others, 8, 7, 0), (BOUNDS, 9, 7, 0), (BOUNDS, 8, 8, 0), (BOUNDS, 8, None, 0)]
    for one in [*inputs, (BOUNDS, 8, 7, 1)]:
        assert same(get(tmp_path, *one), Epoch.build(*one)), one[1:]
    assert len(files(tmp_path)) == 6


@pytest.mark.parametrize("damage", ["cut", "cut in the header", "empty", "longer", "a bit", "another's", "old version"])
def test_an_incomplete_cache_file_is_rebuilt(tmp_path: Path, damage: str) -> None:
    get(tmp_path)
    [path] = files(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "a bit":
        data[-3] ^= 1
    elif damage == "another's":
        get(tmp_path, number=1)
        data = bytearray(next(other for other in files(tmp_path) if other != path).read_bytes())
    elif damage == "old version":
        data[8] += 1
    sizes = {"cut": -1, "cut in the header": HEADER.size - 1, "empty": 0}
    path.write_bytes(bytes(data[: sizes.get(damage)]) + (b"\x00" if damage == "longer" else b""))
    assert same(get(tmp_path), BUILT)
    assert read_epoch(path, bytes.fromhex(path.stem), 8) is not None


def test_an_unwritable_cache_folder_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert same(get(tmp_path / "file"), BUILT)


def test_concurrent_processes_leave_one_valid_file(tmp_path: Path) -> None:
    processes = [SERVER.Process(target=_ask, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    [path] = files(tmp_path)
    assert read_epoch(path, bytes.fromhex(path.stem), 8) is not None


def test_a_kill_during_the_write_is_harmless(tmp_path: Path) -> None:
    victim = SERVER.Process(target=_die_while_writing, args=(tmp_path,))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    [left] = files(tmp_path)  # what it had begun, under another name
    assert left.suffix != ".epoch" and left.stat().st_size > 0
    assert same(get(tmp_path), BUILT)
    [path] = files(tmp_path)  # and that is swept
    assert path.suffix == ".epoch"


def test_only_a_large_corpus_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path / "t", [[1, 2, 3]] * 20)
    small = Samples(tmp_path / "t", 4, 9, seed=1, cache=tmp_path / "cache")
    expected = small.read(range(30))[0]  # three epochs
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(samples, "MIN_CACHED_DOCUMENTS", 10)
    large = Samples(tmp_path / "t", 4, 9, seed=1, cache=tmp_path / "cache")
    assert np.array_equal(large.read(range(30))[0], expected)
    assert len(files(tmp_path / "cache")) == 3


def _ask(folder: Path) -> None:
    assert same(get(folder), BUILT)


def _die_while_writing(folder: Path) -> None:
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    get(folder)
