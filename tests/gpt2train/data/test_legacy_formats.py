"""Megatron's older token format, written here by its byte table, read and converted."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.cli import app, run_command
from gpt2train.data.indexed import IndexedDataset, write_index
from gpt2train.data.legacy_formats import LegacyDataset, convert, open_any
from gpt2train.errors import RunError, UserError
from tests.gpt2train.data.token_files import sequences

SEQUENCES = [[5, 6, 7], [], [8], [9, 50256], [1]]
DOCUMENTS = [0, 2, 4, 5]


def write(prefix: Path, tokens: list[list[int]], documents: list[int] | None, magic: bytes = b"TNTIDX\0\0") -> Path:
    """The byte table of a format, field by field; without documents as fairseq writes it, which has no such index."""
    sizes, flat = [len(ids) for ids in tokens], [token for ids in tokens for token in ids]
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    if magic == b"TNTIDX\0\0":
        counts = (len(sizes), len(sizes), *(() if documents is None else (len(documents),)))
        numbers = [*range(len(sizes) + 1), *starts, *sizes, *(documents or ())]
        content = struct.pack(f"<3Q{len(counts)}Q{len(numbers)}q", 1, 4, 4, *counts, *numbers)
    else:
        content = struct.pack(f"<QBQ{len(sizes)}i", 1, 4, len(sizes), *sizes)
        content += struct.pack(f"<{len(sizes)}q", *(4 * start for start in starts[:-1]))
    prefix.with_suffix(".idx").write_bytes(magic + content)
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{len(flat)}i", *flat))
    return prefix


@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(st.lists(st.integers(0, 65_499), max_size=6), max_size=6), data=st.data())
def test_reading_and_conversion_keep_everything(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[list[int]], data: st.DataObject
) -> None:
    marks = data.draw(st.lists(st.integers(0, len(tokens)), max_size=4))
    folder, documents = tmp_path_factory.mktemp("legacy"), [0, *sorted(marks), len(tokens)]
    found = open_any(write(folder / "old", tokens, documents))
    made = convert(folder / "old", folder / "new/tokens", np.dtype("<u2"))
    assert isinstance(found, LegacyDataset) and made.dtype == np.dtype("<u2")
    assert sequences(made) == tokens
    assert sequences(convert(folder / "new/tokens", folder / "wide", np.dtype("<i4"))) == tokens
    for opened in (found, made):
        assert opened.documents.tolist() == documents
        assert opened.lengths.tolist() == [len(ids) for ids in tokens]
        assert opened.tokens.tolist() == [token for ids in tokens for token in ids]


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
    whole, sizes = prefix.with_suffix(".idx").read_bytes(), 56 + 8 * 2 * 6  # where the sizes begin
    for index, error, message in (
        (whole[:-8], RunError, "truncated"),
        (whole[:sizes] + struct.pack("<q", 2) + whole[sizes + 8 :], RunError, "offsets do not follow"),
        (whole[:16] + struct.pack("<Q", 6) + whole[24:], UserError, "code 6"),  # floats
    ):
        prefix.with_suffix(".idx").write_bytes(index)
        with pytest.raises(error, match=message):
            LegacyDataset(prefix)
    prefix.with_suffix(".idx").write_bytes(whole)
    prefix.with_suffix(".bin").write_bytes(prefix.with_suffix(".bin").read_bytes()[:-4])
    with pytest.raises(RunError, match=r"old\.bin is truncated: 24 bytes, .* 7 tokens of 4 bytes"):
        LegacyDataset(prefix)
    with pytest.raises(UserError, match="is missing"):
        LegacyDataset(tmp_path / "nothing")


def test_the_command_converts_a_legacy_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "old", SEQUENCES, DOCUMENTS)
    command = ["data", "convert", str(tmp_path / "old"), str(tmp_path / "new")]
    assert run_command(app, [*command, "--vocab-size", "50257"]) == 0
    assert capsys.readouterr().out == f"5 sequences, 7 tokens of 2 bytes\ntokens: {tmp_path / 'new'}\n"
    assert IndexedDataset(tmp_path / "new").documents.tolist() == DOCUMENTS
    assert run_command(app, command) == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("magic", [b"TNTIDX\0\0", b"MMIDIDX\0\0"])
@settings(max_examples=20, deadline=None)
@given(tokens=st.lists(st.lists(st.integers(0, 65_499), max_size=6), max_size=6))
def test_each_sequence_of_a_file_of_fairseq_is_a_document(
    tmp_path_factory: pytest.TempPathFactory, magic: bytes, tokens: list[list[int]]
) -> None:
    prefix = write(tmp_path_factory.mktemp("fairseq") / "theirs", tokens, None, magic)
    found = open_any(prefix)
    assert found.tokens.tolist() == [token for ids in tokens for token in ids]
    assert found.lengths.tolist() == [len(ids) for ids in tokens]
    assert found.documents.tolist() == [*range(len(tokens) + 1)]
    prefix.with_suffix(".idx").write_bytes(prefix.with_suffix(".idx").read_bytes()[:-1])
    with pytest.raises((UserError, RunError), match="truncated"):
        open_any(prefix)


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
    assert sequences(made) == SEQUENCES and made.documents.tolist() == [0, 1, 2, 3, 4, 5]
    for documents in ([0, 2, 1, 5], [1, 5], [0, 6]):
        with pytest.raises(RunError, match="documents are not in the order"):
            open_any(write(tmp_path / "merged", SEQUENCES, documents))
