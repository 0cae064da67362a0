"""URL lists: text, Parquet, web addresses, and mistakes of the user."""

import gzip
import http.server
import io
import threading
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import UserError
from tasks.core.url_lists import find_url_lists, host_of, hosts_of, read_urls
from tasks.sources.documents import find_documents
from tasks.sources.warcs import find_warcs

LINES = b"# a comment\nhttp://a.example/\r\n\n\xef\xbb\xbf  http://b.example/x y  \nhttp://a.example/\n"
EXPECTED = ("http://a.example/", "http://b.example/x y", "http://a.example/")


def urls_of(place: str) -> list[str | None]:
    return [url for _, url in read_urls(place)]


def test_lines_have_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "list.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + LINES + b"x" * 9000))
    (found,) = find_url_lists([str(tmp_path / "list.txt.gz")])
    assert found.name == "list.txt.gz"
    assert list(read_urls(found.location)) == [*zip((2, 4, 5), EXPECTED, strict=True), (6, None)]


def test_parquet_is_read_by_its_url_column(tmp_path: Path) -> None:
    path = tmp_path / "list.parquet"
    column = pa.array([*EXPECTED, None, "x" * 9000, " http://c.example/ "])
    for values in (column, column.cast(pa.large_string()), column.dictionary_encode(), column.cast(pa.binary())):
        pq.write_table(pa.table({"score": range(6), "url": values}), path)
        assert urls_of(str(path)) == [*EXPECTED, "", None, "http://c.example/"]
    pq.write_table(pa.table({"score": [1], "link": ["x"]}), path)
    with pytest.raises(UserError, match="no column 'url', only score, link"):
        find_url_lists([str(path)])
    pq.write_table(pa.Table.from_arrays([column, column], ["url", "url"]), path)
    with pytest.raises(UserError, match=r"list\.parquet has several columns 'url'; rename"):
        find_url_lists([str(path)])
    pq.write_table(pa.table({"url": [1, 2]}), path)
    with pytest.raises(UserError, match=r"column 'url' of \S*list\.parquet holds int64, strings expected"):
        find_url_lists([str(path)])
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"list.parquet is not a readable Parquet file"):
        find_url_lists([str(path)])


def test_a_list_is_read_over_http(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_bytes(LINES)
    (tmp_path / "urls.parquet").write_bytes(parquet(url=[*EXPECTED]))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

        def send_header(self, name: str, value: str) -> None:
            if name != "Content-Length" or "stream" not in self.path:
                super().send_header(name, value)

        def send_head(self) -> io.BytesIO | BinaryIO | None:
            if "private" in self.path:
                self.send_error(403)
                return None
            return super().send_head()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        (found,) = find_url_lists([f"{base}/urls.txt?month=2005"])
        assert (found.name, tuple(urls_of(found.location))) == ("urls.txt", EXPECTED)
        for name in ("urls.txt?stream", "urls.parquet"):
            (found,) = find_url_lists([f"{base}/{name}"])
            assert tuple(urls_of(found.location)) == EXPECTED
        with pytest.raises(UserError, match=r"urls\.parquet\?… in parts: its server gives no length"):
            find_url_lists([f"{base}/urls.parquet?stream"])
        with pytest.raises(UserError, match=r"gone\.txt: no such file"):
            find_url_lists([f"{base}/gone.txt"])
        with pytest.raises(UserError, match=r"private\.txt: 403"):
            find_url_lists([f"{base}/private.txt"])
        server.shutdown()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "cannot read .*missing.txt"),
        ("*.none", None, "no file matches"),
        ("a.csv", b"url,title\nhttp://a.example/,x\n", r"a\.csv is a table; give its URLs alone"),
        ("a.tsv.gz", gzip.compress(b"http://a.example/\tx\n"), "is a table"),
        (
            "titles.txt",
            b"url,title\nhttp://a.example/,On x\nhttp://a.example/1,A b\n",
            "more than a URL .*; give its URLs",
        ),
        ("quoted.txt", b'"http://a.example/1"\n"http://a.example/2"\n', "quotes, commas or <> around its URLs; give"),
        ("commas.txt", b"http://a.example/1,\nhttp://a.example/2,\n", "quotes, commas or <> around its URLs; give"),
        ("angled.txt", b"<http://a.example/1>\n<http://a.example/2>\n", "quotes, commas or <> around its URLs; give"),
        ("wide.txt", "http://a.example/1\r\n".encode("utf-16"), "mark says; convert it: iconv -f UTF-16 -t UTF-8"),
        ("bare.txt", "http://a.example/1\n".encode("utf-32-be"), "without a byte .*: iconv -f UTF-32BE -t UTF-8"),
        ("empty.txt", b"\n# nothing\n", "holds no URL"),
        ("mac.txt", b"http://a.example/1\rhttp://a.example/2\r", r"mac\.txt is a single line: .*: tr '\\r' '\\n'"),
        ("cut.gz", gzip.compress(LINES, mtime=0)[:-9], "not a complete .gz file"),
        ("plain.xz", LINES, "not a complete .xz file"),
        ("plain.zst", LINES, "not a complete .zst file"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        find_url_lists([str(tmp_path / name)])
    assert "\n" not in str(error.value)


def parquet(**columns: list[object]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


WARC = b"WARC/1.0\r\nWARC-Type: response\r\n\r\n"
WET = b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\n"


@pytest.mark.parametrize(
    ("option", "files"),
    [
        ("--warcs", {"a.warc": WARC, "a.warc.gz": gzip.compress(WARC), "a.txt": WARC, "a.txt.gz": gzip.compress(WARC)}),
        ("--warcs", {"warc.paths.txt": b"crawl-data/CC-MAIN-2026-01/a.warc.gz\n"}),
        ("--documents", {"a.warc.wet.gz": gzip.compress(WET), "a.wet": WET, "a.lst": WET, "a.html": b"<p>words"}),
        ("--documents", {"a.jsonl": b'{"text": "words"}\n', "a.jsonl.zst": b"", "a": b"<!DOCTYPE html><p>words"}),
        ("--documents", {"a.txt": b'\xef\xbb\xbf {"text": "words"}\n', "a.parquet": parquet(text=["words"], id=[1])}),
        ("is not text", {"a.txt": b"\x7fELF\0\0\0"}),
    ],
    ids=["archives", "paths", "texts and a page", "JSON and a page", "JSON and Parquet", "a program"],
)
def test_a_file_that_is_no_list_is_refused_with_its_option(
    tmp_path: Path, option: str, files: dict[str, bytes]
) -> None:
    (tmp_path / "list.txt").write_bytes(LINES)
    for name, content in files.items():
        path = tmp_path / name
        path.write_bytes(content)
        for places in ([str(path)], [str(tmp_path / "list.txt"), str(path)]):
            with pytest.raises(UserError, match=option) as error:
                find_url_lists(places)
            assert "\n" not in str(error.value) and name in str(error.value)


def test_a_large_archive_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A sparse terabyte, without space on the disk: hashing it would take half an hour."""
    for name in ("a.txt", "a.warc"):
        with (tmp_path / name).open("wb") as file:
            file.write(WARC)
            file.truncate(2**40)
        with pytest.raises(UserError, match="--warcs"):
            find_url_lists([str(tmp_path / name)])
    with pytest.raises(UserError, match="--warcs"):
        find_documents([str(tmp_path / "a.warc")], "text", 2**20)
    with (tmp_path / "b.warc").open("wb") as file:
        file.write(LINES)
        file.truncate(2**40)
    with pytest.raises(UserError, match="--urls"):
        find_warcs([str(tmp_path / "b.warc")])


@given(st.binary(max_size=300))
def test_any_bytes_are_read_as_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(data)
    assert all(url and url == url.strip() and "\n" not in url for url in urls_of(str(path)))


HOSTS_PARTS = (
    *(("http://", "HTTPS://", "s3://"), ("", "u@", "u:p@", "a@b@")),
    ("a.example", "A.Example", "[2001:db8::1]", "127.0.0.1", "bücher.example"),
    *(("", ":80", ":"), ("", "/", "/a@b/://c", "?q=://b@c", "#@d")),
)


def by_urlsplit(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


@given(st.text(st.sampled_from("htps:/@?#[]\\.aZ0-_é%\n\t \u3002"), max_size=12))
def test_a_host_is_that_of_the_url_parser(rest: str) -> None:
    for url in (rest, f"http://{rest}", f"https://a.example{rest}", f"http://a{rest}:80/{rest}"):
        assert host_of(url) == by_urlsplit(url)


@given(st.lists(st.tuples(*map(st.sampled_from, HOSTS_PARTS))))
def test_hosts_of_a_column_are_those_of_its_rows(parts: list[tuple[str, ...]]) -> None:
    urls = ["".join(part) for part in parts]
    found = hosts_of(pa.array([*urls, None], pa.string())).to_pylist()
    assert [host and host.strip("[]") for host in found] == [*(host_of(url) or None for url in urls), None]
