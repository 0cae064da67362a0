"""Files of texts that the user names, on this machine and on a hub: formats, refusals, unreadable files, batches."""

import bz2
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile
import time
import types
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.documents import Rejected, documents, expand, left_out, read_rows
from gpt2train.errors import TransientError, UserError
from gpt2train.store.folder import Folder
from tasks.core import input_files
from tasks.core.input_files import InputFile, find_inputs, unreachable
from tasks.sources import text_records
from tasks.sources.documents import find_documents
from tasks.sources.text_records import ENDINGS, read_items
from tasks.sources.texts import TextsSettings, texts
from tasks.sources.user_files import grouped
from tasks.sources.webpages import WebpagesSettings, webpages
from tests.hub_server import Hub
from tests.tasks.corpus import Inline, rejected_of, rows_of
from tests.tasks.sources.archives import record, zstd
from tests.tasks.sources.text_files import COMPRESSORS, read, write

NO_SUCH = {
    "an array": (b'[\n{"text": "a"},\n{"text": "b"}\n]\n', "x.json", r"x\.json, row 1: .*one JSON object per line.*jq"),
    "a page": (b"<html>\n<p>hello\n", "x.jsonl", r"x\.jsonl, row 1: broken_json .*one JSON object per line"),
    "packed": (gzip.compress(b'{"text": "a"}'), "x.jsonl", r"x\.jsonl, row 1: invalid_utf8 .*rename the file"),
    "Latin-1": (b'{"text": "caf\xe9"}\n', "x.jsonl", r"x\.jsonl, row 1: invalid_utf8 .* iconv -f LATIN1 -t UTF-8"),
    "UTF-16 without a mark": (
        '{"text": "é"}\n'.encode("utf-16-le"),
        "x.jsonl",
        r"row 1: it is UTF-16, .* iconv -f UTF-16",
    ),
    "UTF-16 of ASCII": ('{"text": "a"}\n'.encode("utf-16-le"), "x.jsonl", r"row 1: it is UTF-16, .* iconv -f UTF-16"),
    "objects over lines": (b'{\n  "text": "a"\n}\n', "x.json", r"x\.json, row 1: .*jq -c \. of objects"),
    "UTF-32": ('{"text": "a"}\n'.encode("utf-32"), "x.jsonl", r"row 1: it is UTF-32, .* iconv -f UTF-32"),
    "UTF-32 without a mark": ('{"text": "a"}\n'.encode("utf-32-be"), "x.jsonl", r"row 1: it is UTF-32, .* -f UTF-32"),
    "UTF-16": ('{"text": "a"}\n'.encode("utf-16"), "x.jsonl", r"x\.jsonl, row 1: it is UTF-16, .* iconv -f UTF-16"),
    "a dict of Python": (b"{'text': 'a'}\n", "x.json", r"x\.json, row 1: it is a dict as Python .*json\.dumps"),
    "another key": (b'{"body": "a", "u": 1}\n', "x.jsonl", r"row 1: no key 'text'; it has 'body', 'u'; .*--json-key"),
    "a wrong type": (b'{"text": {"a": 1}}\n', "x.jsonl", r"row 1: 'text' is dict, .*--json-key"),
    "JSON lines": (
        b'{"text": "a"}\n{"text": "b"}\n',
        "x.txt",
        r"x\.txt has JSON lines with the key 'text'; rename it to \.jsonl",
    ),
    "JSON lines with a mark": (b'\xef\xbb\xbf\n{"text": "a"}\r\n', "x.txt", r"x\.txt has JSON lines with"),
    "no gzip": (b'{"text": "a"}', "x.jsonl.gz", r"x\.jsonl\.gz is not a complete \.gz file .*rename"),
    "no Parquet": (b'{"text": "a"}', "x.parquet", r"x\.parquet is not a valid Parquet file"),
    "a packed Parquet file": (gzip.compress(b"PAR1"), "x.parquet.gz", r"x\.parquet\.gz .*; unpack it"),
    "a packed Arrow file": (zstd(b"ARROW1"), "x.arrow.zst", r"x\.arrow\.zst .*; unpack it"),
    "an unknown ending": (b"a", "x.pdf", r"x\.pdf: its ending is none of \.jsonl .*rename"),
    "an archive": (b"a", "x.warc.gz", r"x\.warc\.gz: its ending .*--warcs"),
}


@pytest.mark.parametrize("kind", NO_SUCH)
def test_a_file_with_a_wrong_suffix_is_refused(tmp_path: Path, kind: str) -> None:
    data, name, said = NO_SUCH[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=said):
        find_documents([str(tmp_path / name)], "text", 2**20)


LINE = b'{"text": "one two"}\n'
NAMED = {
    **dict.fromkeys(("a.jsonlines", "a.jl", "a.ldjson", "a.geojsonl", "a.NDJSON"), LINE),
    **{"a.json.gzip": gzip.compress(LINE), "a.jsonl.zstd": zstd(LINE)},
    **dict.fromkeys(("a.text", "a.markdown"), b"one two"),
}


@pytest.mark.parametrize("name", [*NAMED, "a.pq", "a.parq"])
def test_the_data_flow_and_data_tokenize_know_the_same_endings(tmp_path: Path, name: str) -> None:
    if name in NAMED:
        (tmp_path / name).write_bytes(NAMED[name])
    else:
        pq.write_table(pa.table({"text": ["one two"]}), tmp_path / name)
    assert list(documents(tmp_path / name, "text")) == ["one two"]
    manifest = read(tmp_path / "out", tmp_path)
    assert [row["text"] for row in rows_of(Folder(tmp_path / "out"), manifest)] == ["one two"]


def test_a_parquet_file_without_the_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"no column 'text'; it has 'body', 'n'; name it by --json-key"):
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


def test_a_broken_file_of_one_line_is_a_rejected_row_of_a_folder(tmp_path: Path) -> None:
    """As crawlers that write an object per file leave one behind, or the page of an error in its place."""
    write(tmp_path / "in" / "a.json", {"text": "whole"})
    write(tmp_path / "in" / "b.json", b'{"text": "cut of')
    write(tmp_path / "in" / "c.json", b"<html>502 Bad Gateway</html>")
    find_documents([str(tmp_path / "in")], "text", 2**20)
    manifest = read(tmp_path / "out", tmp_path / "in")
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (1, {"broken_file": 2})
    details = [row["detail"] for row in rejected_of(Folder(tmp_path / "out"), manifest)]
    assert details[0].startswith("b.json: row 1: ") and "end of data" in details[0]
    with pytest.raises(UserError, match=r"b\.json, row 1: broken_json .*one JSON object per line"):
        find_documents([str(tmp_path / "in" / "b.json")], "text", 2**20)


def test_an_input_without_a_usable_text_ends_with_its_first_fault(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_bytes(b"word " * 100)
    said = (
        r"\(too_large 1; big\.txt: more than 99 bytes; texts\.separator splits a file, texts\.max_bytes is the limit\)"
    )
    with pytest.raises(UserError, match=rf"hold no text that can be used {said}; see"):
        read(tmp_path / "out", tmp_path / "big.txt", max_bytes=99)


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


@pytest.mark.parametrize("fault", ["header", "checksum"])
def test_a_damaged_row_group_of_parquet_is_lost_alone(tmp_path: Path, fault: str) -> None:
    """A page that cannot be read, and one that could be, but has another checksum than its header says."""
    rows = [f"{n} {'words ' * 50}" for n in range(1000)]
    options = {"compression": "none", "row_group_size": 250, "write_page_checksum": True}
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", **options)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    place = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(0).dictionary_page_offset
    data[place : place + 56] = b"\xff" * 56 if fault == "header" else data[place : place + 50] + b"WORDS "
    (tmp_path / "a.parquet").write_bytes(bytes(data))
    manifest = read(tmp_path / "out", tmp_path)
    whole = [*rows[:250], *rows[500:]]
    assert [row["text"] for row in rows_of(Folder(tmp_path / "out"), manifest)] == whole
    (bad,) = rejected_of(Folder(tmp_path / "out"), manifest)
    assert bad["reason"] == "broken_file"
    assert bad["detail"].startswith("a.parquet, row 251: the rows from here to 500 are damaged (")
    found = list(documents(tmp_path / "a.parquet", "text"))
    assert [one for one in found if isinstance(one, str)] == whole
    assert [(one.line, one.reason) for one in found if isinstance(one, Rejected)] == [(251, "broken_file")]


def test_a_saved_dataset_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As `datasets` saves it, with the results of `map` beside it; a text that is no UTF-8 is lost alone."""
    datasets = pytest.importorskip("datasets")
    rows = [{"meta": {"url": f"http://a.example/{n}"}, "text": f"document {n}", "n": n} for n in range(2500)]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "in")
    saved = datasets.load_from_disk(tmp_path / "in")["train"]
    saved.map(lambda row: {"text": row["text"].upper()})
    (result,) = (tmp_path / "in" / "train").glob("cache-*.arrow")
    caplog.set_level("INFO")
    manifest = read(tmp_path / "out", tmp_path / "in")
    assert f"{result}: not read, as a result of map that datasets keeps; name the file itself" in caplog.text
    assert result not in expand([tmp_path / "in"])
    assert [file.name for file in find_documents([str(result)], "text", 2**20).texts] == [result.name]
    found = rows_of(Folder(tmp_path / "out"), manifest)
    wanted = [(f"document {n}", f"http://a.example/{n}") for n in range(2500)]
    assert [(row["text"], row["url"]) for row in found] == wanted
    (path,) = (tmp_path / "in" / "train").glob("data-*.arrow")
    path.write_bytes(path.read_bytes().replace(b"document 7document 8", b"document \xffdocument 8"))
    manifest = read(tmp_path / "again", tmp_path / "in")
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (2499, {"invalid_utf8": 1})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    manifest = read(tmp_path / "cut", tmp_path / "in")
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (999, {"invalid_utf8": 1, "broken_file": 1})
    with pytest.raises(UserError, match=r"arrow has no column 'body'; it has 'meta', 'text', 'n'; name it by --json-"):
        find_documents([str(tmp_path / "in")], "body", 2**20)
    path.write_bytes(b"Arrow?")
    with pytest.raises(UserError, match=r"arrow is not a valid Arrow file after row 0 \("):
        find_documents([str(path)], "text", 2**20)


@given(st.integers(0, 2**32), st.binary(min_size=1, max_size=8))
def test_a_damaged_arrow_file_ends_no_process(
    tmp_path_factory: pytest.TempPathFactory, place: int, damage: bytes
) -> None:
    """Its offsets can point anywhere, which Arrow follows unless it is asked to check them."""
    path = tmp_path_factory.mktemp("damaged") / "a.arrow"
    data = arrow([f"text {n}" for n in range(9)])
    at = place % len(data)
    path.write_bytes(data[:at] + damage + data[at + len(damage) :])
    with contextlib.suppress(UserError):  # of a damaged name of the column
        assert len(list(read_rows(path, "text"))) <= 11


WIKI = (
    b'<doc id="12" url="https://w.example/wiki?curid=12" title="A "quoted" & title">\nA "quoted" & title\n\n'
    b'Where x &lt; y &amp; z.\n\nMore.\n\n</doc>\n<doc id="13" revid="7" url="https://w.example/wiki?curid=13" '
    b'title="Two">\r\nTwo\r\n\r\n\r\n</doc>\r\n'
)


def test_the_files_of_wikiextractor_are_read(tmp_path: Path) -> None:
    """They have no endings, and a line before and after each article; or JSON lines."""
    (tmp_path / "in/AA").mkdir(parents=True)
    (tmp_path / "in/AA/wiki_00.bz2").write_bytes(bz2.compress(WIKI))
    write(tmp_path / "in/AB/wiki_100", {"id": "1", "url": "https://w.example/1", "title": "T", "text": "Words."})
    (tmp_path / "in/AB/wiki_101").write_bytes(b"")
    first = 'A "quoted" & title\n\nWhere x < y & z.\n\nMore.'
    manifest = read(tmp_path / "out", tmp_path / "in")
    rows = rows_of(Folder(tmp_path / "out"), manifest)
    assert [row["text"] for row in rows] == [first, "Two", "Words."]
    assert [row["title"] for row in rows] == ['A "quoted" & title', "Two", "T"]
    assert [row["url"][-2:] for row in rows] == ["12", "13", "/1"]
    assert [text for path in expand([tmp_path / "in"]) for text in documents(path, "text")] == [
        row["text"] for row in rows
    ]
    (tmp_path / "in/AA/wiki_00").write_bytes(WIKI[:-20])
    manifest = read(tmp_path / "cut", tmp_path / "in/AA/wiki_00")
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (1, {"broken_file": 1})
    (tmp_path / "in/AA/wiki_00").write_bytes(b"words")
    with pytest.raises(UserError, match=r"wiki_00 begins with b'words', <doc …> or JSON lines of .*; rename it"):
        read(tmp_path / "other", tmp_path / "in")


def test_a_damaged_name_of_a_column_is_damage_of_the_file(tmp_path: Path) -> None:
    table = pa.table({"text": ["words"], "other": ["x"]})
    for name, letters in (("a", b"other"), ("b", b"oth\xff\xff")):
        pq.write_table(table, sink := io.BytesIO(), store_schema=False)
        (tmp_path / f"{name}.parquet").write_bytes(sink.getvalue().replace(b"other", letters))
    manifest = read(tmp_path / "out", tmp_path)
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (1, {"broken_file": 1})


@pytest.mark.parametrize(
    ("header", "need"),
    [
        (bytes([0x00, (28 - 10) << 3]), "a window of more than 128 MiB; unpack it with zstd -d --long=31"),
        (b"\x21\x07\x0e", "a dictionary; unpack it with zstd -d -D DICTIONARY"),
    ],
)
def test_what_a_zstd_frame_needs_is_named(tmp_path: Path, header: bytes, need: str) -> None:
    """As in files of `zstd --long=28`, with a window of 2^28 bytes, and in web archives with a dictionary, number 7."""
    frame = b"\x28\xb5\x2f\xfd" + header + (14 << 3 | 1).to_bytes(3, "little") + b'{"text": "a"}\n'
    (tmp_path / "a.jsonl.zst").write_bytes(frame)
    with pytest.raises(UserError, match=rf"a\.jsonl\.zst needs {need}"):
        find_documents([str(tmp_path / "a.jsonl.zst")], "text", 2**20)
    (row,) = read_rows(tmp_path / "a.jsonl.zst", "text")
    assert row.kind == "broken_file" and need in row.content.decode()


def test_a_later_file_is_checked_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sources.documents.CHECKED_FILES", 1)
    files = [write(tmp_path / "1.jsonl", {"text": "a"}), write(tmp_path / "2.jsonl", {"body": "a"})]
    with pytest.raises(UserError, match=r"2\.jsonl, row 1: no key 'text'; it has 'body'"):
        read(tmp_path / "out", *files)


@pytest.mark.parametrize("name", ["a.parquet", *(f"a.jsonl{suffix}" for suffix in COMPRESSORS if suffix)])
def test_a_file_of_no_bytes_and_a_pointer_are_named(tmp_path: Path, name: str) -> None:
    write(tmp_path / "in" / "b.jsonl", {"text": "x"})
    (tmp_path / "in" / name).write_bytes(b"")
    manifest = read(tmp_path / "out", tmp_path / "in")
    assert (manifest.outcome.kept, manifest.outcome.reasons) == (1, {"unreadable": 1})
    (tmp_path / "in" / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(UserError, match=rf"{name} is a pointer of Git LFS, .*: git lfs pull"):
        read(tmp_path / "out", tmp_path / "in")


def test_small_files_share_a_batch_and_large_ones_have_their_own(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.jsonl", {"text": "x" * size}) for n, size in enumerate([10, 10, 900, 10, 10, 10])]
    found = find_documents([str(path) for path in paths], "text", 2**20)
    assert [len(group) for group in grouped(found.texts, 2, 800)] == [2, 1, 2, 1]
    assert [len(group) for group in grouped(found.texts, 9, 20)] == [1] * 6
    assert grouped([], 2, 800) == []


CARDS = {
    "of a clone": (b"---\r\nlicense: mit\r\n---\r\n# Rows\n", "data/a.jsonl.zst", True),
    "of texts": (b"\xef\xbb\xbf---\nconfigs:\n- config_name: a\n---\n", "a.txt", True),
    "with much about each file": (b"---\ndataset_info:\n" + b"- config_name: a\n" * 9000 + b"---\n", "b.pq", True),
    "of notes": (b"---\nlicense: mit\ntitle: Notes\n---\nSome words.\n", "a.txt", False),
    "without keys": (b"# License\nlicense: mit\n", "a.jsonl", False),
    "after a line": (b"Words.\n---\nlicense: mit\n---\n", "a.jsonl", False),
    "below a line": (b"---\ntitle: A\n---\nlicense: mit\n", "a.jsonl", False),
}


@pytest.mark.parametrize("kind", CARDS)
def test_the_card_of_a_dataset_is_no_document(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """As a clone has one beside the rows; a README that is a text stays one, and so does a card that is named."""
    content, beside, is_card = CARDS[kind]
    for name, data in {
        "README.md": content,
        "notes/README.md": b"---\nlicense: mit\n---\nA note.",
        beside: b"",
    }.items():
        write(tmp_path / "in" / name).write_bytes(data)
    caplog.set_level("INFO")
    names = ["README.md", *sorted(["notes/README.md", beside])]
    found = [file.name for file in find_inputs([str(tmp_path / "in")], "--documents", ENDINGS)]
    assert found == names[is_card:]
    assert [str(path.relative_to(tmp_path / "in")) for path in expand([tmp_path / "in"])] == found
    assert ("in/README.md: not read, as the card of a dataset" in caplog.text) is is_card
    named = [str(tmp_path / "in"), str(tmp_path / "in" / "README.md")]
    assert len(find_inputs(named, "--documents", ENDINGS)) == 3


def test_a_store_that_fails_does_not_make_a_document_of_a_card() -> None:
    """Else the list of inputs, and so what is done again, would depend on it."""

    def fail(error: OSError) -> Callable[[str], bytes]:
        def read(_: str) -> bytes:
            raise error

        return read

    assert left_out(["in/README.md", "in/a.jsonl"], fail(PermissionError())) == set()
    with pytest.raises(TimeoutError):
        left_out(["in/README.md", "in/a.jsonl"], fail(TimeoutError()))


@pytest.mark.parametrize("given", ["", "/*", "/out"])
def test_the_output_of_a_flow_is_no_input(tmp_path: Path, given: str, caplog: pytest.LogCaptureFixture) -> None:
    """By default it is `out` in the working folder, which may hold the texts too."""
    write(tmp_path / "a.jsonl", {"text": "Some text."})
    for name in (".flow-run", "clean/_manifest.json", "clean/part-00000.parquet", "data-report/report.html"):
        write(tmp_path / "out" / name, b"{")
    place = f"{tmp_path}{given}"
    if given == "/out":
        with pytest.raises(UserError, match=r"no file in .*/out ends in"):
            find_documents([place], "text", 1000)
    else:
        found = find_documents([place], "text", 1000)
        assert ([file.name for file in found.texts], found.pages) == (["a.jsonl"], ())
    assert "/out is not read: it is the output of a flow; give files of it" in caplog.text


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
    names = ["a.txt", "below/b.txt", "dangling.txt", "fifo.txt", "gone.txt", "self.txt"]
    assert [file.name for file in found.texts] == names
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


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def parquet(*texts: str, noise: int = 20_000) -> bytes:
    sink = io.BytesIO()
    others = [os.urandom(noise).hex() for _ in texts]
    pq.write_table(pa.table({"text": texts, "other": others}), sink, compression="none")
    return sink.getvalue()


def archive(texts: list[str]) -> bytes:
    with tarfile.open(fileobj=(sink := io.BytesIO()), mode="w") as tar:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return sink.getvalue()


def arrow(texts: list[str]) -> bytes:
    """A stream as `datasets` writes it; a file of Arrow's if there is one text."""
    rows = pa.table({"text": texts})
    with (pa.ipc.new_file if len(texts) == 1 else pa.ipc.new_stream)(sink := io.BytesIO(), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    return sink.getvalue()


FORMATS = {
    ".arrow": arrow,
    ".jsonl": lambda texts: lines(*texts),
    ".parquet": lambda texts: parquet(*texts, noise=9),
    ".txt": lambda texts: SEPARATOR.join(texts).encode(),
    ".tar": archive,
    ".wet": lambda texts: b"".join(record("conversion", at, text.encode()) for at, text in enumerate(texts)),
}
PACKED = [*itertools.product(set(FORMATS) - {".arrow", ".parquet"}, COMPRESSORS), (".arrow", ""), (".parquet", "")]


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


# The client reads its environment when it is imported.
PROGRAM = """
import json, os, sys
from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import Folder
from tasks.core.input_files import find_inputs
from tests.tasks.corpus import rows_of
from tests.tasks.sources.text_files import read

answers = []
for root, pattern in json.loads(sys.argv[1]):
    try:
        files = find_inputs([pattern], "--documents", (".jsonl", ".parquet", ".md"))
        done = read(root, pattern)
        texts = [row["text"] for row in rows_of(Folder(root), done)]
        found = {"fingerprint": done.fingerprint, "texts": texts, "reasons": done.outcome.reasons, "read": done.read}
        answers.append(found | {"files": [[file.location, file.identity] for file in files]})
    except (UserError, RunError) as error:
        answers.append({"error": str(error)})
print(json.dumps(answers), flush=True)
"""
NAME = "datasets/some/corpus"


LARGE = lines(*(f"a text of the hub with the number {number}" for number in range(60)))
SMALL = lines("a small file")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the package `flows` sets in a process of tests."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        yield server


def ask(hub: Hub, tmp_path: Path, *pairs: tuple[str, str], **variables: str) -> list[dict[str, Any]]:
    """Read each address into an output of its own, in one new process."""
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), **variables}
    given = json.dumps([[str(tmp_path / name), address] for name, address in pairs])
    command = [sys.executable, "-c", PROGRAM, given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "secret-token" not in done.stdout + done.stderr
    return list(json.loads(done.stdout))


def test_files_are_pinned_and_known_by_the_hubs_hashes(hub: Hub, tmp_path: Path) -> None:
    card = b"---\nlicense: mit\n---\n"
    first = hub.put(NAME, {"data/a.jsonl": LARGE, "data/b/c.jsonl": SMALL, "data/README.md": card})
    address = f"hf://{NAME}/data/**/*.jsonl"
    [found] = ask(hub, tmp_path, ("one", address))
    assert len(found["texts"]) == 61 and not found["reasons"]
    [[large, tag], [small, _]] = found["files"]
    assert large == f"hf://{NAME}@{first}/data/a.jsonl" and small == f"hf://{NAME}@{first}/data/b/c.jsonl"
    assert tag == hashlib.sha256(LARGE).hexdigest()  # as that of a local copy
    assert sum("/cdn/" in call for call in hub.calls) == 2  # its beginning is checked, then it is read

    assert found["read"] == {f"hf://{NAME}": first}

    # The branch moves: a change elsewhere changes nothing, the earlier commit can be named, a new text is read.
    second = hub.put(NAME, {"data/a.jsonl": LARGE, "data/b/c.jsonl": SMALL, "README.md": b"y"})
    third = hub.put(NAME, {"data/a.jsonl": LARGE + SMALL})
    moved = f"hf://{NAME}@{second}/data/**/*.jsonl"
    done, new, same, other = ask(
        hub, tmp_path, ("one", moved), ("new", moved), ("two", f"hf://{NAME}@{first}/data"), ("three", address)
    )
    assert done["fingerprint"] == new["fingerprint"] == found["fingerprint"]
    assert done["read"] == found["read"] and new["read"] == {f"hf://{NAME}": second}  # the commit that was read
    assert same["texts"] == found["texts"] and other["fingerprint"] != found["fingerprint"]
    assert other["read"] == {f"hf://{NAME}": third}
    assert len(other["texts"]) == 61 and other["texts"][-1] == "a small file"


def test_a_busy_or_broken_hub_is_asked_again_and_a_private_one_needs_a_token(hub: Hub, tmp_path: Path) -> None:
    hub.put(NAME, {"a.jsonl": LARGE})
    hub.busy, hub.broken, hub.token = 2, 1, "secret-token"
    pairs = [("one", f"hf://{NAME}/*.jsonl")]
    [found] = ask(hub, tmp_path, *pairs, HF_TOKEN="secret-token")
    assert len(found["texts"]) == 60
    hub.busy = 0
    [found] = ask(hub, tmp_path, ("two", f"hf://{NAME}/*.jsonl"), HF_TOKEN="")
    assert f"{NAME}/*.jsonl: the hub has no such repository, or it is private; check it or set" in found["error"]


@pytest.mark.parametrize(
    ("asked", "low", "high"), [("7", 7, 7), ("date", 50, 60), ("soon", 1, 1), ("", 1, 1), ("86400", None, None)]
)
def test_a_busy_hub_is_asked_again_when_it_says(
    asked: str, low: int | None, high: int | None, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put(NAME, {})
    hub.busy, waits = 1, list[float]()
    hub.retry_after = formatdate(time.time() + 60, usegmt=True) if asked == "date" else asked
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_HUB_OFFLINE", "On")
    monkeypatch.setattr("gpt2train.store.hub.time", types.SimpleNamespace(sleep=waits.append))
    if low is None or high is None:
        with pytest.raises(UserError, match=r"cannot ask the hub for hf://datasets/some/corpus \(.*429.*try again"):
            input_files.pinned("hf://datasets/some/corpus")
        assert len(hub.calls) == 1 and not waits
    else:
        assert input_files.pinned("hf://datasets/some/corpus").startswith("hf://datasets/some/corpus@")
        assert len(waits) == 1 and low <= waits[0] <= high


class Away(io.RawIOBase):
    """A file of a hub that goes away: its first and last 30,000 bytes can be read."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.place = offset + (0, self.place, len(self.content))[whence]
        return self.place

    def tell(self) -> int:  # retired-word: ok
        return self.place

    def readinto(self, buffer: Any) -> int:
        data = self.content[self.place : self.place + min(len(buffer), 10_000)]
        if 30_000 < self.place < len(self.content) - 30_000:
            raise httpx.ConnectError("[Errno -2] Name or service not known")
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_hub_that_goes_away_is_asked_again_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    content = parquet(*map(str, range(20))) if name.endswith("parquet") else lines(*(["word " * 99] * 400))
    for module, opener in ((input_files, "_open"), (text_records, "open_raw")):
        monkeypatch.setattr(module, opener, lambda *_, **__: Away(content))
    file = InputFile(f"hf://{NAME}@0/{name}", name, len(content), "x")
    with pytest.raises(TransientError, match=rf"cannot read hf://.*{name}: .*Name or service not known; run again"):
        list(text_records.read_items(file, "text", 10**6))


def test_a_refusal_of_the_hub_is_not_tried_again() -> None:
    for status, again in ((403, False), (404, False), (429, True), (503, True)):
        request = httpx.Request("GET", "http://hub.test")
        error = httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))
        assert (unreachable("hf://x", error) is not None) is again, status


def test_a_column_is_read_without_the_others(hub: Hub, tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(50)]
    content = parquet(*texts, noise=500_000)
    hub.put(NAME, {"data/0.parquet": content})
    [found] = ask(hub, tmp_path, ("one", f"hf://{NAME}/data/*.parquet"))
    assert found["texts"] == texts and hub.sent < len(content) / 2  # it is opened twice, blocks are read of 4 MiB


def test_mistakes_are_one_line(hub: Hub, tmp_path: Path) -> None:
    hub.put(NAME, {"a.jsonl": SMALL})
    wrong = {
        "hf://datasets/some/other/*.jsonl": "no such repository",
        f"hf://{NAME}@nope/*.jsonl": "no such repository",
        f"hf://{NAME}/none/*.jsonl": "no such file",
        "hf://some": "write hf://datasets/ORG/NAME/PATH",
    }
    answers = ask(hub, tmp_path, *((str(number), address) for number, address in enumerate(wrong)))
    for answer, part in zip(answers, wrong.values(), strict=True):
        assert part in answer["error"] and "\n" not in answer["error"], answer
    with Hub() as away:
        pass
    [answer] = ask(away, tmp_path, ("away", f"hf://{NAME}/*.jsonl"))
    assert "try again, or set HF_ENDPOINT" in answer["error"], answer


def test_a_flow_asks_the_hub_for_its_addresses_alone(hub: Hub, tmp_path: Path) -> None:
    texts = [f"document {number}: {'some words of it. ' * 40}" for number in range(8)]
    hub.put(NAME, {"data/0.parquet": parquet(*texts)})
    command = [sys.executable, "-m", "flows.dataprep", "--output", str(tmp_path / "out"), "--workers", "1", "--dry-run"]
    command += ["--documents", f"hf://{NAME}/data/*.parquet"]
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and any("/data/0.parquet" in call for call in hub.calls), done.stderr
    hub.calls.clear()
    done = subprocess.run(command, env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert done.returncode == 2 and "is on the hub, but HF_HUB_OFFLINE is set" in done.stderr and not hub.calls
