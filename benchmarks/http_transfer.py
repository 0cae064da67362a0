"""HTTP/2 and zstd against what the download uses: bytes and decoding time of real pages, and CPU time of requests.

Pages are those of a tar archive, by default the documentation pages of the test data. The requests go one after the
other to a server of this machine, as the download sends them to one host. The comparison of HTTP versions takes
`hypercorn`, `httpx` and `h2`, which the package itself does not need.
`python -m benchmarks.http_transfer [--pages 500] [--archive F.tar.xz]`
"""

import argparse
import asyncio
import gzip
import os
import tarfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import brotli
import pyarrow as pa

from benchmarks.pairs import machine

DATA = Path(os.environ.get("GPT2TRAIN_TEST_DATA", "../shared/data"))
REQUESTS, ROUNDS = 300, 5
PORT = 18080


def zstd(level: int) -> Callable[[bytes], bytes]:
    """Compressor of this level."""
    return lambda body: pa.Codec("zstd", compression_level=level).compress(body, asbytes=True)


def unzstd(packed: bytes) -> bytes:
    """Decompress a stream whose size is not known."""
    return pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read()


ENCODINGS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gzip 6": (lambda body: gzip.compress(body, 6), gzip.decompress),
    "zstd 3": (zstd(3), unzstd),
    "zstd 9": (zstd(9), unzstd),
    "brotli 4": (lambda body: brotli.compress(body, quality=4), brotli.decompress),
}


def pages_of(archive: Path, count: int) -> list[bytes]:
    """The first pages of an archive."""
    pages: list[bytes] = []
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.endswith((".html", ".htm")) and (file := tar.extractfile(member)):
                pages.append(file.read())
                if len(pages) == count:
                    break
    return pages


def encodings(pages: list[bytes]) -> None:
    """Print bytes and decoding time by encoding."""
    first = 0
    for name, (pack, unpack) in ENCODINGS.items():
        packed = [pack(page) for page in pages]
        size = sum(map(len, packed))
        first = first or size
        times = []
        for _ in range(ROUNDS):
            began = time.process_time()
            for body in packed:
                unpack(body)
            times.append((time.process_time() - began) / len(pages))
        mean = size / len(pages)
        print(f"  {name:10} {mean:8,.0f} bytes a page  {size / first:.3f}  {1e6 * min(times):6.0f} us to decode")


def versions(body: bytes) -> None:
    """Print the CPU time of requests by HTTP version."""
    import httpx  # the comparison alone takes these
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    async def answer(scope: dict[str, Any], _: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
            await send({"type": "http.response.body", "body": body})

    config = Config()
    config.bind, config.loglevel = [f"127.0.0.1:{PORT}"], "error"
    threading.Thread(
        target=lambda: asyncio.run(serve(answer, config, shutdown_trigger=asyncio.Event().wait)),
        daemon=True,
    ).start()
    time.sleep(1)
    url = f"http://127.0.0.1:{PORT}/page"

    async def with_aiohttp() -> float:
        async with aiohttp.ClientSession() as session:
            began = time.thread_time()
            for _ in range(REQUESTS):
                async with session.get(url) as response:
                    await response.read()
            return time.thread_time() - began

    async def with_httpx(http2: bool) -> float:
        async with httpx.AsyncClient(http1=not http2, http2=http2) as client:
            began = time.thread_time()
            for _ in range(REQUESTS):
                found = await client.get(url)
                assert found.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
            return time.thread_time() - began

    runs: dict[str, Callable[[], Any]] = {
        "aiohttp, HTTP/1.1": with_aiohttp,
        "httpx, HTTP/1.1": lambda: with_httpx(False),
        "httpx, HTTP/2": lambda: with_httpx(True),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, work in runs.items():
            times[name].append(asyncio.run(work()) / REQUESTS)
    for name, found in times.items():
        print(f"  {name:18} {1000 * median(found):.2f} ms of CPU time of the client a request")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--archive", type=Path, default=DATA / "html_docs/html_docs_dev.tar.xz")
    given = parser.parse_args()
    pages = pages_of(given.archive, given.pages)
    print(machine())
    print(f"{len(pages)} pages of {sum(map(len, pages)) / len(pages):,.0f} bytes")
    encodings(pages)
    try:
        versions(gzip.compress(pages[0]))
    except ImportError as error:
        print(f"  HTTP versions are not compared: {error}")


if __name__ == "__main__":
    main()
