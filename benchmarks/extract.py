"""Engines of the extraction: how well their texts fit, and pages per second of one core.

    python -m benchmarks.extract
    python -m benchmarks.extract --web web-content-extraction-benchmark

Needs the test data. The gold sets are those of benchmarks/gold_pages.py, scored whole and by random quarters: a rule of
`structure` must raise F1 on three of them. The texts of documentation are those of benchmarks/reference_pages.py, those
of forums are in tests/tasks/extract/forum_pages. Processor time; the engines take turns group by group; resiliparse
where installed.

With `--web`: the 2,008 pages of 1,613 domains in a clone of github.com/Murrough-Foley/web-content-extraction-benchmark,
of which only those in `dev` were looked at. F1 is that benchmark's own, of the multiset of words.
"""

import argparse
import gc
import gzip
import hashlib
import importlib.util
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.gold_pages import GoldPage, fit, gold_pages, shingle_f1
from benchmarks.pairs import machine
from benchmarks.reference_pages import fit_by_family, reference_pages
from tasks.download.warc import Page
from tasks.extract.decode import decode
from tasks.extract.page import extract_pages
from tasks.extract.settings import Engine, ExtractOptions
from tasks.extract.step import GROUP_PAGES

DATA = Path(os.environ.get("GPT2TRAIN_TEST_DATA", "../shared/data")).resolve()
FORUM_PAGES = Path(__file__).parent.parent / "tests" / "tasks" / "extract" / "forum_pages"
QUARTERS = 4


def as_page(url: str, body: bytes) -> Page:
    """Page as the download leaves it, without a charset from the server."""
    return Page(url, url, "text/html", None, body, "2026-01-01T00:00:00Z", "", "benchmark")


def texts_of(engine: Engine, pages: Sequence[Page]) -> list[str]:
    """Texts by one of the engines of the step."""
    return [found.text for found in extract_pages(pages, ExtractOptions(engine=engine))]


def resiliparse(pages: Sequence[Page]) -> list[str]:
    """Texts by resiliparse, with its rules for the main content."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    return [extract_plain_text(HTMLTree.parse(decode(page.body)[0]), main_content=True) for page in pages]


def quarter(page: GoldPage) -> int:
    """Number of the quarter of the gold pages that a page belongs to, by the hash of its name."""
    return int(hashlib.sha256(page.name.encode()).hexdigest()[:8], 16) % QUARTERS


def in_turn(
    engines: Mapping[str, Callable[[Sequence[Page]], list[str]]], pages: Sequence[Page]
) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Texts and seconds of processor time of each engine, which take turns: others use the machine too."""
    texts: dict[str, list[str]] = {name: [] for name in engines}
    seconds = dict.fromkeys(engines, 0.0)
    for start in range(0, len(pages), GROUP_PAGES):
        group = pages[start : start + GROUP_PAGES]
        for name in sorted(engines, reverse=start // GROUP_PAGES % 2 == 1):
            began = time.process_time()
            texts[name] += engines[name](group)
            seconds[name] += time.process_time() - began
    return texts, seconds


def forum_pages() -> list[tuple[Page, str]]:
    """Pages of forums and mailing lists with their texts."""
    return [
        (as_page("http://forum.example/", path.read_bytes()), path.with_suffix(".txt").read_text())
        for path in sorted(FORUM_PAGES.glob("*.html"))
    ]


def web_pages(folder: Path) -> None:
    """Print the F1 of the words of both engines on the pages of the web content extraction benchmark, by type."""
    for split in ("dev", "test"):
        kinds, pages, truths = [], [], []
        for path in sorted((folder / split / "ground-truth").glob("*.json")):
            row = json.loads(path.read_bytes())
            kinds.append(row["_internal"]["page_type"]["primary"].replace("category", "collection"))
            truths.append(row["ground_truth"].get("main_content") or "")
            body = gzip.decompress((folder / split / "html" / f"{path.stem}.html.gz").read_bytes())
            pages.append(as_page(row.get("url") or "http://page.example/", body))
        engines: tuple[Engine, ...] = ("structure", "trafilatura")
        for engine in engines:
            scores = defaultdict(list)
            for kind, truth, text in zip(kinds, truths, texts_of(engine, pages), strict=True):
                score = shingle_f1(truth.lower(), text.lower(), size=1) if truth and text else float(truth == text)
                scores[kind].append(score)
            means = {kind: f"{statistics.mean(found):.3f}" for kind, found in sorted(scores.items())}
            everything = [score for found in scores.values() for score in found]
            print(f"{split}, {len(pages):,} pages, {engine}: F1 {statistics.mean(everything):.4f}", means)


def main() -> None:
    """Print a table of the engines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--web", type=Path, metavar="FOLDER", help="clone of the web content extraction benchmark")
    print(machine())
    if folder := parser.parse_args().web:
        web_pages(folder)
        return
    gold, reference, forums = list(gold_pages(DATA)), reference_pages(DATA), forum_pages()
    engines: dict[str, Callable[[Sequence[Page]], list[str]]] = {
        "structure": partial(texts_of, "structure"),
        "trafilatura": partial(texts_of, "trafilatura"),
        "resiliparse": resiliparse,
    }
    if importlib.util.find_spec("resiliparse") is None:
        del engines["resiliparse"]
        print("resiliparse: not installed")
    sets = {
        "gold": [as_page(page.url, page.body) for page in gold],
        "documentation": [as_page("http://docs.example/", page.body) for page in reference],
        "forums": [page for page, _ in forums],
    }
    gc.freeze()  # as workers do: no collection looks at the pages again
    found = {kind: in_turn(engines, pages) for kind, pages in sets.items()}
    for name in engines:
        texts = {kind: found[kind][0][name] for kind in sets}
        rates = [
            f"{len(sets[kind]) / found[kind][1][name]:,.0f} pages/s of {kind}" for kind in ("gold", "documentation")
        ]
        print(f"{name}: {', '.join(rates)}")
        print("  F1, all      ", {key: round(value, 4) for key, value in fit(gold, texts["gold"]).items()})
        for number in range(QUARTERS):
            chosen = [at for at, page in enumerate(gold) if quarter(page) == number]
            rest = fit([gold[at] for at in chosen], [texts["gold"][at] for at in chosen])
            print(f"  F1, quarter {number}", {key: round(value, 4) for key, value in rest.items()})
        by_family = fit_by_family(reference, texts["documentation"])
        lowest = min(by_family, key=by_family.__getitem__)
        mean = statistics.mean(by_family.values())
        print(f"  F1 of {len(reference)} documentation pages {mean:.4f}, lowest {lowest} {by_family[lowest]:.4f}")
        scores = [shingle_f1(truth, text) for (_, truth), text in zip(forums, texts["forums"], strict=True)]
        print(f"  F1 of {len(forums)} forum pages {statistics.mean(scores):.4f}, lowest {min(scores):.4f}")


if __name__ == "__main__":
    main()
