"""The .bin/.idx pair: byte for byte Megatron's, and damage is named."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.indexed import IndexedDataset, token_dtype, write_index
from gpt2train.errors import RunError, UserError
from tests.gpt2train.data.token_files import sequences, write_documents

DOCUMENTS = st.lists(st.lists(st.integers(0, 65499), max_size=20), max_size=12)


def plain_pair(documents: list[list[int]], letter: str, code: int) -> tuple[bytes, bytes]:
    """The same two files written with struct alone, straight from the table of the format."""
    lengths, count = [len(document) for document in documents], len(documents)
    data = b"".join(struct.pack(f"<{len(document)}{letter}", *document) for document in documents)
    offsets = [struct.calcsize(letter) * sum(lengths[:number]) for number in range(count)]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, count, count + 1)
    return data, index + struct.pack(f"<{count}i{2 * count + 1}q", *lengths, *offsets, *range(count + 1))


def write(folder: Path, documents: list[list[int]], dtype: str = "uint16") -> Path:
    return write_documents(folder / "tokens.v1", documents, dtype)


@pytest.mark.parametrize(("dtype", "letter", "code"), [("uint16", "H", 8), ("int32", "i", 4)])
@given(documents=DOCUMENTS)
@settings(max_examples=60, deadline=None)
def test_files_equal_the_reference_implementation_and_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, letter: str, code: int, documents: list[list[int]]
) -> None:
    prefix = write(tmp_path_factory.mktemp("pair"), documents, dtype)
    data, index = plain_pair(documents, letter, code)
    assert Path(f"{prefix}.bin").read_bytes() == data
    assert Path(f"{prefix}.idx").read_bytes() == index
    dataset = IndexedDataset(prefix)
    assert sequences(dataset) == documents
    assert dataset.tokens.tolist() == [token for d in documents for token in d]
    assert dataset.dtype == np.dtype(dtype)
    assert dataset.lengths.dtype == np.int32
    assert dataset.pointers.dtype == dataset.documents.dtype == np.int64
    assert dataset.documents.tolist() == list(range(len(documents) + 1))


def test_the_dtype_depends_on_the_vocabulary_size() -> None:
    assert [token_dtype(size) for size in (50257, 65499, 65500)] == [np.uint16, np.uint16, np.int32]


def test_documents_of_several_sequences_and_modes_are_read(tmp_path: Path) -> None:
    """Other writers group sequences to documents and append int8 modes; both are read."""
    (tmp_path / "t.bin").write_bytes(np.arange(6, dtype="<u2").tobytes())
    write_index(tmp_path / "t.idx", [1, 2, 3], "uint16", documents=[0, 2, 3])
    with (tmp_path / "t.idx").open("ab") as file:
        file.write(bytes(3))
    dataset = IndexedDataset(tmp_path / "t")
    assert dataset.documents.tolist() == [0, 2, 3]
    assert dataset[-1].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("name", "offset", "value", "error", "message"),
    [
        ("idx", 0, b"TNTIDX\x00\x00", UserError, "not a token index"),
        ("idx", 9, struct.pack("<Q", 2), UserError, "version 2"),
        ("idx", 17, b"\x06", UserError, "dtype code 6"),
        ("idx", 18, struct.pack("<Q", 3), RunError, "truncated or damaged"),
        ("idx", 18, struct.pack("<Q", 2**60), RunError, "truncated or damaged"),
        ("idx", 26, struct.pack("<Q", 0), RunError, "truncated or damaged"),
        ("idx", 34, struct.pack("<i", 2), RunError, "offsets do not follow"),
        ("idx", 34, struct.pack("<ii", 3, 1), RunError, "offsets do not follow"),
        ("idx", 34 + 8, struct.pack("<q", 2), RunError, "offsets do not follow"),
        ("idx", 34 + 24, struct.pack("<q", 1), RunError, "documents are not in the order"),
        ("bin", 8, b"\0\0", RunError, "does not belong"),  # of another index
    ],
)
def test_damage_is_named(
    tmp_path: Path, name: str, offset: int, value: bytes, error: type[Exception], message: str
) -> None:
    prefix = write(tmp_path, [[1], [2, 3, 4]])
    path = Path(f"{prefix}.{name}")
    data = path.read_bytes()
    path.write_bytes(data[:offset] + value + data[offset + len(value) :])
    with pytest.raises(error, match=message) as caught:
        IndexedDataset(prefix)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"none\.idx is missing"):
        IndexedDataset(tmp_path / "none")


@given(cut=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_every_truncation_is_found(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    for ending in ("bin", "idx"):
        prefix = write(tmp_path_factory.mktemp("cut"), [[1], [2, 3, 4], []])
        path = Path(f"{prefix}.{ending}")
        path.write_bytes(path.read_bytes()[:-cut])
        with pytest.raises((UserError, RunError)):
            IndexedDataset(prefix)


def test_indices_are_those_of_a_list_and_tokens_are_read_only(tmp_path: Path) -> None:
    dataset = IndexedDataset(write(tmp_path, [[1], [2, 3]]))
    assert dataset[np.int64(1)].tolist() == dataset[-1].tolist() == [2, 3]
    with pytest.raises(ValueError, match="read-only"):
        dataset.tokens[0] = 7
    with pytest.raises(IndexError):
        IndexedDataset(write(tmp_path, []))[0]
