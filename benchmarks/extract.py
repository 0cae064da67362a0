"""Extraction by the engine `trafilatura`, against the library called page by page, at the same kept set.

    python -m benchmarks.extract [--share 1] [--rounds 3]

Needs the test data: the gold pages and the documentation pages, of which a seeded share is taken. First each page once
by both: the texts, what cleaning keeps of them, what the early look drops, and how well the gold texts fit. Then in
turn, each side with empty caches at the start, as in a fresh worker. One process, one core.
"""

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import trafilatura
from trafilatura.meta import reset_caches

from benchmarks.gold_pages import documentation_pages, fit, gold_pages
from benchmarks.pairs import compare, machine
from gpt2train.data.tokenizer import build_tokenizer, read_tables
from tasks.clean.repair import repair
from tasks.clean.settings import CleanSettings
from tasks.clean.step import check_text
from tasks.core.document import strip_unstorable
from tasks.core.worker_pool import WorkerPool
from tasks.download.warc import Page
from tasks.extract.decode import decode
from tasks.extract.page import extract_pages
from tasks.extract.prefilter import prefilter_reason
from tasks.extract.settings import Compare, ExtractOptions, ExtractResult, ExtractSettings, PrefilterRules
from tasks.extract.step import GROUP_PAGES, extract_group, extracted
from tasks.extract.trafilatura_patches import clear_caches

DATA = Path(os.environ.get("GPT2TRAIN_TEST_DATA", "../shared/data")).resolve()
OPTIONS = ExtractOptions(engine="trafilatura")
CLEAN = CleanSettings()
WANTED = PrefilterRules(
    min_tokens=CLEAN.min_tokens, languages=CLEAN.language.keep, share=ExtractSettings().prefilter_min_prob
)


def as_page(url: str, body: bytes) -> Page:
    """A page as the download leaves it, without a charset from the server."""
    return Page(url, url, "text/html", None, body, "2026-01-01T00:00:00Z", "", "benchmark")


def theirs(pages: Sequence[Page], *, fast: bool = False, fresh: bool = True) -> list[str]:
    """trafilatura, page by page, on text that is decoded as ours is."""
    if fresh:
        reset_caches()
    return [
        strip_unstorable(
            trafilatura.extract(decode(page.body)[0], include_comments=False, include_tables=True, fast=fast) or ""
        ).strip()
        for page in pages
    ]


def ours(pages: Sequence[Page], options: ExtractOptions) -> list[ExtractResult]:
    """Ours, in this process."""
    reset_caches()
    clear_caches()
    return extract_pages(pages, options)


def in_groups(pages: Sequence[Page], compared: Compare = "doubtful") -> list[ExtractResult]:
    """Ours as the step does it: with the early look and the limits, group by group."""
    reset_caches()
    clear_caches()
    options = ExtractOptions(engine="trafilatura", fallbacks=compared, wanted=WANTED)
    return [
        one
        for start in range(0, len(pages), GROUP_PAGES)
        for one in extract_pages(pages[start : start + GROUP_PAGES], options)
    ]


def in_turn(pages: Sequence[Page]) -> tuple[list[str], float, float]:
    """Each page once by both, group by group; trafilatura's texts, and the seconds of processor time of each side.

    Processor time, because a machine that others use gives each side its own share of the wall clock.
    """
    reset_caches()
    clear_caches()
    options = ExtractOptions(engine="trafilatura", wanted=WANTED)
    texts: list[str] = []
    seconds = [0.0, 0.0]
    for start in range(0, len(pages), GROUP_PAGES):
        group = pages[start : start + GROUP_PAGES]
        for side in (0, 1) if start // GROUP_PAGES % 2 else (1, 0):  # who comes second finds trafilatura's caches warm
            began = time.process_time()
            if side:
                texts += theirs(group, fresh=False)
            else:
                extract_pages(group, options)
            seconds[side] += time.process_time() - began
    return texts, seconds[0], seconds[1]


def kept_by_cleaning(texts: Sequence[str]) -> set[int]:
    """The numbers of the texts that cleaning keeps."""
    tokenizer = build_tokenizer(*read_tables(DATA / "bpe"))
    repaired = [repair(text, straight_quotes=CLEAN.straight_quotes) for text in texts]
    encoded = tokenizer.encode_batch_fast(repaired, add_special_tokens=False)
    checked = zip(repaired, encoded, strict=True)
    return {number for number, (text, one) in enumerate(checked) if check_text(text, len(one.ids), CLEAN)[1] is None}


def echo(pages: Sequence[Page], _recipe: ExtractOptions) -> list[ExtractResult]:
    """What a worker would do that has nothing to do."""
    return [ExtractResult(text="x" * 4000) for _ in pages]


class EchoPool(WorkerPool):
    """A pool whose workers have nothing to do."""

    def submit(
        self, function: Any, *args: Any, timeout: float | None = None, cpu_seconds: float | None = None
    ) -> "Future[Any]":
        """Send the same arguments, and call `echo` instead of the extraction."""
        called = echo if function is extract_group else function
        return super().submit(called, *args, timeout=timeout, cpu_seconds=cpu_seconds)


def messages(pages: Sequence[Page]) -> float:
    """Seconds of processor time a page, of both processes, that the way to a worker and back takes."""
    pool = EchoPool(1)
    try:
        list(extracted(pool, pages[:100], OPTIONS))
        began = time.process_time() + pool.call(time.process_time)
        list(extracted(pool, pages, OPTIONS))
        return (time.process_time() + pool.call(time.process_time) - began) / len(pages)
    finally:
        pool.close()


def main() -> None:
    """Print sets, F and rates."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--share", type=int, default=1, help="one page in so many is taken")
    arguments.add_argument("--rounds", type=int, default=3, help="of all pages by each in turn; 0 leaves them out")
    given = arguments.parse_args()
    print(machine())
    found = list(gold_pages(DATA))
    gold = random.Random(1).sample(found, len(found) // given.share)
    docs = [as_page(f"http://docs.example/{name}", body) for name, body in documentation_pages(DATA)]
    pages = [as_page(f"{page.url}#{page.name}", page.body) for page in gold]
    pages += random.Random(1).sample(docs, len(docs) // given.share)
    print(f"{len(gold):,} of {len(found):,} gold pages, {len(pages) - len(gold):,} of {len(docs):,} others", flush=True)

    random.Random(1).shuffle(pages)
    plain, ours_took, theirs_took = in_turn(pages)
    print(
        f"processor time, each page once: ours {len(pages) / ours_took:,.1f} pages/s, trafilatura "
        f"{len(pages) / theirs_took:,.1f} pages/s, ours = {theirs_took / ours_took:.2f}x",
        flush=True,
    )
    way = messages(pages)
    print(
        f"the way to a worker and back: {way * 1e6:,.0f} µs a page, {way * len(pages) / ours_took:.2%} of it",
        flush=True,
    )
    mine = ours(pages, OPTIONS)
    flags = Counter(one.reason for one in mine if one.reason not in (None, "no_text"))
    for compared, extracts in (
        ("doubtful", mine),
        ("always", ours(pages, ExtractOptions(engine="trafilatura", fallbacks="always"))),
    ):
        same = sum(a == b.text for a, b in zip(plain, extracts, strict=True))
        print(f"same text as trafilatura, compare = {compared}: {same:,} of {len(pages):,} pages")
    print(f"flags on real content: {dict(flags)}")
    for name, texts in (("trafilatura", plain), ("ours", [one.text for one in mine])):
        by_url = dict(zip((page.url for page in pages), texts, strict=True))
        fitted = fit(gold, [by_url[f"{page.url}#{page.name}"] for page in gold])
        scores = {corpus: round(value, 4) for corpus, value in fitted.items()}
        print(f"  F1 {name:<12}", scores)

    kept, ours_kept = (kept_by_cleaning(texts) for texts in (plain, [one.text for one in mine]))
    print(
        f"cleaning keeps {len(kept):,} texts of trafilatura, {len(ours_kept):,} of ours, {len(kept & ours_kept):,} both"
    )
    early = {i: prefilter_reason(decode(page.body)[0], WANTED) for i, page in enumerate(pages)}
    dropped = {i for i, reason in early.items() if reason}
    print(f"the early look drops {len(dropped):,} of the {len(pages) - len(kept):,} others")
    print(f"  {dict(Counter(reason[0] for reason in early.values() if reason))}")
    print(
        f"  falsely dropped: {len(kept & dropped)} of {len(kept):,} ({len(kept & dropped) / len(kept):.3%})", flush=True
    )

    if not given.rounds:
        return
    compare(
        "extraction, one core, the same kept set",
        "pages",
        len(pages),
        {
            "ours": lambda: in_groups(pages),
            "ours, early = false": lambda: ours(pages, OPTIONS),
            "ours, compare = always": lambda: in_groups(pages, "always"),
            "trafilatura": lambda: theirs(pages),
            "trafilatura, fast": lambda: theirs(pages, fast=True),
        },
        rounds=given.rounds,
        clock=time.process_time,
    )


if __name__ == "__main__":
    main()
