"""Megatron's older token format, written here by its byte table, read and converted."""

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.indexed import IndexedDataset, write_index
from gpt2train.data.legacy_formats import LegacyDataset, convert, open_any
from gpt2train.errors import RunError, UserError
from tests.gpt2train.indexed_writer import IndexedWriter

SEQUENCES = [[5, 6, 7], [], [8], [9, 50256], [1]]
DOCUMENTS = [0, 2, 4, 5]


def write(prefix: Path, sequences: list[list[int]], documents: list[int], code: int = 4, form: str = "i") -> Path:
    """The byte table of the TNTIDX format, field by field."""
    sizes = [len(ids) for ids in sequences]
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    head = b"TNTIDX\0\0" + struct.pack("<QQQ", 1, code, struct.calcsize(form))
    head += struct.pack("<QQQ", len(sequences), len(sizes), len(documents))
    numbers = [*range(len(sequences) + 1), *starts, *sizes, *documents]
    prefix.with_suffix(".idx").write_bytes(head + struct.pack(f"<{len(numbers)}q", *numbers))
    flat = [token for ids in sequences for token in ids]
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{len(flat)}{form}", *flat))
    return prefix


def test_the_legacy_format_is_read(tmp_path: Path) -> None:
    found = LegacyDataset(write(tmp_path / "old", SEQUENCES, DOCUMENTS))
    assert found.lengths.tolist() == [len(ids) for ids in SEQUENCES]
    assert found.tokens.tolist() == [token for ids in SEQUENCES for token in ids]
    assert found.documents.tolist() == DOCUMENTS
    assert isinstance(open_any(tmp_path / "old"), LegacyDataset)


@settings(max_examples=60, deadline=None)
@given(sequences=st.lists(st.lists(st.integers(0, 65_499), max_size=6), max_size=6), data=st.data())
def test_conversion_keeps_everything(tmp_path_factory: pytest.TempPathFactory, sequences: list, data: st.DataObject):
    marks = data.draw(st.lists(st.integers(0, len(sequences)), max_size=4))
    folder = tmp_path_factory.mktemp("legacy")
    documents = [0, *sorted(marks), len(sequences)]
    made = convert(write(folder / "old", sequences, documents), folder / "new/tokens", np.dtype("<u2"))
    assert [ids.tolist() for ids in made] == sequences
    assert made.documents.tolist() == documents
    assert made.dtype == np.dtype("<u2")


def test_what_is_written_is_what_megatron_writes(tmp_path: Path) -> None:
    convert(write(tmp_path / "old", [[5, 6], [7]], [0, 1, 2]), tmp_path / "new", np.dtype("<u2"))
    with IndexedWriter(tmp_path / "direct", "<u2") as writer:
        for document in [[5, 6], [7]]:
            writer.add(document)
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"new{ending}").read_bytes() == (tmp_path / f"direct{ending}").read_bytes()
    # And the width can be changed back.
    assert convert(tmp_path / "new", tmp_path / "wide", np.dtype("<i4")).dtype == np.dtype("<i4")


def test_shards_are_converted_into_one_file(tmp_path: Path) -> None:
    for number, ids in enumerate([[1, 2], [3]]):
        with IndexedWriter(tmp_path / f"tokens-{number:05d}-of-00002", "<u2") as writer:
            writer.add(ids)
    assert [ids.tolist() for ids in convert(tmp_path / "tokens", tmp_path / "one")] == [[1, 2], [3]]


def test_ids_out_of_range_and_existing_targets_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "old", [[70_000]], [0, 1])
    with pytest.raises(UserError, match="70000, which do not fit uint16"):
        convert(tmp_path / "old", tmp_path / "new", np.dtype("<u2"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.bin", "old.idx"]
    with pytest.raises(UserError, match="exists already"):
        convert(tmp_path / "old", tmp_path / "old")
    with pytest.raises(UserError, match=r"cannot write .*old\.bin/new: .*; give another target"):
        convert(tmp_path / "old", tmp_path / "old.bin" / "new")


def test_damage_is_named(tmp_path: Path) -> None:
    prefix = write(tmp_path / "old", SEQUENCES, DOCUMENTS)
    index, data = prefix.with_suffix(".idx"), prefix.with_suffix(".bin")
    whole = index.read_bytes()
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(RunError, match=r"old\.bin has 24 bytes, 28 expected"):
        LegacyDataset(prefix)
    write(tmp_path / "old", SEQUENCES, DOCUMENTS)
    index.write_bytes(whole[:-8])
    with pytest.raises(RunError, match="truncated"):
        LegacyDataset(prefix)
    sizes = 56 + 8 * 2 * 6  # where the sizes begin
    index.write_bytes(whole[:sizes] + struct.pack("<q", 2) + whole[sizes + 8 :])
    with pytest.raises(RunError, match="offsets do not follow"):
        LegacyDataset(prefix)
    index.write_bytes(whole[:16] + struct.pack("<Q", 6) + whole[24:])  # floats
    with pytest.raises(UserError, match="code 6"):
        LegacyDataset(prefix)
    with pytest.raises(UserError, match="is missing"):
        LegacyDataset(tmp_path / "nothing")


@pytest.mark.slow
def test_the_command_converts_a_legacy_dataset(tmp_path: Path) -> None:
    write(tmp_path / "old", SEQUENCES, DOCUMENTS)
    command = [sys.executable, "-m", "gpt2train", "data", "convert", str(tmp_path / "old"), str(tmp_path / "new")]
    done = subprocess.run([*command, "--vocab-size", "50257"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["5 sequences, 7 tokens of 2 bytes", f"tokens: {tmp_path / 'new'}"]
    assert IndexedDataset(tmp_path / "new").documents.tolist() == DOCUMENTS
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2 and len(again.stderr.splitlines()) == 1


def write_fairseq(prefix: Path, sequences: list[list[int]], magic: bytes) -> Path:
    """A pair as fairseq writes it: neither a number of documents nor their index."""
    sizes = [len(ids) for ids in sequences]
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    if magic == b"TNTIDX\0\0":
        head = magic + struct.pack("<5Q", 1, 4, 4, len(sizes), len(sizes))
        numbers = [*range(len(sizes) + 1), *starts, *sizes]
        content = head + struct.pack(f"<{len(numbers)}q", *numbers)
    else:
        content = magic + struct.pack("<QBQ", 1, 4, len(sizes)) + struct.pack(f"<{len(sizes)}i", *sizes)
        content += struct.pack(f"<{len(sizes)}q", *(4 * start for start in starts[:-1]))
    prefix.with_suffix(".idx").write_bytes(content)
    flat = [token for ids in sequences for token in ids]
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{len(flat)}i", *flat))
    return prefix


@pytest.mark.parametrize("magic", [b"TNTIDX\0\0", b"MMIDIDX\0\0"])
@settings(max_examples=20, deadline=None)
@given(sequences=st.lists(st.lists(st.integers(0, 65_499), max_size=6), max_size=6))
def test_each_sequence_of_a_file_of_fairseq_is_a_document(
    tmp_path_factory: pytest.TempPathFactory, magic: bytes, sequences: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("fairseq")
    found = open_any(write_fairseq(folder / "theirs", sequences, magic))
    assert found.tokens.tolist() == [token for ids in sequences for token in ids]
    assert found.lengths.tolist() == [len(ids) for ids in sequences]
    assert found.documents.tolist() == [*range(len(sequences) + 1)]
    index = (folder / "theirs.idx").read_bytes()
    (folder / "theirs.idx").write_bytes(index[:-1])
    with pytest.raises((UserError, RunError), match="truncated"):
        open_any(folder / "theirs")


@pytest.mark.parametrize("older", [True, False])
def test_a_document_index_that_ends_early_has_a_remedy(tmp_path: Path, older: bool) -> None:
    prefix = write(tmp_path / "merged", SEQUENCES, [0, 1, 2])
    if not older:
        prefix = tmp_path / "pair"
        (tmp_path / "pair.bin").write_bytes((tmp_path / "merged.bin").read_bytes())
        write_index(tmp_path / "pair.idx", [len(ids) for ids in SEQUENCES], "<i4", [0, 1, 2])
    with pytest.raises(UserError, match=r"document index ends at 2 of 5 sequences, .*--by-sequence"):
        open_any(prefix)
    made = convert(prefix, tmp_path / "made", by_sequence=True)
    assert [ids.tolist() for ids in made] == SEQUENCES and made.documents.tolist() == [0, 1, 2, 3, 4, 5]
    for documents in ([0, 2, 1, 5], [1, 5], [0, 6]):
        with pytest.raises(RunError, match="documents are not in the order"):
            open_any(write(tmp_path / "merged", SEQUENCES, documents))
