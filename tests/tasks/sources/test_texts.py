"""Texts of the user: every kind of file, a reason with its row for every fault, and bounded memory."""

import bz2
import codecs
import gzip
import json
import lzma
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.documents import split_objects
from gpt2train.data.parquet_column import ROWS
from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import Folder, Manifest, merge_manifests
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.extract.step import ExtractSettings, document_id, extract
from tasks.sources.documents import find_documents
from tasks.sources.text_records import json_item
from tasks.sources.texts import TextsSettings, texts
from tasks.sources.warcs import WarcSettings, find_warcs, warcs
from tasks.sources.webpages import WebpagesSettings, webpages
from tests.tasks.corpus import Inline, rejected_of, rows_of
from tests.tasks.sources.archives import members, record, response, url
from tests.tasks.sources.text_files import read, write

PARAGRAPH = "The library waits for the reply of the server, and it gives up when the reply does not come in time. "

PAGE = f"<html><head><title>A title</title></head><body><article><p>{PARAGRAPH * 4}</p></article></body></html>"


def test_json_lines_are_read_in_shards(tmp_path: Path) -> None:
    lines = [{"text": f"words {n}", "url": f"http://a.example/{n}"} for n in range(5)]
    manifest = read(tmp_path / "out", write(tmp_path / "raw.json", *lines), shard_rows=2)
    rows = rows_of(Folder(tmp_path / "out"), manifest)
    assert [(row["text"], row["url"]) for row in rows] == [(line["text"], line["url"]) for line in lines]
    assert rows[0]["id"] == document_id("http://a.example/0", "words 0")
    assert {row["source"] for row in rows} == {"raw.json"}


def test_metadata_is_kept_and_records_without_a_url_get_a_name(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in" / "a.jsonl",
        {"body": "one", "url": "http://a.example/", "title": "T\x00", "date": "2020-01-02", "id": "x", "more": [1]},
        b"",
        {"body": "two", "id": 7, "title": ["no", "string"], "score": float("nan"), "date": float("nan")},
        {"body": "three\u2028still\x85three"},
    )
    rows = rows_of(Folder(tmp_path / "out"), read(tmp_path / "out", path, key="body"))
    found = [(row["url"], row["title"], row["date"]) for row in rows]
    assert found == [("http://a.example/", "T", "2020-01-02"), ("a.jsonl#7", None, None), ("a.jsonl#4", None, None)]
    assert rows[2]["text"] == "three\u2028still\x85three"


BAD = {
    "broken": (b'{"text": "a", ', "broken_json", "end of data"),
    "no JSON": (b"hello", "broken_json", "unexpected"),
    "too deep": (b"[" * 100_000, "broken_json", "depth"),
    "a list": (b"[1, 2]", "wrong_type", "list, an object expected"),
    "a number": (b"12", "wrong_type", "int, an object expected"),
    "text is a list": ({"text": ["a"]}, "wrong_type", "'text' is list, a string expected"),
    "text is a number": ({"text": 3}, "wrong_type", "'text' is int"),
    "no text": ({"words": "a"}, "no_text", "no key 'text'"),
    "null": ({"text": None}, "no_text", "'text' is null"),
    "empty": ({"text": ""}, "empty", "no characters"),
    "spaces": ({"text": " \n\t"}, "empty", "spaces"),
    "no UTF-8": (b'{"text": "caf\xe9"}', "invalid_utf8", "byte 13"),
    "UTF-8 surrogate": (b'{"text": "\xed\xa0\x80"}', "invalid_utf8", "byte 10"),
    "a lone surrogate": (b'{"text": "ab\\ud800"}', "lone_surrogate", "character 2"),
    "a NUL": ({"text": "ab\0c"}, "nul", "character 2"),
    "a bare NUL": (b'{"text": "ab\0c"}', "broken_json", "control character"),
    "too long": ({"text": "x" * 200_000}, "too_large", "more than 100,000 bytes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_has_a_reason_and_its_row(tmp_path: Path, kind: str) -> None:
    line, reason, said = BAD[kind]
    path = write(tmp_path / "in" / "b.jsonl", {"text": "before"}, line, {"text": "after"})
    manifest = read(tmp_path / "out", path, max_bytes=100_000)
    assert [row["text"] for row in rows_of(Folder(tmp_path / "out"), manifest)] == ["before", "after"]
    (bad,) = rejected_of(Folder(tmp_path / "out"), manifest)
    assert bad["reason"] == reason
    assert bad["detail"].startswith("b.jsonl, row 2: ") and said in bad["detail"]
    assert (bad["text"] or "") == ""  # nothing of the document, which may be anything


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_reason(line: bytes) -> None:
    _, item = json_item(2, line, "text", 1000)
    assert bool(item.text) != bool(item.reason)


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1))
def test_any_text_is_read_unchanged(text: str) -> None:
    _, item = json_item(2, json.dumps({"text": text}).encode(), "text", 10_000)
    assert item.text == text if text.strip() else item.reason == "empty"


def test_parquet_is_read(tmp_path: Path) -> None:
    columns = {
        "text": pa.array([b"one", b"caf\xe9", None, b"a\0b", b"five", b"x" * 2000], pa.binary()).view(pa.string()),
        "url": ["http://a.example/1", "2", "3", "4", None, "6"],
        "date": pa.array([0, 1, 2, 3, 4, 5], pa.date32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    manifest = read(tmp_path / "out", tmp_path / "a.parquet", max_bytes=1000)
    rows = rows_of(Folder(tmp_path / "out"), manifest)
    found = [(row["text"], row["url"], row["date"]) for row in rows]
    assert found == [("one", "http://a.example/1", "1970-01-01"), ("five", "a.parquet#5", "1970-01-05")]
    rejected = rejected_of(Folder(tmp_path / "out"), manifest)
    reasons = {row["detail"].split(":")[0].removeprefix("a.parquet, row "): row["reason"] for row in rejected}
    assert reasons == {"2": "invalid_utf8", "3": "no_text", "4": "nul", "6": "too_large"}


TEXT_TYPES = [
    *(pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.binary())),
]


def test_parquet_columns_that_give_no_value_are_left_out(tmp_path: Path) -> None:
    """Two columns of a name, and a date of an unknown time zone; with two of the texts, nothing says which is meant."""
    names = ["text", "url", "url", "date"]
    columns = [*[pa.array(["a", "b"])] * 3, pa.array([1, None], pa.timestamp("us", "Mars/Phobos"))]
    pq.write_table(pa.Table.from_arrays(columns, names), tmp_path / "a.parquet")
    rows = rows_of(Folder(tmp_path / "out"), read(tmp_path / "out", tmp_path / "a.parquet"))
    assert [(row["text"], row["url"], row["date"]) for row in rows] == [
        ("a", "a.parquet#1", None),
        ("b", "a.parquet#2", None),
    ]
    with pytest.raises(UserError, match=r"a\.parquet has several columns 'url'; it has .*; rename them"):
        read(tmp_path / "other", tmp_path / "a.parquet", key="url")


def test_parquet_columns_of_other_types_are_read(tmp_path: Path) -> None:
    for number, kind in enumerate(TEXT_TYPES):
        values = kind.value_type if pa.types.is_dictionary(kind) else kind
        array = pa.array([b"a b", None, b"a b"]).cast(values)
        array = array.dictionary_encode() if pa.types.is_dictionary(kind) else array
        pq.write_table(pa.table({"text": array}), tmp_path / f"{number}.parquet")
    pq.write_table(pa.table({"text": pa.nulls(2), "url": ["u", "v"]}), tmp_path / "null.parquet")
    manifest = read(tmp_path / "out", tmp_path)
    assert [row["text"] for row in rows_of(Folder(tmp_path / "out"), manifest)] == ["a b", "a b"] * len(TEXT_TYPES)
    assert manifest.outcome.reasons == {"no_text": len(TEXT_TYPES) + 2}


def test_a_file_may_begin_with_null_texts(tmp_path: Path) -> None:
    """A row of a failed page has the key, also where its file has no other row."""
    write(tmp_path / "in" / "a.jsonl", *[{"text": None}] * 12, {"text": "words"})
    write(tmp_path / "in" / "b.json", {"text": None, "url": "http://a.example/"})
    manifest = read(tmp_path / "out", tmp_path / "in")
    assert [row["url"] for row in rows_of(Folder(tmp_path / "out"), manifest)] == ["a.jsonl#13"]
    assert manifest.outcome.reasons == {"no_text": 13}


DOLMA = {"id": "x1", "text": "", "source": "wiki", "metadata": {"url": "http://a.example/x", "body": {"en": "nested"}}}


def test_nested_keys_are_read(tmp_path: Path) -> None:
    """`url`, `title` and `date` in `metadata`, as dolma has them, or `meta`, as RedPajama; a text by its path."""
    rows = [DOLMA, DOLMA | {"metadata": {"body": {"de": "other"}}}, DOLMA | {"metadata": None}]
    write(tmp_path / "a.jsonl", *rows, {"metadata.body.en": "flat", "meta": {"url": "u", "date": 2020}})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    manifest = read(tmp_path / "out", tmp_path, key="metadata.body.en")
    found = [(row["text"], row["url"], row["date"]) for row in rows_of(Folder(tmp_path / "out"), manifest)]
    nested = ("nested", "http://a.example/x", None)
    assert found == [nested, ("flat", "u", "2020"), nested]
    assert manifest.outcome.reasons == {"no_text": 4}


PUBLISHED: dict[str, dict[str, Any]] = {
    "C4, CulturaX": {"url": "http://a.example/", "timestamp": "2020-01-02"},
    "DCLM": {"url": "http://a.example/", "metadata": {"WARC-Date": "2020-01-02"}},
    "Dolma": {"metadata": {"url": "http://a.example/"}, "created": "2020-01-02"},
    "HPLT": {"u": "http://a.example/", "ts": "2020-01-02"},
    "OSCAR": {"warc_headers": {"warc-target-uri": "http://a.example/", "warc-date": "2020-01-02"}},
    "RedPajama v2": {"url": "http://a.example/", "date_download": "2020-01-02"},
    "Parquet of Dolma with a map": {"metadata": {"url": "http://a.example/", "date": "2020-01-02"}},
}


@pytest.mark.parametrize("corpus", PUBLISHED)
def test_rows_of_published_corpora_have_their_url_and_date(tmp_path: Path, corpus: str) -> None:
    line = PUBLISHED[corpus] | {"text": corpus}
    write(tmp_path / "a.jsonl", line)
    columns = {
        name: pa.array([[*value.items()]], pa.map_(pa.string(), pa.string()))
        if isinstance(value, dict) and "map" in corpus
        else pa.array([value])
        for name, value in line.items()
    }
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    rows = rows_of(Folder(tmp_path / "out"), read(tmp_path / "out", tmp_path))
    assert [(row["text"], row["url"], row["date"]) for row in rows] == [(corpus, "http://a.example/", "2020-01-02")] * 2


NAMES: list[dict[str, str]] = [
    {"metadata": '{"url": "http://a.example/m", "title": "T"}'},
    {"meta": '{"url": "half'},
    {"meta": "a note", "id": "x"},
]


def test_names_are_kept_in_any_form(tmp_path: Path) -> None:
    """Metadata as a string of JSON (RedPajama); ids of more than 64 bits; columns of bytes (Spark) and decimals."""
    large = 10**29
    given = [*NAMES, {"id": large + 1}, {"id": large + 2, "date": -large}, {"id": 1e29}, {"id": 2.5}]
    write(tmp_path / "a.jsonl", *({"text": "words"} | row for row in given))
    columns: dict[str, Any] = {name: [row.get(name) for row in NAMES] for name in ("metadata", "meta", "id")}
    pq.write_table(pa.table({"text": ["words"] * 3, **columns}), tmp_path / "b.parquet")
    for name, ids in (
        ("c", pa.array([b"c-1", b"\xff"])),
        ("d", pa.array([Decimal(large + 1), None], pa.decimal128(38, 0))),
    ):
        pq.write_table(pa.table({"text": ["words"] * 2, "id": ids}), tmp_path / f"{name}.parquet")
    if hasattr(pa, "json_"):  # as DuckDB writes it; older releases of pyarrow read strings
        columns["metadata"] = pa.array(columns["metadata"], pa.json_())
    pq.write_table(pa.table({"text": ["words"] * 3, **columns}), tmp_path / "e.parquet")
    rows = rows_of(Folder(tmp_path / "out"), read(tmp_path / "out", tmp_path))
    assert [row["url"] for row in rows] == [
        *("http://a.example/m", "a.jsonl#2", "a.jsonl#x"),
        *(f"a.jsonl#{large + 1}", f"a.jsonl#{large + 2}", "a.jsonl#1e+29", "a.jsonl#2.5"),
        *("http://a.example/m", "b.parquet#2", "b.parquet#x", "c.parquet#c-1", "c.parquet#2"),
        *(f"d.parquet#{large + 1}", "d.parquet#2", "http://a.example/m", "e.parquet#2", "e.parquet#x"),
    ]
    assert (rows[0]["title"], rows[4]["date"], rows[7]["title"]) == ("T", str(-large), "T")


@given(st.lists(st.dictionaries(st.sampled_from(["text", "}{", "n"]), st.text('ab}{"\\ \n', max_size=6)), max_size=5))
def test_a_line_of_concatenated_files_is_its_objects(rows: list[dict[str, str]]) -> None:
    """`cat` of files without a last newline; braces within a text are none of its seams."""
    lines = [json.dumps(row).encode() for row in rows]
    for glue in (b"", b" ", codecs.BOM_UTF8):
        assert [part.strip() for part in split_objects(glue + glue.join(lines))] == lines
    assert split_objects(b"".join(lines) + b'{"text": "cut') == [*lines, b'{"text": "cut']


def test_concatenated_objects_have_places_of_their_own(tmp_path: Path) -> None:
    mark = codecs.BOM_UTF8
    rows = [mark + b'{"text": "a"}{"text": "b"} {"text": 3}', mark, mark + b'{"text": "d"}']
    path = write(tmp_path / "c.jsonl", *rows)
    manifest = read(tmp_path / "out", path)
    found = [(row["text"], row["url"]) for row in rows_of(Folder(tmp_path / "out"), manifest)]
    assert found == [("a", "c.jsonl#1"), ("b", "c.jsonl#1.2"), ("d", "c.jsonl#3")]
    (bad,) = rejected_of(Folder(tmp_path / "out"), manifest)
    assert bad["detail"].startswith("c.jsonl, row 1.3: 'text' is int")


JOINED = (
    "Once upon a time.\n<|endoftext|>\n\nThe end, \nagain.<|endoftext|>\n<|endoftext|>Schöne Worte.\n<|endoftext|>\n"
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_of_a_file_are_separated(tmp_path: Path, encoding: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(JOINED.encode(encoding))
    chosen = {"separator": "<|endoftext|>", "max_bytes": 40}
    rows = rows_of(Folder(tmp_path / "out"), read(tmp_path / "out", tmp_path / "in", **chosen))
    assert [row["text"] for row in rows] == ["Once upon a time.", "The end, \nagain.", "Schöne Worte."]
    assert [row["url"] for row in rows] == ["a.txt#1", "a.txt#2", "a.txt#4"]
    assert not caplog.records
    read(tmp_path / "whole", tmp_path / "in", separator=r"\n")  # a line end would be $'\n' in a shell
    assert "texts: the separator '\\\\n' divides no text file; each is one document" in caplog.text
    caplog.clear()
    (tmp_path / "in" / "b.txt").write_bytes(b"plain")
    for size, reasons in ((1000, {}), (70, {"too_large": 1})):
        manifest = read(tmp_path / f"out{size}", tmp_path / "in", max_bytes=size)
        assert manifest.outcome.reasons == reasons
        assert "<|endoftext|> stays text in 1 text file; --texts.separator '<|endoftext|>'" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_text_of_wide_letters_is_read_by_its_mark(tmp_path: Path, encoding: str) -> None:
    """Without one the remedy is that for its encoding."""
    for name, mark in {"with": "\ufeff", "without": ""}.items():
        write(tmp_path / f"{name}.txt").write_bytes(f"{mark}Schöne Worte, 中文.".encode(encoding))
    manifest = read(tmp_path / "out", tmp_path / "with.txt", tmp_path / "without.txt")
    assert [row["text"] for row in rows_of(Folder(tmp_path / "out"), manifest)] == ["Schöne Worte, 中文."]
    (bad,) = rejected_of(Folder(tmp_path / "out"), manifest)
    assert f"iconv -f {encoding.upper().replace('-', '').replace('UTF', 'UTF-')} -t UTF-8 IN > OUT" in bad["detail"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.warc", "a.html"])
def test_a_file_that_changes_during_a_run_ends_it(tmp_path: Path, name: str) -> None:
    """Else its new rows would stand under the hash of the old ones, and a later run would take them for those."""
    content = {"a.jsonl": b'{"text": "old words"}\n', "a.warc": response(1, PAGE.encode()), "a.html": PAGE.encode()}
    path, root = write(tmp_path / name, content[name]), Folder(tmp_path / "out")

    def run() -> Manifest:
        if name == "a.warc":
            return warcs(root, find_warcs([str(path)]), WarcSettings(), Replacing())
        found = find_documents([str(path)], "text", 2**20)
        if name == "a.html":
            return webpages(root, found.pages, WebpagesSettings(), Replacing())
        return texts(root, found.texts, "text", TextsSettings(), Replacing())

    class Replacing(Inline):
        def batches(self, *arguments: Any, **options: Any) -> Any:
            if b"new" not in path.read_bytes():
                path.write_bytes(content[name].replace(b"old", b"new").replace(b"A title", b"A newly"))
            return super().batches(*arguments, **options)

    with pytest.raises(RunError, match=rf"{name} has changed since the run began; run the command again"):
        run()
    assert run().outcome.kept == 1


META = {"url": "http://a.example/1", "word_count": 2, "elapsed": 0.1, "scraper": "newspaper", "domain": "a.example"}


@pytest.mark.parametrize("given", ["", "data"])
def test_a_scraped_tree_has_its_urls(tmp_path: Path, given: str) -> None:
    """`data/*.txt` and `meta/*.json` of the old crawler of OpenWebText; a text or metadata file may be missing."""
    tree = tmp_path / "scraped" / "RS_2011-01"
    for name, meta in {"0-12": json.dumps(META), "1--7": '{"url": "cut'}.items():
        write(tree / "data" / f"{name}.txt", f"Text {name}".encode())
        (tree / "meta").mkdir(exist_ok=True)
        (tree / "meta" / f"{name}.json").write_text(meta)
    write(tree / "data" / "2-3.txt", b"No metadata.")
    (tree / "meta" / "3-4.json").write_text(json.dumps(META))
    place = tree / given if given else tmp_path / "scraped"
    manifest = read(tmp_path / "out", place)
    rows = rows_of(Folder(tmp_path / "out"), manifest)
    assert [row["text"].strip() for row in rows] == ["Text 0-12", "Text 1--7", "No metadata."]
    assert rows[0]["url"] == META["url"] and rows[1]["url"].endswith("1--7.txt")
    assert manifest.outcome.reasons == ({} if given else {"unreadable": 1})
    (tree / "meta" / "0-12.json").write_text(json.dumps(META | {"url": "http://b.example/"}))
    again = read(tmp_path / "out", place)
    assert rows_of(Folder(tmp_path / "out"), again)[0]["url"] == "http://b.example/"


def test_each_file_of_a_folder_is_a_record_and_html_is_extracted(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deep").mkdir(parents=True)
    for name, content in {
        **{"one.txt": b"first line\nsecond line\n", "deep/one.txt": "other\n".encode("utf-16")},
        **{"notes.md": b"\xef\xbb\xbf# Notes\n", "latin.txt": b"caf\xe9", "empty.txt": b"", "picture.png": b"\x89PNG"},
        **{"page.html": PAGE.encode(), "blank.html": b"\n"},
        "deep/page.htm.gz": gzip.compress(PAGE.replace("library", "bakery").encode()),
    }.items():
        (source / name).write_bytes(content)
    found = find_documents([str(source)], "text", 2**20)
    root = Folder(tmp_path / "out")
    manifest = texts(root, found.texts, "text", TextsSettings(), Inline())
    expected = {"one.txt": "first line\nsecond line\n", "deep/one.txt": "other\n", "notes.md": "# Notes\n"}
    assert {row["url"]: row["text"] for row in rows_of(root, manifest)} == expected
    reasons = [(row["reason"], row["detail"].split(": ")[0]) for row in rejected_of(root, manifest)]
    assert reasons == [("empty", "empty.txt"), ("invalid_utf8", "latin.txt")]
    assert "convert it: iconv" in rejected_of(root, manifest)[1]["detail"]
    pages = webpages(root, found.pages, WebpagesSettings(), Inline())
    assert pages.outcome.reasons == {"empty": 1}
    with Runner(workers=1) as runner:
        documents = extract(root, pages, ExtractSettings(), runner)
    rows = {row["url"]: row for row in rows_of(root, documents)}
    assert rows.keys() == {"page.html", "deep/page.htm.gz"}
    assert rows["page.html"]["title"] == "A title"
    assert rows["deep/page.htm.gz"]["text"] == (PARAGRAPH.replace("library", "bakery") * 4).strip()


def test_wet_files_of_common_crawl_are_read(tmp_path: Path) -> None:
    records = [record("warcinfo", 0, b"x"), record("conversion", 1, "Ein schöner Text".encode())]
    records += [record("conversion", 2, b"\xff\xfe"), b"nonsense\r\n\r\n", record("conversion", 4, b"The end")]
    path = tmp_path / "cc.warc.wet.gz"
    path.write_bytes(members(records))
    manifest = read(tmp_path / "out", path)
    rows = rows_of(Folder(tmp_path / "out"), manifest)
    assert [(row["url"], row["text"]) for row in rows] == [(url(1), "Ein schöner Text"), (url(4), "The end")]
    assert manifest.outcome.reasons == {"broken_record": 1, "invalid_utf8": 1}


def test_several_sources_are_one_input(tmp_path: Path) -> None:
    """Pages of archives and files share one extraction; its documents and plain texts share the later steps."""
    (tmp_path / "a.warc.gz").write_bytes(members([response(1, PAGE.encode()), response(2, b"<html></html>")]))
    (tmp_path / "page.html").write_text(PAGE.replace("library", "bakery"))
    write(tmp_path / "a.jsonl", {"text": "loose words", "url": "http://b.example/"})
    root = Folder(tmp_path / "out")
    loose = find_documents([f"{tmp_path}/*.html", f"{tmp_path}/*.jsonl"], "text", 2**20)
    with Runner(workers=1) as runner:
        archives = warcs(root, find_warcs([f"{tmp_path}/*.warc.gz"]), WarcSettings(), runner)
        files = webpages(root, loose.pages, WebpagesSettings(), runner)
        pages = merge_manifests([archives, files])
        documents = extract(root, pages, ExtractSettings(), runner)
        assert documents.outcome.seen == 3
        words = texts(root, loose.texts, "text", TextsSettings(), runner)
        assert extract(root, merge_manifests([archives, files]), ExtractSettings(), runner) == documents
        assert "extract" in runner.skipped
    both = merge_manifests([documents, words])
    rows = [row for found in both.outputs for row in read_rows(root / both.folder, found.name)]
    assert [row["url"] for row in rows] == [url(1), "page.html", "http://b.example/"]
    assert merge_manifests([words]) is words
    assert both.identity != merge_manifests([words, documents]).identity


# VmHWM, not ru_maxrss: that of a new process begins with the memory of the process that started it.
MEMORY = """
import pathlib, re, sys
from tasks.sources.documents import find_documents
from tasks.sources.texts import TextsSettings, texts_part
from gpt2train.store.folder import Folder
def peak():
    return int(re.search("VmHWM: *\\t* *([0-9]+)", pathlib.Path("/proc/self/status").read_text()).group(1))
before = peak()
found = find_documents([sys.argv[1]], "text", 2**24)
outcome = texts_part(Folder(sys.argv[2]), "part-00000", found.texts, "text", TextsSettings())
print(outcome.kept, dict(outcome.reasons), peak() - before)
"""


def opened(path: Path, packing: str) -> Any:
    if packing == "zst":
        return pa.CompressedOutputStream(str(path), "zstd")
    return {"gz": gzip, "bz2": bz2, "xz": lzma}[packing].open(path, "wb")


def check_memory(place: Path, expected: str, megabytes: int) -> None:
    """Another process reads the texts, gives these kept and rejected rows, and grows less."""
    command = [sys.executable, "-c", MEMORY, str(place), str(place.parent / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    said, _, grown = done.stdout.rpartition(" ")
    assert said == expected
    assert int(grown) < megabytes * 1024, f"{int(grown) / 1024:.0f} MB"


FAST = [("gz", "jsonl"), ("zst", "txt")]  # each kind and each library once
REST = [("bz2", "jsonl"), ("xz", "txt")]


@pytest.mark.parametrize("bombs", [FAST, pytest.param(REST, marks=pytest.mark.exhaustive)], ids=["fast", "rest"])
def test_long_lines_are_rejected_and_not_held_in_memory(tmp_path: Path, bombs: list[tuple[str, str]]) -> None:
    """Lines of 300 MB: one of NULs, sparse on disk, between two others, and bombs packed to less than 2 MB."""
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/long.jsonl").open("wb") as sparse:
        sparse.write(b'{"text": "before"}\n{"text": "')
        sparse.seek(300 * 2**20)
        sparse.write(b'"}\n{"text": "after"}\n')
    for packing, kind in bombs:
        bomb = tmp_path / "in" / f"bomb.{kind}.{packing}"
        with opened(bomb, packing) as file:
            file.write(b'{"text": "first"}\n{"text": "' if kind == "jsonl" else b"first\n")
            for _ in range(300):
                file.write(b"x" * 10**6)
        assert bomb.stat().st_size < 2 * 10**6
    check_memory(tmp_path / "in", "3 {'too_large': 3}", 150)  # a text file is one document


@pytest.mark.exhaustive
def test_many_keys_take_bounded_memory(tmp_path: Path) -> None:
    """Nine lines of 2 MB with distinct keys, none of them the text key, then a good one."""
    with (tmp_path / "keys.jsonl").open("w") as file:
        for line in range(9):
            file.write("{" + ",".join(f'"{line}-{n}":0' for n in range(200_000)) + "}\n")
        file.write('{"text": "good"}\n')
    check_memory(tmp_path / "keys.jsonl", "1 {'no_text': 9}", 180)


@pytest.mark.exhaustive
def test_a_repeated_text_in_a_parquet_file_takes_little_memory(tmp_path: Path) -> None:
    """One text of 32 MiB that a thousand rows repeat: some kB of file, 32 GB of texts."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 2**25]))
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**30, "store_schema": False}
    pq.write_table(pa.table({"text": column}), tmp_path / "bomb.parquet", **options)
    check_memory(tmp_path / "bomb.parquet", "0 {'too_large': 1000}", 600)


@pytest.mark.exhaustive
def test_a_large_page_of_a_parquet_file_takes_little_memory(tmp_path: Path) -> None:
    """A text in one plain page, 60 kB of file, behind rows that can be used."""
    bomb = tmp_path / "bomb.parquet"
    plain = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(bomb, plain, compression="zstd", use_dictionary=False, write_statistics=False) as writer:
        writer.write_table(pa.table({"text": ["before"] * ROWS}))
        page = pa.py_buffer(bytes(600 * 2**20))
        offsets = pa.py_buffer(np.array([0, page.size], dtype=np.int32))
        writer.write_table(pa.table({"text": pa.StringArray.from_buffers(1, offsets, page)}))
    check_memory(bomb, f"{ROWS} {{'too_large': 1}}", 600)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("packing", "expected"), [(None, "1005 {}"), ("zstd", "5 {'too_large': 1}")])
def test_a_large_batch_of_an_arrow_file_is_read_in_its_place(
    tmp_path: Path, packing: str | None, expected: str
) -> None:
    """A batch may be all of a file, and takes the memory of its map; a packed one of this size is a rejected row."""
    rows = pa.table({"text": [f"{number} " + "word " * 140_000 for number in range(1005)]})
    options = pa.ipc.IpcWriteOptions(compression=packing)
    with pa.ipc.new_stream(str(tmp_path / "large.arrow"), rows.schema, options=options) as writer:
        writer.write_table(rows.slice(0, 5))
        writer.write_table(rows.slice(5))
    check_memory(tmp_path / "large.arrow", expected, 1200)
