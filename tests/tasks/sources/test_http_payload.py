"""Bodies of archived responses: transfer and content encodings as crawlers store them."""

import gzip
import time
import zlib
from pathlib import Path

import brotli
import pytest

from tasks.download.response_body import FetchRejectedError
from tasks.sources.http_payload import unchunk, unpack
from tests.tasks.sources.archives import BODY, archive, chunked, index, members, pages_of, response

BODIES = {
    "plain": (BODY, []),
    "chunked": (chunked(BODY), ["Transfer-Encoding: chunked"]),
    "unchunked already": (BODY, ["Transfer-Encoding: chunked"]),
    "gzip": (gzip.compress(BODY), ["Content-Encoding: gzip"]),
    "gzip in members": (gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]), ["Content-Encoding: x-gzip"]),
    "gzip in chunks": (chunked(gzip.compress(BODY), 33), ["Transfer-Encoding: chunked", "Content-Encoding: GZIP"]),
    "unpacked already": (BODY, ["Content-Encoding: gzip"]),
    "deflate": (zlib.compress(BODY), ["Content-Encoding: deflate"]),
    "bare deflate": (zlib.compress(BODY, wbits=-15), ["Content-Encoding: deflate"]),
    "brotli": (brotli.compress(BODY), ["Content-Encoding: br"]),
    "no brotli any more": (BODY, ["Content-Encoding: br"]),
    "identity": (BODY, ["Content-Encoding: identity"]),
    "no coding": (BODY, ["Content-Encoding: UTF-8"]),
    "no coding, gzip": (gzip.compress(BODY), ["Content-Encoding: none, gzip"]),
}


@pytest.mark.parametrize("kind", BODIES)
def test_bodies_are_decoded_as_crawlers_store_them(tmp_path: Path, kind: str) -> None:
    body, headers = BODIES[kind]
    path = archive(tmp_path, members([response(1, body, *headers)]))
    (page,) = pages_of(tmp_path / "out", index(tmp_path / "out", path))
    assert page.body == BODY


def test_a_body_of_many_chunks_and_gzip_members_is_read() -> None:
    """Bounds: real pages have a few thousand of either at most."""
    for count, kept in ((60_000, True), (70_000, False)):
        body = b"1\r\nx\r\n" * count + b"0\r\n\r\n"
        if kept:
            assert unchunk(body) == b"x" * count
        else:
            with pytest.raises(FetchRejectedError, match="chunks"):
                unchunk(body)
    member = gzip.compress(b"", mtime=0)
    page = gzip.compress(BODY, mtime=0)
    for count in (0, 100, 4000):
        assert unpack(member * count + page, "gzip", 2**24, 100.0) == BODY
    assert unpack(b"".join(gzip.compress(BODY[n : n + 1]) for n in range(len(BODY))), "gzip", 2**24, 100.0) == BODY
    began = time.process_time()
    with pytest.raises(FetchRejectedError, match="members"):
        unpack(member * (2**23 // len(member)), "gzip", 2**24, 100.0)
    assert unpack(page + bytes(2**23), "gzip", 2**24, 100.0) == BODY  # padding
    assert time.process_time() - began < 3
