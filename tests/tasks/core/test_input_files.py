"""Input files of the user: patterns, identity of a file, splits of datasets, and reading in bounded memory."""

import errno
import gzip
import io
import os
import random
import re
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.documents import read_lines
from gpt2train.errors import DamagedFileError, TransientError, UserError
from tasks.core.hub_splits import files_of_split, split_of
from tasks.core.input_files import BLOCK, ErrorTranslatingFile, base_name, find_inputs, kind_of, open_input
from tasks.sources.archive_stream import ArchiveStream, DamageError
from tests.tasks.sources.text_files import COMPRESSORS


def names(patterns: list[str], *suffixes: str) -> list[str]:
    return [file.name for file in find_inputs(patterns, "--urls", suffixes)]


def test_files_globs_and_folders_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpt2train")
    below = ["a.TXT", "b.txt", "odd[1].txt", "sub/d.txt.gz", "sub/deep/e.parquet"]
    for name in (*below, "c.lst", "sub/notes.pdf", "x.log.gz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names([f"{tmp_path}/c.lst", f"{tmp_path}/*.txt"]) == ["c.lst", "b.txt", "odd[1].txt"]
    assert names([f"{tmp_path}/odd[1].txt"]) == ["odd[1].txt"]  # a file that is there is no pattern
    assert not caplog.messages
    assert names([str(tmp_path)], ".txt", ".parquet") == below
    others = ".log.gz 1 (x.log.gz), .lst 1 (c.lst), .pdf 1 (sub/notes.pdf)"
    assert caplog.messages == [f"{tmp_path}: not read, by their endings: {others}"]
    hidden = (".sub/e.txt", "__MACOSX/._b.txt", "_temporary/0/e.txt", "sub/.e.txt")
    for name in (*hidden, "sub/dataset_info.json", "state.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names([str(tmp_path)], ".txt", ".parquet", ".json") == below  # nor is what lies hidden data
    assert names([f"{tmp_path}/.sub"], ".txt") == ["e.txt"]
    assert names([f"{tmp_path}/su*"], ".txt", ".parquet") == ["sub/d.txt.gz", "sub/deep/e.parquet"]
    with pytest.raises(UserError, match="no file matches"):
        names([f"{tmp_path}/[._]*"], ".txt")  # folders of hidden names
    with pytest.raises(UserError, match="a path given with --urls is empty"):
        names([""], ".txt")
    monkeypatch.chdir(tmp_path / "sub")
    (tmp_path / "[D]").mkdir()
    odd = ["a::b.txt", "d\n#?%20.txt", "file:c.txt"]
    for name in odd:
        (tmp_path / "[D]" / name).write_bytes(b"x")
        assert names([f"{tmp_path}/[D]/{name}"]) == [name]
        with open_input(f"{tmp_path}/[D]/{name}") as stream:
            assert stream.read() == b"x"
    assert names([f"{tmp_path}/[D]/*.txt"]) == names([f"{tmp_path}/[D]"], ".txt") == odd
    once = ["../b.txt", "deep/../../b.txt", f"{tmp_path}/b.txt", f"file://{tmp_path}/b.txt", f"{tmp_path}/?.txt"]
    assert names(once) == ["b.txt"]  # each file once


def test_any_fsspec_file_system_is_read() -> None:
    for places, said in (([], "--warcs"), (["nosuch://x"], "cannot read nosuch://x")):
        with pytest.raises(UserError, match=said):
            find_inputs(places, "--warcs", [".warc"])
    fs = fsspec.filesystem("memory")
    fs.pipe({"/lists/b.txt": b"b", "/lists/a.txt": b"a"})
    found = find_inputs(["memory://lists"], "--urls", [".txt"])
    assert [(file.location, file.bytes) for file in found] == [(f"memory:///lists/{name}.txt", 1) for name in "ab"]
    with open_input(found[1].location) as stream:
        assert stream.read() == b"b"


def test_files_in_an_archive_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for name in ("in/b.txt", "in/a.txt", "in/notes.pdf"):
            packed.writestr(name, name)
    place = f"{tmp_path}/a.zip"
    for inner in ("zip://in/?.txt", "zip://in", "zip://"):
        found = find_inputs([f"{inner}::{place}"], "--urls", [".txt"])
        assert [file.location for file in found] == [f"zip://in/{name}.txt::{place}" for name in "ab"]
    (one,) = find_inputs([f"zip://in/b.txt::{place}"], "--urls", [])
    assert (one.name, kind_of(one.location), one.bytes) == ("b.txt", ".txt", 8)
    with open_input(one.location) as stream:
        assert stream.read() == b"in/b.txt"


def test_identity_depends_on_the_content_and_not_on_the_path(tmp_path: Path) -> None:
    identities = []
    for name, content in (("one.txt", b"same"), ("two.txt", b"same"), ("three.txt", b"else")):
        (tmp_path / name).write_bytes(content)
        identities += [file.identity for file in find_inputs([str(tmp_path / name)], "--urls", [])]
    assert identities[0] == identities[1] != identities[2]
    (tmp_path / "one.txt").write_bytes(b"changed!")
    assert find_inputs([str(tmp_path / "one.txt")], "--urls", [])[0].identity not in identities


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("missing.txt", "cannot read .*missing.txt: No such file.*--urls"),
        ("~nobody-of-this-name/a.txt", "cannot read .*~nobody-of-this-name/a.txt: No such file.*--urls"),
        ("*.none", "no file matches .*none.*--urls"),
        ("long/" * 1000, "cannot read .*long/: File name too long.*--urls"),
        ("empty", "no file in .*empty ends in .txt, .parquet; check the folder given with --urls"),
    ],
)
def test_a_missing_file_is_one_line(
    tmp_path: Path, pattern: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line; for a relative path it names the working folder too."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    for place, end in ((f"{tmp_path}/{pattern}", ""), (pattern, f", relative to {re.escape(str(tmp_path))}$")):
        with pytest.raises(UserError, match=message + end) as error:
            find_inputs([place], "--urls", [".txt", ".parquet"])
        assert "\n" not in str(error.value) and ("relative to" in str(error.value)) == bool(end)


@pytest.mark.parametrize("place", ["fifo.txt", "", "/dev/null"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "fifo.txt")
    with pytest.raises(UserError, match=r"(fifo\.txt|null) is a pipe or device, .* write it to a file first$"):
        find_inputs([str(tmp_path / place)], "--urls", (".txt",))


def test_a_name_that_is_not_utf_8_is_named_in_readable_form(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    path = os.path.join(os.fsencode(folder), b"b\xff.txt")  # noqa: PTH118 - of bytes
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(b"a text")
    with pytest.raises(UserError, match=r"the name of .*/texts/b\\xff.txt is not valid UTF-8; rename the file"):
        find_inputs([os.fsdecode(path)], "--documents", (".txt",), faults=True)
    with pytest.raises(UserError, match="is not valid UTF-8"):
        find_inputs([str(folder)], "--urls", (".txt",))
    [found] = find_inputs([str(folder)], "--documents", (".txt",), faults=True)
    assert found.name == "b\\xff.txt" and found.fault == "its name is not valid UTF-8"
    found.location.encode()


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_each_compression_is_decompressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"list.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"one\n") + COMPRESSORS[suffix](b"two\n"))  # packed files may be joined
    with open_input(str(path)) as stream:
        assert stream.read() == b"one\ntwo\n"


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESSORS if suffix])
@pytest.mark.parametrize("missing", [9, 100_000, None])
def test_a_truncated_or_false_archive_is_refused_at_its_end(tmp_path: Path, suffix: str, missing: int | None) -> None:
    data = random.Random(1).randbytes(1_200_000)
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(COMPRESSORS[suffix](data)[:-missing] if missing else b"plain text, and no archive at all\n")
    found = b""
    said = rf"cut{suffix} is not a complete {suffix} file"
    with pytest.raises(UserError, match=said), open_input(str(path)) as stream:
        while more := stream.read1(BLOCK):
            found += more
    block = 900_000 if suffix == ".bz2" else 200_000  # what is decompressed as a whole
    assert data.startswith(found) and (not missing or len(found) >= len(data) - missing - block)


class Trickle(io.BytesIO):
    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(3)


@given(
    st.lists(st.text("ab<|\n", max_size=12).map(str.encode), max_size=20),
    st.integers(0, 12),
    st.sampled_from([b"\n", b"<|", b"aab", b"<|ab|>"]),
    st.sampled_from([io.BytesIO, Trickle]),
)
def test_lines_equal_those_of_split(
    lines: list[bytes], longest: int, end: bytes, kind: Callable[[bytes], io.BytesIO]
) -> None:
    data = end.join(lines)
    expected = data.split(end)
    if expected[-1] == b"":
        expected.pop()  # a newline ends a line; it does not begin one
    found = list(read_lines(kind(data), longest, end))
    assert found == [(n, line if len(line) <= longest else None) for n, line in enumerate(expected, start=1)]


class Failing(io.RawIOBase):
    def __init__(self, error: Exception) -> None:
        self.error, self.data = error, [b"one\n"]

    def readinto(self, buffer: Any) -> int:
        if not self.data:
            raise self.error
        data = self.data.pop()
        buffer[: len(data)] = data
        return len(data)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((error, DamagedFileError) for error in (EOFError("ended"), zlib.error("invalid block"))),
        (OSError("Invalid data stream"), DamagedFileError),  # of bz2
        (OSError(errno.EIO, "Input/output error"), UserError),
        (ValueError("any"), UserError),
        (MemoryError("a.jsonl.gz"), MemoryError),
        *((error, TransientError) for error in (ConnectionResetError("reset by peer"), TimeoutError("no answer"))),
    ],
)
def test_a_disk_or_connection_that_fails_is_no_damage_of_the_file(error: Exception, expected: type[Exception]) -> None:
    """Damage loses rows of one file; a failure must end the run, or be tried again."""
    stream = io.BufferedReader(ErrorTranslatingFile(Failing(error), "a.jsonl.gz"))
    assert stream.read1(100) == b"one\n"
    with pytest.raises(expected, match=r"a\.jsonl\.gz") as raised:
        stream.read1(100)
    assert type(raised.value) is expected
    archive = io.BufferedReader(ErrorTranslatingFile(Failing(error), "a.warc.zst"))
    with pytest.raises(DamageError if expected is DamagedFileError else expected):
        ArchiveStream(archive, gzipped=False, seekable=False).skip_member()


@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=4), st.sampled_from([0, 10, BLOCK, 2 * BLOCK]))
def test_lines_may_cross_blocks(lengths: list[int], longest: int) -> None:
    data = b"".join(b"x" * length + b"\n" for length in lengths)
    found = [None if line is None else len(line) for _, line in read_lines(io.BytesIO(data), longest)]
    assert found == [length if length <= longest else None for length in lengths]


def test_a_long_line_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"first\n")
        for _ in range(100):
            file.write(b"x" * BLOCK)
        file.write(b"\nlast\n")
    tracemalloc.start()
    with open_input(str(path)) as stream:
        assert list(read_lines(stream, 1000)) == [(1, b"first"), (2, None), (3, b"last")]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * BLOCK


def test_names_and_kinds_are_derived_from_paths() -> None:
    assert base_name("http://h.example/a/urls.txt.gz?x=1/2") == "urls.txt.gz"
    assert base_name("s3://bucket/a/what? #1.txt") == "what? #1.txt"
    kinds = {"a.TXT.gz": ".txt", "b.parquet": ".parquet", "c": "", "d.gz": "", "e.warc.gz": ".warc"}
    kinds |= {"https://h.example/a.txt?b.json": ".txt", "memory://b/why?.txt": ".txt"}
    kinds |= {
        "s3://b/a#1 ?.jsonl.gz": ".jsonl",
        "s3://b/a.jsonl?versionId=x.y": ".jsonl",
        "gs://b/a.jsonl#1700000000000001": ".jsonl",
    }
    assert {name: kind_of(name) for name in kinds} == kinds


FOLDERS = ("", "", "data/", "train/", "my_test-2/", "a/validation/", ".git/", "x/dev 1/", "trained/", "__x__/")
NAMES = (
    *("train.jsonl", "train-00000-of-00002.parquet", "part.jsonl", "eval.jsonl", "valid_1.jsonl", "testfile.jsonl"),
    *("b-test.jsonl", "own-00001-of-00002.parquet", "README.md", ".hidden.jsonl", "config.json", "training.jsonl"),
)


def write(root: Path, paths: list[str], card: str = "") -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("{}")
    if card:
        (root / "README.md").write_text(card)
    return root


def found(root: Path, name: str) -> list[str]:
    return files_of_split(LocalFileSystem(), str(root), name, lambda _: "")


@pytest.mark.parametrize("count", [8, pytest.param(150, marks=pytest.mark.exhaustive)])
def test_names_of_files_are_split_as_by_the_library(tmp_path: Path, count: int) -> None:
    data_files = pytest.importorskip("datasets.data_files", reason="the package datasets is missing")
    seen = set[str]()
    for seed in range(count):
        rng = random.Random(seed)
        paths = [rng.choice(FOLDERS) + rng.choice(NAMES) for _ in range(rng.randint(1, 6))]
        root = write(tmp_path / str(seed), paths)
        try:
            patterns = data_files.get_data_patterns(str(root))
            expected = {
                str(split): sorted(set(data_files.DataFilesList.from_patterns(given, str(root))))
                for split, given in patterns.items()
            }
        except (FileNotFoundError, data_files.EmptyDatasetError):
            assert found(root, "train") == []
            continue
        for split, paths in expected.items():
            assert found(root, split) == paths, (seed, split)
        seen |= expected.keys()
        for other in {"train", "validation", "test", "none"} - expected.keys():
            with pytest.raises(UserError, match=f"has no split '{other}'; it has "):
                found(root, other)
    assert {"train", "test"} <= seen


TWO = [{"split": "train", "path": ["data/CC-1/*", "sample/**"]}, {"split": "held", "path": "x.parquet"}]
CONFIGS = [
    {"config_name": "default", "data_files": [{"split": "train", "path": "data/*/*"}]},
    {"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]},
    {"config_name": "two", "data_files": TWO},
    {"config_name": "plain", "data_files": "sample/*/*.parquet"},
    {"config_name": "below", "data_dir": "sample"},
]
FILES = ["data/CC-1/000_00000.parquet", "data/CC-2/000_00000.parquet", "sample/10BT/0.parquet", "x.parquet"]


def test_a_card_names_configurations_and_their_splits(tmp_path: Path) -> None:
    data_files = pytest.importorskip("datasets.data_files", reason="the package datasets is missing")
    root = write(tmp_path, FILES, f"---\n{yaml.safe_dump({'configs': CONFIGS})}---\n# Card\n")
    for config in CONFIGS[:4]:
        for split, patterns in data_files.sanitize_patterns(config["data_files"]).items():
            expected = sorted(set(data_files.DataFilesList.from_patterns(patterns, str(root))))
            assert found(root, f"{config['config_name']}/{split}") == expected
    assert found(root, "") == found(root, "train") == found(root, "default/train") == found(root, "default")
    assert [Path(path).name for path in found(root, "below")] == ["0.parquet"]
    with pytest.raises(UserError, match="has no split 'none'; it has train"):
        found(root, "none")
    write(tmp_path / "two", FILES, f"---\n{yaml.safe_dump({'configs': CONFIGS[1:3]})}---\n")
    with pytest.raises(UserError, match="has the configurations sample-10BT, two; choose one by NAME:CONFIG/SPLIT"):
        found(tmp_path / "two", "train")


@pytest.mark.parametrize(
    ("card", "error"),
    [
        ("configs: [{config_name: a, data_files: ../../etc/*}]", r"names files elsewhere \(\.\./\.\./etc/\*\)"),
        ("configs: [{config_name: a, data_files: 'file:///etc/*'}]", "names files elsewhere"),
        ("configs: [{config_name: a, data_dir: ../other}]", r"names a folder elsewhere \(\.\./other\)"),
        *((f"configs: {configs}", "names no configurations") for configs in ("[1]", "{a: 1}", "[")),
        ("configs: [{config_name: a, data_files: 5}]", "names no configurations"),
        ("configs: [{config_name: a, data_files: [{path: x}]}]", "names no configurations"),
    ],
)
def test_a_hostile_card_is_one_line(tmp_path: Path, card: str, error: str) -> None:
    root = write(tmp_path, ["a.parquet"], f"---\n{card}\n---\n")
    with pytest.raises(UserError, match=error) as raised:
        found(root, "")
    assert "\n" not in str(raised.value)


def test_addresses_of_splits_and_of_files(tmp_path: Path) -> None:
    base = "hf://datasets/some/set"
    assert split_of(base) == split_of(f"{base}/") == split_of(f"{base}:") == (base, "")
    assert split_of(f"{base}@refs/convert/parquet:a/b") == (f"{base}@refs/convert/parquet", "a/b")
    assert split_of(f"{base}@v1:test") == (f"{base}@v1", "test")
    for other in (f"{base}/data/*.parquet", f"{base}@v1/a:b.jsonl", "hf://some/model", "s3://datasets/a/b", "data"):
        assert split_of(other) is None, other
    # The data are the files of the most frequent kind.
    root = write(tmp_path, ["a.parquet", "b.parquet", "LICENSE.md", "stats.json"])
    names = files_of_split(LocalFileSystem(), str(root), "", lambda path: Path(path).suffix)
    assert [Path(name).name for name in names] == ["a.parquet", "b.parquet"]
