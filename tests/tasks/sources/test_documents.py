"""Files of texts that the user names: formats, refusals, unreadable files, and their batches."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import random
import tarfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.documents import documents, read_rows
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from tasks.core.input_files import find_inputs
from tasks.sources.documents import find_documents
from tasks.sources.text_records import ENDINGS, read_items
from tasks.sources.texts import TextsSettings, texts
from tasks.sources.user_files import grouped
from tasks.sources.webpages import WebpagesSettings, webpages
from tests.tasks.corpus import Inline, rejected_of, rows_of
from tests.tasks.sources.archives import record
from tests.tasks.sources.text_files import COMPRESSORS, read, write

NO_SUCH = {
    "an array": (b'[\n{"text": "a"},\n{"text": "b"}\n]\n', "x.json", r"x\.json, row 1: .*one JSON object per line.*jq"),
    "a page": (b"<html>\n<p>hello\n", "x.jsonl", r"x\.jsonl, row 1: broken_json .*one JSON object per line"),
    "packed": (gzip.compress(b'{"text": "a"}'), "x.jsonl", r"x\.jsonl, row 1: invalid_utf8 .*rename the file"),
    "a dict of Python": (
        b"{'text': 'a'}\n",
        "x.json",
        r"x\.json, row 1: it is a dict as Python prints it, .*json\.dumps",
    ),
    "another key": (b'{"body": "a", "u": 1}\n', "x.jsonl", r"row 1: no key 'text'; it has 'body', 'u'; .*--json-key"),
    "a wrong type": (b'{"text": {"a": 1}}\n', "x.jsonl", r"row 1: 'text' is dict, .*--json-key"),
    "no gzip": (b'{"text": "a"}', "x.jsonl.gz", r"x\.jsonl\.gz is not a complete \.gz file .*rename"),
    "no Parquet": (b'{"text": "a"}', "x.parquet", r"x\.parquet is not a valid Parquet file"),
    "an unknown ending": (b"a", "x.pdf", r"x\.pdf: its ending is none of \.jsonl .*rename"),
    "an archive": (b"a", "x.warc.gz", r"x\.warc\.gz: its ending .*--warcs"),
}


@pytest.mark.parametrize("kind", NO_SUCH)
def test_a_file_with_a_wrong_suffix_is_refused(tmp_path: Path, kind: str) -> None:
    data, name, said = NO_SUCH[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=said):
        find_documents([str(tmp_path / name)], "text", 2**20)


def test_a_parquet_file_without_the_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"no column 'text'; it has 'body', 'n'; name it with --json-key"):
        find_documents([str(tmp_path)], "text", 2**20)
    with pytest.raises(UserError, match=r"column 'n' of .* holds int64, strings expected"):
        find_documents([str(tmp_path)], "n", 2**20)


def test_a_damaged_file_is_refused_if_it_is_named_itself(tmp_path: Path) -> None:
    """One of a folder is a rejected row, as an unreadable one."""
    pq.write_table(pa.table({"text": ["words " * 50] * 1000}), tmp_path / "a.parquet", compression="none")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:60] = b"\xff" * 56  # the first page's header
    (tmp_path / "a.parquet").write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"a\.parquet is not a valid Parquet file after row 0 "):
        find_documents([str(tmp_path / "a.parquet")], "text", 2**20)
    (tmp_path / "b.parquet").write_bytes(bytes(data[:-9]))  # no footer
    write(tmp_path / "c.jsonl", {"text": "whole"})
    manifest = read(tmp_path / "out", tmp_path)
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (1, {"broken_file": 2})


SMALL_BLOCKS = COMPRESSORS | {".bz2": partial(bz2.compress, compresslevel=1), ".xz": partial(lzma.compress, preset=0)}


@pytest.mark.parametrize("pack", [pack for pack in COMPRESSORS if pack])
def test_the_rows_before_a_break_are_kept(tmp_path: Path, pack: str) -> None:
    """As those of a truncated WARC; the place of the break is a rejected row, and the other files are read."""
    noise = random.Random(1)
    rows = [{"text": noise.randbytes(2000).hex()} for _ in range(100)]
    whole = SMALL_BLOCKS[pack](b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.jsonl{pack}").write_bytes(whole[: len(whole) * 9 // 10])
    for name in ("b.txt", "c.html"):
        (tmp_path / "in" / f"{name}{pack}").write_bytes(SMALL_BLOCKS[pack](b"A text of its own.")[:-5])
    write(tmp_path / "in" / "d.jsonl", {"text": "whole"})
    found = find_documents([str(tmp_path / "in")], "text", 2**20)
    root = Folder(tmp_path / "out")
    manifest = texts(root, found.texts, "text", TextsSettings(), Inline())
    kept = [row["text"] for row in rows_of(root, manifest)]
    assert kept == [row["text"] for row in rows[: len(kept) - 1]] + ["whole"] and len(kept) > 20
    assert manifest.outcome.reasons == {"broken_file": 2}
    details = [row["detail"] for row in rejected_of(root, manifest)]
    assert details[0].startswith(f"a.jsonl{pack}, after row {len(kept) - 1}: not a complete {pack} file")
    assert details[1].startswith(f"b.txt{pack}: not a complete {pack} file")
    with pytest.raises(UserError, match="broken_file 1"):
        webpages(root, found.pages, WebpagesSettings(), Inline())


def test_the_rows_before_a_damaged_page_of_parquet_are_kept(tmp_path: Path) -> None:
    rows = [f"{n} {'words ' * 50}" for n in range(1000)]
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", compression="none", row_group_size=250)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    place = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(3).column(0).dictionary_page_offset
    data[place : place + 56] = b"\xff" * 56
    (tmp_path / "a.parquet").write_bytes(bytes(data))
    manifest = read(tmp_path / "out", tmp_path)
    kept = [row["text"] for row in rows_of(Folder(tmp_path / "out"), manifest)]
    assert kept == rows[: len(kept)] and len(kept) >= 600
    (bad,) = rejected_of(Folder(tmp_path / "out"), manifest)
    assert bad["reason"] == "broken_file" and f"a.parquet, after row {len(kept)}: not a valid Parquet" in bad["detail"]


def test_a_zstd_window_that_is_too_large_is_named(tmp_path: Path) -> None:
    """As in files of `zstd --long=28`: the window of the frame is 2^28 bytes."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(28 - 10) << 3]) + (14 << 3 | 1).to_bytes(3, "little") + b'{"text": "a"}\n'
    (tmp_path / "a.jsonl.zst").write_bytes(frame)
    remedy = r"a\.jsonl\.zst needs a window of more than 128 MiB; unpack it with zstd -d --long=31"
    with pytest.raises(UserError, match=remedy):
        find_documents([str(tmp_path / "a.jsonl.zst")], "text", 2**20)
    (row,) = read_rows(tmp_path / "a.jsonl.zst", "text")
    assert row.kind == "broken_file" and b"zstd -d --long=31" in row.content


def test_a_later_file_is_checked_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sources.documents.CHECKED_FILES", 1)
    files = [write(tmp_path / "1.jsonl", {"text": "a"}), write(tmp_path / "2.jsonl", {"body": "a"})]
    with pytest.raises(UserError, match=r"2\.jsonl, row 1: no key 'text'; it has 'body'"):
        read(tmp_path / "out", *files)


def test_small_files_share_a_batch_and_large_ones_have_their_own(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.jsonl", {"text": "x" * size}) for n, size in enumerate([10, 10, 900, 10, 10, 10])]
    found = find_documents([str(path) for path in paths], "text", 2**20)
    assert [len(group) for group in grouped(found.texts, 2, 800)] == [2, 1, 2, 1]
    assert [len(group) for group in grouped(found.texts, 9, 20)] == [1] * 6
    assert grouped([], 2, 800) == []


def test_unreadable_files_of_a_folder_are_rejected_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dangling link, a FIFO, a loop of links, a file that disappears; the others are read."""
    folder = tmp_path / "in"
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_text("Some text.")
    (folder / "below" / "b.txt").write_text("Another text.")
    (folder / "dangling.txt").symlink_to(tmp_path / "nowhere")
    (folder / "page.html").symlink_to(tmp_path / "nowhere.html")
    (folder / "below" / "loop").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    os.mkfifo(folder / "fifo.txt")
    (folder / "gone.txt").write_text("It goes away.")
    found = find_documents([str(folder)], "text", 1000)
    assert [file.name for file in found.texts] == [
        *("a.txt", "below/b.txt", "dangling.txt", "fifo.txt", "gone.txt", "self.txt")
    ]
    (folder / "gone.txt").unlink()
    root = Folder(tmp_path / "out")
    with Inline(workers=1) as runner:
        manifest = texts(root, found.texts, "text", TextsSettings(), runner)
    assert [row["text"] for row in rows_of(root, manifest)] == ["Some text.", "Another text."]
    assert manifest.outcome.reasons == {"unreadable": 4}
    details = {row["url"]: row["detail"] for row in rejected_of(root, manifest)}
    assert "a link to a file that is not there" in details["dangling.txt"]
    assert "no regular file" in details["fifo.txt"] and "since the run began" in details["gone.txt"]
    assert [file.fault for file in found.pages] == ["it is a link to a file that is not there"]
    with pytest.raises(UserError, match="nowhere"):  # a missing file that is named itself is a user error
        find_documents([str(tmp_path / "nowhere.txt")], "text", 1000)


SEPARATOR = "<|sep|>"
# No line ends, which a separator's text loses at its edges, and no byte order mark, which a file loses at its start.
LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\u2028\u2029<|>")
TEXTS = st.lists(st.text(LETTERS, min_size=1, max_size=40).filter(str.strip), min_size=1, max_size=6)


def table(texts: list[str]) -> bytes:
    pq.write_table(pa.table({"text": texts}), sink := io.BytesIO())
    return sink.getvalue()


def archive(texts: list[str]) -> bytes:
    with tarfile.open(fileobj=(sink := io.BytesIO()), mode="w") as tar:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return sink.getvalue()


FORMATS = {
    ".jsonl": lambda texts: b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts),
    ".parquet": table,
    ".txt": lambda texts: SEPARATOR.join(texts).encode(),
    ".tar": archive,
    ".wet": lambda texts: b"".join(record("conversion", at, text.encode()) for at, text in enumerate(texts)),
}
PACKED = [*itertools.product(set(FORMATS) - {".parquet"}, COMPRESSORS), (".parquet", "")]


@given(st.sampled_from(sorted(PACKED)), TEXTS)
def test_the_texts_of_every_format_are_equal(
    tmp_path_factory: pytest.TempPathFactory, written: tuple[str, str], texts: list[str]
) -> None:
    kind, packing = written
    path = tmp_path_factory.mktemp("formats") / f"a{kind}{packing}"
    path.write_bytes(COMPRESSORS[packing](FORMATS[kind](texts)))
    if kind != ".wet":
        assert [*documents(path, "text", SEPARATOR)] == texts
    if kind in ENDINGS:
        (file,) = find_inputs([str(path)], "--documents", ENDINGS)
        assert [item.text for item in read_items(file, "text", 2**20, SEPARATOR)] == texts
