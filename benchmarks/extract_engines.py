"""Engines of the extraction: how well their texts fit, and pages per second of one core.

    python -m benchmarks.extract_engines

Needs the test data. The gold sets are those of benchmarks/gold_pages.py; the rules of `structure` were chosen on three
quarters of them, so that the table has the last quarter too. The texts of documentation are those of
benchmarks/reference_pages.py. Processor time, each engine with empty caches at the start; resiliparse where installed.
"""

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.extract import as_page, ours, theirs
from benchmarks.gold_pages import GoldPage, fit, gold_pages
from benchmarks.pairs import machine
from benchmarks.reference_pages import fit_by_family, reference_pages
from tasks.download.warc import Page
from tasks.extract.decode import decode
from tasks.extract.settings import Engine, ExtractOptions

DATA = Path(os.environ.get("GPT2TRAIN_TEST_DATA", "../shared/data")).resolve()


def texts_of(engine: Engine, pages: Sequence[Page]) -> list[str]:
    """Texts by one of our engines."""
    return [found.text for found in ours(pages, ExtractOptions(engine=engine))]


def resiliparse(pages: Sequence[Page]) -> list[str]:
    """Texts by resiliparse, with its rules for the main content."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    return [extract_plain_text(HTMLTree.parse(decode(page.body)[0]), main_content=True) for page in pages]


def is_held_out(page: GoldPage) -> bool:
    """Return True for the quarter of the pages on which no rule was chosen."""
    return int(hashlib.sha256(page.name.encode()).hexdigest()[:8], 16) % 4 == 3


def main() -> None:
    """Print a table of the engines."""
    print(machine())
    gold, reference = list(gold_pages(DATA)), reference_pages(DATA)
    held_out = [number for number, page in enumerate(gold) if is_held_out(page)]
    pages = [as_page(page.url, page.body) for page in gold]
    documentation = [as_page("http://docs.example/", page.body) for page in reference]
    engines: dict[str, Callable[[Sequence[Page]], list[str]]] = {
        "structure": partial(texts_of, "structure"),
        "trafilatura, ours": partial(texts_of, "trafilatura"),
        "trafilatura": theirs,
        "resiliparse": resiliparse,
    }
    for name, extract in engines.items():
        try:
            extract(pages[:1])
        except ImportError:
            print(f"{name}: not installed")
            continue
        rates, texts = [], {}
        for kind, some in (("gold", pages), ("documentation", documentation)):
            began = time.process_time()
            texts[kind] = extract(some)
            rates.append(f"{len(some) / (time.process_time() - began):,.0f} pages/s of {kind}")
        print(f"{name}: {', '.join(rates)}")
        print("  F1, all      ", {key: round(value, 4) for key, value in fit(gold, texts["gold"]).items()})
        rest = fit([gold[number] for number in held_out], [texts["gold"][number] for number in held_out])
        print("  F1, held out ", {key: round(value, 4) for key, value in rest.items()})
        by_family = fit_by_family(reference, texts["documentation"])
        lowest = min(by_family, key=by_family.__getitem__)
        mean = statistics.mean(by_family.values())
        print(f"  F1 of {len(reference)} documentation pages {mean:.4f}, lowest {lowest} {by_family[lowest]:.4f}")


if __name__ == "__main__":
    main()
