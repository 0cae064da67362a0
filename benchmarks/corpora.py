"""Real texts and pages of the test data (`GPT2TRAIN_TEST_DATA`), as lists, for the benchmarks."""

import gzip
import json
import os
import random
import tarfile
from itertools import islice
from pathlib import Path

import lxml.html

DATA = Path(os.environ.get("GPT2TRAIN_TEST_DATA", "../shared/data")).resolve()


def texts(name: str, count: int | None = None) -> list[str]:
    """The first texts of a `.jsonl.gz` file below the data folder, as `text/imdb_dev`."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in islice(file, count)]


def pages(count: int, seed: int = 0) -> list[str]:
    """Everything that stands in some documentation pages, menus too, a block a line: harder than an extracted text."""
    with tarfile.open(DATA / "html_docs" / "html_docs_dev.tar.xz") as archive:
        found = [archive.extractfile(member).read() for member in archive if member.name.endswith((".html", ".htm"))]  # type: ignore[union-attr]
    random.Random(seed).shuffle(found)
    kept = []
    for raw in found[:count]:
        tree = lxml.html.fromstring(raw)
        for element in list(tree.iter("script", "style")):
            element.drop_tree()
        kept.append("\n".join(stripped for part in tree.itertext() if (stripped := str(part).strip())))
    return kept
