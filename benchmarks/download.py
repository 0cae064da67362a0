"""Pages a second of the download from a server on this machine, against a bare client that checks and writes nothing.

The server is a process of its own and takes its share of the cores. Ours is the whole step: guard, robots.txt, queues,
limits, journal, WARC, ledger. `python -m benchmarks.download [--pages 3000] [--kilobytes 20]`
"""

import argparse
import asyncio
import concurrent.futures
import multiprocessing
import random
import tempfile
import time
from multiprocessing.connection import Connection

import aiohttp
import psutil
import urllib3
from aiohttp import web

from benchmarks.pairs import compare, machine
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.blacklist.step import URLS
from tasks.core.runner import Runner
from tasks.core.shards import write_rows
from tasks.core.step import Step
from tasks.download.settings import DownloadSettings
from tasks.download.step import download

HOSTS = 64
AT_ONCE = 64
WORDS = [f"word{number}" for number in range(5000)]


def serve(size: int, ready: Connection) -> None:
    """Answer every path with a page of `size` bytes of words, and print the port."""
    draw = random.Random(0)
    pages = [f"<html><body><p>{' '.join(draw.choices(WORDS, k=size // 9))}</p></body></html>" for _ in range(100)]
    bodies = [page[:size].encode() for page in pages]

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path == "/robots.txt":
            return web.Response(text="User-agent: *\nDisallow: /private/")
        return web.Response(body=bodies[hash(request.path) % 100], content_type="text/html")

    async def run() -> None:
        runner = web.ServerRunner(web.Server(answer), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready.send(runner.addresses[0][1])
        await asyncio.sleep(10**6)

    asyncio.run(run())


def url_shards(root: Folder, urls: list[str], rows: int) -> Manifest:
    """The URLs as a finished blacklist step."""
    step = Step(root, "blacklist", version=1, parameters={}, inputs={}, folder="urls")
    shards = [urls[start : start + rows] for start in range(0, len(urls), rows)]
    records = [
        write_rows(step.folder, f"part-{number:05d}.parquet", [{"url": url, "source": "list"} for url in shard], URLS)
        for number, shard in enumerate(shards)
    ]
    return step.commit(Outcome(outputs=tuple(records)))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=3000)
    parser.add_argument("--kilobytes", type=int, default=20, help="of one page")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    receiver, sender = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(given.kilobytes * 1000, sender), daemon=True)
    server.start()
    address = f"127.0.0.1:{receiver.recv()}"
    urls = [f"http://h{number % HOSTS}.test/articles/{number}" for number in range(given.pages)]
    direct = [f"http://{address}/articles/{number}" for number in range(given.pages)]
    settings = DownloadSettings(delay=0, concurrency=AT_ONCE, allow_private=("127.0.0.0/8",))

    cpu = [0.0, 0.0]  # seconds of ours and of the server, for the last round of ours

    def ours() -> None:
        began, served = time.process_time(), sum(psutil.Process(server.pid).cpu_times()[:2])
        with tempfile.TemporaryDirectory() as folder, Runner(1) as runner:
            root = Folder(folder)
            manifest = download(root, url_shards(root, urls, 1000), settings, runner, {"*.test": address})
            assert manifest.outcome.kept == len(urls)
        cpu[:] = [time.process_time() - began, sum(psutil.Process(server.pid).cpu_times()[:2]) - served]

    def bare_aiohttp() -> None:
        async def run() -> None:
            turns = asyncio.Semaphore(AT_ONCE)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:

                async def one(url: str) -> None:
                    async with turns, session.get(url) as response:
                        await response.read()

                await asyncio.gather(*(one(url) for url in direct))

        asyncio.run(run())

    def bare_urllib3() -> None:
        pool = urllib3.PoolManager(maxsize=AT_ONCE)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
            assert all(response.data for response in threads.map(lambda url: pool.request("GET", url), direct))

    print(machine())
    compare(
        f"download, {given.kilobytes} kB a page, {HOSTS} hosts, one request a host at a time",
        "pages",
        given.pages,
        {
            "gpt2train, the whole step": ours,
            "aiohttp, fetch and forget": bare_aiohttp,
            "urllib3, 64 threads, the same": bare_urllib3,
        },
        given.rounds,
    )
    print(
        f"  CPU milliseconds a page: ours {1000 * cpu[0] / given.pages:.2f}, server {1000 * cpu[1] / given.pages:.2f}"
    )
    server.terminate()


if __name__ == "__main__":
    main()
