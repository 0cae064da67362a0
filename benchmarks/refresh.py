"""Work of a refresh with 1 % changed pages against that of the first run, over documentation pages on this machine.

    python -m benchmarks.refresh [--pages 2000] [--changed 0.01] [--copies 1] [--workers 1]

A server in a process of its own answers conditional requests as common servers do (ETag). Four runs of
`flows.dataprep` in one output folder: the first; a run with nothing to do, whose CPU time (interpreter, imports,
Prefect) is subtracted from the others; a refresh in which a share of the pages has changed; and a refresh with
`download.skip_fresh` in which these pages are again as they were. The server declares the other pages fresh, which is
the best case of that setting. A last figure is what no refresh can save that writes these files: the CPU time to read
all tables of documents and write them as they are. All outputs but the pages and their times must be equal byte for
byte: those of the first refresh to a first run over the same pages in another folder, those of the second to the
first run. Needs the test data (documentation pages, GPT-2's tokenizer).
"""

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from aiohttp import web

from benchmarks.datapath import DATA, pages
from benchmarks.pairs import machine
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import need_manifest
from tasks.core.shards import read_table, write_table
from tasks.core.timings import TIMINGS

HOSTS = 64
TABLES = ("documents", "clean", "decontaminated", "dedup", "shuffled")
TIMES = ("pages/", "timings.jsonl", "data-report/", "_manifest.json", ".flow-run", "openlineage.jsonl", "spdx.json")
NOT_COMPARED = (*TIMES, "_rows/")
CHANGE = b"<p>This paragraph was added to the page after the first crawl had read it.</p></body>"


def serve(count: int, copies: int, changed: float, connection: Connection) -> None:
    """Serve the pages; `connection` receives True when the share of changed pages shall change."""
    found = [body for url, body in pages() if "html-docs" in url][:count]
    total = count * copies
    draw = random.Random(2)
    changing = set(draw.sample(range(total), round(changed * total)))
    generation = [0]

    def body_of(number: int) -> bytes:
        body = found[number % len(found)]
        if number >= len(found):  # another text, which is no duplicate
            words = " ".join(str(word) for word in random.Random(number).sample(range(10**6), 400))
            body = body.replace(b"</body>", f"<p>{words}</p></body>".encode())
        return body.replace(b"</body>", CHANGE) if generation[0] % 2 and number in changing else body

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        if not name.isdecimal():
            return web.Response(status=404)
        number = int(name)
        body = body_of(number)
        fields = {"Cache-Control": "max-age=0" if number in changing else "max-age=86400"}
        tag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag, **fields})
        return web.Response(body=body, content_type="text/html", headers={"ETag": tag, **fields})

    async def run() -> None:
        runner = web.ServerRunner(web.Server(answer), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        connection.send(runner.addresses[0][1])
        while True:
            await asyncio.to_thread(connection.recv)
            generation[0] += 1
            connection.send(True)

    asyncio.run(run())


def cpu() -> float:
    """CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder: Path, config: Path, *more: str) -> tuple[float, dict[str, float]]:
    """Run the flow; return its CPU seconds, and those of each step that ran."""
    timings = folder / TIMINGS
    before = len(timings.read_text().splitlines()) if timings.exists() else 0
    began = cpu()
    command = [sys.executable, "-m", "flows.dataprep", "--config", str(config), "--output", str(folder), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    rows = [json.loads(line) for line in timings.read_text().splitlines()[before:]]
    return cpu() - began, {row["step"]: row["cpu_seconds"] for row in rows}


def tree(folder: Path) -> dict[str, str]:
    """Hash of each compared file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path for path in files}
    compared = {name: path for name, path in names.items() if not any(part in name for part in NOT_COMPARED)}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in compared.items()}


def rewriting(folder: Folder) -> float:
    """CPU seconds to read every table of documents and write it again, unchanged."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        for step in TABLES:
            for record in need_manifest(folder / step).outputs:
                write_table(Folder(Path(scratch)), record.name, read_table(folder / step, record.name))
    return time.process_time() - began


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--copies", type=int, default=1, help="of each page, with other words added")
    parser.add_argument("--changed", type=float, default=0.01, help="share of the pages")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder of the outputs; default: a temporary one")
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(given.pages, given.copies, given.changed, theirs), daemon=True)
    server.start()
    address = f"127.0.0.1:{ours.recv()}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        total = given.pages * given.copies
        urls = "".join(f"http://h{number % HOSTS}.test/docs/{number}\n" for number in range(total))
        (folder / "urls.txt").write_text(urls)
        config = folder / "run.toml"
        config.write_text(
            f'urls = ["{folder}/urls.txt"]\nworkers = {given.workers}\nconnect_to = {{"*.test" = "{address}"}}\n'
            '[download]\ndelay = 0\nallow_private = ["127.0.0.0/8"]\n'
            f'[tokenizer]\nname = "gpt2"\nfolder = "{DATA}/bpe"\n'
        )
        print(machine())
        os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"
        first, first_steps = run(folder / "out", config)
        before = tree(folder / "out")
        fixed, _ = run(folder / "out", config)

        def refreshed(*more: str) -> tuple[float, dict[str, float]]:
            ours.send(True)
            ours.recv()
            return run(folder / "out", config, "--refresh", *more)

        refreshes = [refreshed()]
        trees = [tree(folder / "out")]
        refreshes.append(refreshed("--download.skip-fresh"))
        trees.append(tree(folder / "out"))
        ours.send(True)
        ours.recv()
        run(folder / "fresh", config)
        fresh = tree(folder / "fresh")
        print(f"{total} pages, {round(given.changed * total)} changed; CPU seconds, {fixed:.1f} of a run without work")
        print(f"  {'step':<16}{'first':>8}{'refresh':>9}{'share':>8}{'skip_fresh':>12}{'share':>8}")
        for step, seconds in first_steps.items():
            again = [steps.get(step, 0.0) for _, steps in refreshes]
            shares = [one / seconds if seconds else 0 for one in again]
            print(f"  {step:<16}{seconds:8.2f}{again[0]:9.2f}{shares[0]:8.1%}{again[1]:12.2f}{shares[1]:8.1%}")
        again = [seconds - fixed for seconds, _ in refreshes]
        shares = [one / (first - fixed) for one in again]
        print(f"  {'all':<16}{first - fixed:8.2f}{again[0]:9.2f}{shares[0]:8.1%}{again[1]:12.2f}{shares[1]:8.1%}")
        floor = rewriting(Folder(folder / "out"))
        print(f"to read and write the tables of documents as they are: {floor:.2f}, {floor / (first - fixed):.1%}")
        differing = []
        for name, one, other in (("refresh", trees[0], fresh), ("skip_fresh", trees[1], before)):
            differing += [f"{name}: {file}" for file in sorted({*one, *other}) if one.get(file) != other.get(file)]
        print(f"{len(fresh) + len(before)} files compared with first runs over the same pages: {len(differing)} differ")
        for name in differing[:20]:
            print(f"  {name}")
    server.terminate()
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
