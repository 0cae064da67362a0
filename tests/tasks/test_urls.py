"""URL lists: plain and compressed, globs, web addresses, and the mistakes that a person makes."""

import bz2
import gzip
import http.server
import lzma
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import UserError
from tasks.urls import read_url_lists

LINES = b"# a comment\nhttp://a.example/\r\n\n  http://b.example/x y  \nhttp://a.example/\n"
EXPECTED = ("http://a.example/", "http://b.example/x y", "http://a.example/")


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)],
)
def test_each_compression(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"list.txt{suffix}"
    path.write_bytes(b"" + pack(LINES))
    (found,) = read_url_lists([str(path)])
    assert (found.source, found.urls) == (path.name, EXPECTED)


def test_globs_are_sorted_and_patterns_keep_their_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.lst"):
        (tmp_path / name).write_text(f"http://{name}/\n")
    found = read_url_lists([f"{tmp_path}/c.lst", f"{tmp_path}/*.txt"])
    assert [item.source for item in found] == ["c.lst", "a.txt", "b.txt"]


def test_a_list_over_http(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_bytes(LINES)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        (found,) = read_url_lists([f"{base}/urls.txt?month=2005"])
        with pytest.raises(UserError, match=r"gone\.txt"):
            read_url_lists([f"{base}/gone.txt"])
        server.shutdown()
    assert (found.source, found.urls) == ("urls.txt", EXPECTED)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "cannot read .*missing.txt"),
        ("*.none", None, "no file matches"),
        ("empty.txt", b"\n# nothing\n", "holds no URL"),
        ("cut.gz", gzip.compress(LINES)[:-9], "not a whole .gz file"),
        ("plain.xz", LINES, "not a whole .xz file"),
        ("plain.zst", LINES, "not a whole .zst file"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_url_lists([str(tmp_path / name)])
    assert "\n" not in str(error.value)


@given(st.binary(max_size=300))
def test_any_bytes_give_lines_or_a_user_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(data)
    try:
        (found,) = read_url_lists([str(path)])
    except UserError:
        return
    assert all(url == url.strip() and url and "\n" not in url for url in found.urls)
