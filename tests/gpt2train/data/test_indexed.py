"""Token files: the .bin/.idx pair as Megatron's, many read as one, its older format, nanoGPT's and llm.c's files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt2train.cli import app, run_command
from gpt2train.data.indexed import IndexedDataset, shard_name, token_dtype, write_index
from gpt2train.data.legacy_formats import LegacyDataset, convert, open_any
from gpt2train.data.raw_tokens import with_end
from gpt2train.data.samples import Samples
from gpt2train.data.sharded_dataset import open_tokens, shard_prefixes, tokens_identity
from gpt2train.data.token_arrays import ConcatenatedArrays
from gpt2train.errors import RunError, UserError
from tests.gpt2train.indexed_writer import sequences, write_documents

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
    assert [token_dtype(size) for size in (50257, 65499, 65500)] == [np.uint16, np.uint16, np.int32]


NUMBERED = [[number] * (number % 7 + 1) for number in range(60)]


def shards(folder: Path, cuts: list[int]) -> Path:
    bounds = [0, *cuts, len(NUMBERED)]
    for number in range(len(bounds) - 1):
        name = shard_name("tokens", number, len(bounds) - 1)
        write_documents(folder / name, NUMBERED[bounds[number] : bounds[number + 1]])
    return folder / "tokens"


def test_many_files_are_one_stream(tmp_path: Path) -> None:
    one = IndexedDataset(write_documents(tmp_path / "one", NUMBERED))
    many = open_tokens(shards(tmp_path, [1, 20, 20, 41]))  # one of them is empty
    assert sequences(many) == NUMBERED
    assert many.lengths.tolist() == one.lengths.tolist()
    assert many.documents.tolist() == one.documents.tolist()
    assert many.tokens[:].tolist() == one.tokens.tolist()
    ours, theirs = (Samples(tmp_path / name, 4, 99, seed=3) for name in ("tokens", "one"))
    assert np.array_equal(ours.read(range(100))[0], theirs.read(range(100))[0])
    ours.check_vocabulary(1, 3)


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5), data=st.data())
def test_joined_arrays_are_indexed_as_one(sizes: list[int], data: st.DataObject) -> None:
    whole = np.arange(sum(sizes), dtype=np.uint16)
    joined = ConcatenatedArrays(np.split(whole, np.cumsum(sizes)[:-1]))
    start, stop = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 30))
    assert joined[start:stop].tolist() == whole[start:stop].tolist()
    if len(whole):
        places = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6))
        assert joined[np.array(places, dtype=np.int64)].tolist() == places
    for beyond in (len(whole), -1):
        with pytest.raises(IndexError):
            joined[np.array([beyond])]


def test_shards_that_are_no_whole_set_are_refused_by_name(tmp_path: Path) -> None:
    for prefix in (tmp_path / "tokens", tmp_path / "no/folder/tokens"):
        with pytest.raises(UserError, match="is missing"):
            open_tokens(prefix)
    prefix = shards(tmp_path, [20, 40])
    assert len(shard_prefixes(prefix)) == 3
    write_documents(tmp_path / "tokens-00001-of-00003", [[1]], "<i4")
    with pytest.raises(RunError, match="int32, uint16"):
        open_tokens(prefix)
    (tmp_path / "tokens-00001-of-00003.idx").unlink()
    with pytest.raises(RunError, match=r"tokens-00001-of-00003\.idx is missing, one of 3"):
        open_tokens(prefix)
    with pytest.raises(UserError, match=r"shards of 2 datasets"):
        open_tokens(shards(tmp_path, [20]))


SEQUENCES = [[5, 6, 7], [], [8], [9, 50256], [1]]
BOUNDS = [0, 2, 4, 5]


def write_old(prefix: Path, tokens: list[list[int]], documents: list[int] | None, magic: bytes = b"TNTIDX\0\0") -> Path:
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
    found = open_any(write_old(folder / "old", tokens, documents))
    made = convert(folder / "old", folder / "new/tokens", np.dtype("<u2"))
    assert isinstance(found, LegacyDataset) and made.dtype == np.dtype("<u2")
    assert sequences(made) == tokens
    assert sequences(convert(folder / "new/tokens", folder / "wide", np.dtype("<i4"))) == tokens
    for opened in (found, made):
        assert opened.documents.tolist() == documents
        assert opened.lengths.tolist() == [len(ids) for ids in tokens]
        assert opened.tokens.tolist() == [token for ids in tokens for token in ids]


def test_ids_out_of_range_and_existing_targets_are_refused(tmp_path: Path) -> None:
    write_old(tmp_path / "old", [[70_000]], [0, 1])
    with pytest.raises(UserError, match="70000, which do not fit uint16"):
        convert(tmp_path / "old", tmp_path / "new", np.dtype("<u2"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.bin", "old.idx"]
    with pytest.raises(UserError, match="exists already"):
        convert(tmp_path / "old", tmp_path / "old")
    with pytest.raises(UserError, match=r"cannot write .*old\.bin/new: .*; give another target"):
        convert(tmp_path / "old", tmp_path / "old.bin" / "new")


def test_damage_of_the_older_format_is_named(tmp_path: Path) -> None:
    prefix = write_old(tmp_path / "old", SEQUENCES, BOUNDS)
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
    write_old(tmp_path / "old", SEQUENCES, BOUNDS)
    command = ["data", "convert", str(tmp_path / "old"), str(tmp_path / "new")]
    assert run_command(app, [*command, "--vocab-size", "50257"]) == 0
    assert capsys.readouterr().out == f"5 sequences, 7 tokens of 2 bytes\ntokens: {tmp_path / 'new'}\n"
    assert IndexedDataset(tmp_path / "new").documents.tolist() == BOUNDS
    assert run_command(app, command) == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("magic", [b"TNTIDX\0\0", b"MMIDIDX\0\0"])
@settings(max_examples=20, deadline=None)
@given(tokens=st.lists(st.lists(st.integers(0, 65_499), max_size=6), max_size=6))
def test_each_sequence_of_a_file_of_fairseq_is_a_document(
    tmp_path_factory: pytest.TempPathFactory, magic: bytes, tokens: list[list[int]]
) -> None:
    prefix = write_old(tmp_path_factory.mktemp("fairseq") / "theirs", tokens, None, magic)
    found = open_any(prefix)
    assert found.tokens.tolist() == [token for ids in tokens for token in ids]
    assert found.lengths.tolist() == [len(ids) for ids in tokens]
    assert found.documents.tolist() == [*range(len(tokens) + 1)]
    prefix.with_suffix(".idx").write_bytes(prefix.with_suffix(".idx").read_bytes()[:-1])
    with pytest.raises((UserError, RunError), match="truncated"):
        open_any(prefix)


@pytest.mark.parametrize("older", [True, False])
def test_a_document_index_that_ends_early_has_a_remedy(tmp_path: Path, older: bool) -> None:
    prefix = write_old(tmp_path / "merged", SEQUENCES, [0, 1, 2])
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
            open_any(write_old(tmp_path / "merged", SEQUENCES, documents))


END = 50256


def nanogpt(path: Path, documents: list[list[int]], end: int = END) -> str:
    """data/openwebtext/prepare.py: each document is ended."""
    np.array([token for ids in documents for token in (*ids, end)], dtype=np.uint16).tofile(path)
    return str(path)


def llmc(path: Path, documents: list[list[int]], end: int = END, magic: int = 20240520, version: int = 1) -> str:
    """dev/data/data_common.py: each document is begun."""
    tokens = np.array([token for ids in documents for token in (end, *ids)], dtype="<u2" if version == 1 else "<u4")
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return str(path)


FEW = st.lists(st.lists(st.integers(0, 999), max_size=5), min_size=1, max_size=6)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=FEW, split=st.booleans())
def test_documents_are_those_of_a_pair_with_the_same_tokens(
    tmp_path: Path, documents: list[list[int]], split: bool
) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    for name, made in (
        ("n", nanogpt(tmp_path / "n.bin", documents)),
        ("c", llmc(tmp_path / "c.bin", documents)),
        ("o", f"{nanogpt(tmp_path / 'o.bin', documents, 7_000)}#7000"),
        ("l", llmc(tmp_path / "l.bin", documents, 128_000, 20240801, 7)),
    ):
        end = {"o": 7_000, "l": 128_000}.get(name, END)
        ended = [[end, *ids] if name in "cl" else [*ids, end] for ids in documents]
        weights = (2, 1, 1) if split else None
        raw = open_tokens(made, weights)
        pair = open_tokens(write_documents(tmp_path / f"pair-{name}", ended, "<i4"), weights)
        assert sequences(raw) == sequences(pair)
        assert tokens_identity(raw) == tokens_identity(pair)
    converted = convert(tmp_path / "c.bin", tmp_path / "converted")
    assert tokens_identity(converted) == tokens_identity(open_tokens(tmp_path / "pair-c"))


def test_a_file_without_an_end_is_one_document_and_an_unended_one_is_kept(tmp_path: Path) -> None:
    np.array([1, 2, END, 3], dtype=np.uint16).tofile(tmp_path / "x.bin")
    assert sequences(open_tokens(tmp_path / "x.bin")) == [[1, 2, END], [3]]
    assert sequences(open_tokens(f"{tmp_path}/x.bin#9")) == [[1, 2, END, 3]]
    (tmp_path / "empty.bin").write_bytes(b"")
    assert len(open_tokens(tmp_path / "empty.bin")) == 0


def test_a_pattern_names_the_shards_in_their_order_and_a_file_of_a_pair_its_pair(tmp_path: Path) -> None:
    for number in (2, 1):
        llmc(tmp_path / f"fineweb_train_{number:06d}.bin", [[number]] * number)
    pattern = str(tmp_path / "fineweb_train_*.bin")
    assert with_end(pattern, END) == pattern and with_end(pattern, 2) == f"{pattern}#2"
    assert len(open_tokens(f"{pattern}#2")) == 4
    assert sequences(open_tokens(pattern)) == [[END, 1], [END, 2], [END, 2]]
    for name in ("x", "y.bin"):  # a prefix may have the ending itself
        write_documents(tmp_path / name, [[1, 2]])
        for given_name in (name, f"{name}.bin", f"{name}.idx"):
            assert len(open_tokens(tmp_path / given_name)) == 1


def test_damage_of_raw_tokens_is_named(tmp_path: Path) -> None:
    path = Path(llmc(tmp_path / "x.bin", [[1, 2, 3]]))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(RunError, match=r"x\.bin is truncated or damaged: 1,030 bytes, 1,032 by its header"):
        open_tokens(path)
    llmc(path, [[1]], version=3)
    with pytest.raises(UserError, match=r"has version 3 of llm\.c's format"):
        open_tokens(path)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456\n"
    for content, fault in (
        (b"abc", "no tokens of two bytes"),
        (pointer + b"\n" * (len(pointer) % 2), r"x\.bin is a pointer of Git LFS.*git lfs pull"),
        (b"\x93NUMPY\x01\0" + bytes(120), r"x\.bin is a file of numpy\.save.*array\.tofile"),
        (struct.pack("<7sQBQ", b"LITPKDS", 1, 8, 4) + bytes(8), r"x\.bin is a packed file of lit-gpt, .*array\.tofile"),
        (struct.pack("<IIII", 2, 16, 20, 24) + bytes(8), r"x\.bin is a chunk of litData or MosaicML, .*array\.tofile"),
        (gzip.compress(bytes(8)) + b"\0", r"x\.bin is packed by gzip"),
        (np.arange(128, dtype="<u4").tobytes(), r"x\.bin seems to have tokens of four bytes"),
        (b"PK\x03\x04" + bytes(40), r"x\.bin is a zip archive"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=fault):
            open_tokens(path)
    with pytest.raises(UserError, match=r"z\.bin does not exist"):
        open_tokens(tmp_path / "z.bin")
    with pytest.raises(UserError, match=r"x\.idx is missing; .* have their ending in the name: \S*x\.bin"):
        open_tokens(tmp_path / "x")
