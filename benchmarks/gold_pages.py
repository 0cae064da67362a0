"""Real pages: documentation, and pages whose main text is known; and how well an extracted text fits."""

import json
import re
import statistics
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

WORD = re.compile(r"\w+")
SHINGLE = 4  # words, as in the article-extraction benchmark


class GoldPage(NamedTuple):
    """A page, and what is known of it: its `text`, or pieces that are in it (`with`) and are not (`without`)."""

    corpus: str
    name: str
    url: str
    body: bytes
    truth: dict[str, Any]


def gold_pages(data: Path, every: int = 1) -> Iterator[GoldPage]:
    """Each `every`-th page of the gold sets, in the order of their lists."""
    for archive in sorted((data / "html_gold").glob("*.tar.xz")):
        corpus = archive.name.removesuffix(".tar.xz")
        with tarfile.open(archive) as tar:
            files = {member.name.rpartition("/")[2]: _read(tar, member) for member in tar if member.isfile()}
        rows = [json.loads(line) for line in files["gold.jsonl"].decode().splitlines()]
        for row in rows[::every]:
            yield GoldPage(corpus, row["file"], row.get("url") or "http://gold.example/", files[row["file"]], row)


def documentation_pages(data: Path, limit: int | None = None) -> Iterator[tuple[str, bytes]]:
    """(name, body) of documentation pages in 20 languages, in the archive's order."""
    with tarfile.open(data / "html_docs" / "html_docs_dev.tar.xz") as tar:
        found = 0
        for member in tar:
            if member.isfile():
                yield member.name, _read(tar, member)
                found += 1
                if found == limit:
                    return


def fit(pages: list[GoldPage], texts: list[str]) -> dict[str, float]:
    """F1 of extracted texts, for each gold set and for `all`.

    Where the text is known: of its multiset of 4-word shingles, the mean over pages. Where pieces are known: of finding
    the wanted pieces and no others, over all pages. Formulas of MediaWiki, which no gold text has, do not count.
    """
    texts = [_without_formulas(text) for text in texts]
    scores: dict[str, list[float]] = {}
    pieces: Counter[str] = Counter()
    for page, text in zip(pages, texts, strict=True):
        if page.truth.get("text"):
            scores.setdefault(page.corpus, []).append(shingle_f1(page.truth["text"], text))
        if not page.truth.get("with"):
            continue
        found = sum(piece in text for piece in page.truth["with"])
        wrong = sum(piece in text for piece in page.truth["without"])
        pieces.update(found=found, wrong=wrong, missed=len(page.truth["with"]) - found)
    means = {corpus: statistics.mean(found) for corpus, found in scores.items()}
    if pieces:
        means["trafilatura_eval"] = 2 * pieces["found"] / (2 * pieces["found"] + pieces["wrong"] + pieces["missed"])
    return {**means, "all": statistics.mean(means.values())}


def _without_formulas(text: str) -> str:
    """Text without its formulas that begin with a style, as MediaWiki writes them, in spaces of its own."""
    kept, at = [], 0
    while (start := text.find("{\\displaystyle", at)) >= 0:
        depth, end = 1, start + 1
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        kept.append(text[at:start])
        at = end
        if text.startswith(" ", at) and kept[-1].endswith(" "):
            at += 1
    return "".join([*kept, text[at:]])


def shingle_f1(truth: str, text: str, size: int = SHINGLE) -> float:
    """F1 of two texts as multisets of shingles of `size` words."""
    expected, found = _shingles(truth, size), _shingles(text, size)
    both = sum((expected & found).values())
    total = sum(expected.values()) + sum(found.values())
    return 2 * both / total if total else 1.0


def _shingles(text: str, size: int) -> Counter[tuple[str, ...]]:
    words = WORD.findall(text)
    return Counter(tuple(words[i : i + size]) for i in range(max(1, len(words) - size + 1)))


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()
