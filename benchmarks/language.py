"""English or not: the fast detector (with langdetect where it is unsure) against langdetect on the whole text.

`python -m benchmarks.language [--count N] [--shown N]`

Texts: all passages of the declaration of human rights (many languages), reviews, news, speeches, pieces of novels, the
main texts of documentation pages as cleaning reads them, and all that stands in these pages, menus too. Speed is that
of all texts long enough to pass the length test (500 characters), in three groups.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable

from benchmarks.corpora import extracted, pages, texts
from benchmarks.pairs import compare, machine
from tasks.clean.language import LanguageSettings, decide, detect_with_langdetect, ranking, sample_text
from tasks.clean.language_share import detect, detect_by_pieces

FAST = LanguageSettings()
WHOLE = LanguageSettings(detector="langdetect", sample=10_000)  # langdetect itself reads no more
LONG = 500
PAGES = frozenset({"extracted", "pages"})


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="reviews, news and pages of each")
    parser.add_argument("--shown", type=int, default=0, help="disagreements to print (corpus, both answers, beginning)")
    given = parser.parse_args()
    corpora = {
        "passages": texts("lang/udhr_lang_dev"),
        "reviews": texts("text/imdb_dev", given.count),
        "news": texts("text/reuters_dev", given.count),
        "speeches": texts("text/speeches_dev"),
        "novels": [
            text[start : start + 4000] for text in texts("text/novels_dev") for start in range(0, len(text), 80_000)
        ],
        "extracted": extracted(given.count),
        "pages": pages(given.count),
    }
    print(machine())
    agreement(corpora, given.shown)
    for title, chosen in (
        ("passages and English texts", [text for name in corpora if name not in PAGES for text in corpora[name]]),
        ("extracted pages", corpora["extracted"]),
        ("whole pages", corpora["pages"]),
    ):
        long = [text for text in chosen if len(text) >= LONG]
        calls: dict[str, Callable[[], object]] = {
            "ours": lambda long=long: [detect(text, FAST) for text in long],  # type: ignore[misc]
            "langdetect, whole text": lambda long=long: [detect_with_langdetect(text, WHOLE) for text in long],  # type: ignore[misc]
        }
        compare(f"Language of a text, {title}", "texts", len(long), calls, rounds=3, clock=time.process_time)


def agreement(corpora: dict[str, list[str]], shown: int) -> None:
    """Print how often both say English or both do not, and how often langdetect was asked."""
    total: Counter[str] = Counter()
    for name, corpus in corpora.items():
        counts: Counter[str] = Counter()
        for text in corpus:
            sure = detect_by_pieces(text, FAST) or decide(ranking(sample_text(text, FAST)), FAST, final=True)
            ours, theirs = detect(text, FAST).language, detect_with_langdetect(text, WHOLE)
            for size in ("all", "long") if len(text) >= LONG else ("all",):
                counts[f"{size}"] += 1
                counts[f"{size} asked"] += sure is None
                counts[f"{size} equal"] += (ours == "en") == (theirs == "en")
            if (ours == "en") != (theirs == "en") and shown > 0:
                shown -= 1
                print(f"  {name}: {sure}, langdetect {theirs}: {text[:100]!r}")
        _print(name, counts)
        if name not in PAGES:
            total += counts
    _print("all but pages", total)


def _print(name: str, counts: Counter[str]) -> None:
    for size in ("all", "long"):
        n = counts[size]
        print(
            f"{name:<14} {size:<5} {n:>6,} texts: {counts[f'{size} equal'] / n:8.3%} agree, "
            f"{counts[f'{size} asked'] / n:6.2%} put to langdetect"
        )


if __name__ == "__main__":
    main()
