"""Real texts and pages of the test data (`GPT2TRAIN_TEST_DATA`), as lists, for the benchmarks."""

import gzip
import json
import os
import random
import tarfile
from itertools import islice
from pathlib import Path

import lxml.html

from tasks.download.warc import Page
from tasks.extract.page import extract_pages
from tasks.extract.settings import ExtractOptions

DATA = Path(os.environ.get("GPT2TRAIN_TEST_DATA", "../shared/data")).resolve()


def texts(name: str, count: int | None = None) -> list[str]:
    """The first texts of a `.jsonl.gz` file below the data folder, as `text/imdb_dev`."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in islice(file, count)]


def pages(count: int, seed: int = 0) -> list[str]:
    """Everything that stands in some documentation pages, menus too, a block a line: harder than an extracted text."""
    kept = []
    for raw in _bodies(count, seed):
        tree = lxml.html.fromstring(raw)
        for element in list(tree.iter("script", "style")):
            element.drop_tree()
        kept.append("\n".join(stripped for part in tree.itertext() if (stripped := str(part).strip())))
    return kept


def extracted(count: int, seed: int = 0) -> list[str]:
    """Main texts of the same pages, as the extraction leaves them to cleaning."""
    found = [Page(str(n), str(n), "text/html", None, raw, "", "", "") for n, raw in enumerate(_bodies(count, seed))]
    return [result.text for result in extract_pages(found, ExtractOptions()) if result.text]


def _bodies(count: int, seed: int) -> list[bytes]:
    with tarfile.open(DATA / "html_docs" / "html_docs_dev.tar.xz") as archive:
        found = [archive.extractfile(member).read() for member in archive if member.name.endswith((".html", ".htm"))]  # type: ignore[union-attr]
    random.Random(seed).shuffle(found)
    return found[:count]
