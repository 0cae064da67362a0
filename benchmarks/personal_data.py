"""Masks for personal data and secrets: precision and recall on labelled sentences, hits and time on real texts.

`python -m benchmarks.personal_data [--count N] [--shown N]`

The labelled sentences are those of `benchmarks/labelled_identifiers.py`. The real texts (documentation pages, reviews,
news, speeches) have no labels: each hit is printed with `--shown`, to be judged by eye.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable

from benchmarks.corpora import pages, texts
from benchmarks.labelled_identifiers import SENTENCES
from benchmarks.pairs import machine
from tasks.clean.filters.identifiers import Span, credit_cards, ibans, phone_numbers
from tasks.clean.filters.pii import IPV6, is_public_ipv6
from tasks.clean.filters.secrets import secrets

FINDERS: dict[str, Callable[[str], Iterable[Span]]] = {
    "phone number": lambda text: phone_numbers(text, ("US",)),
    "IBAN": ibans,
    "credit card": credit_cards,
    "secret": secrets,
    "IPv6 address": lambda text: (hit.span() for hit in IPV6.finditer(text) if is_public_ipv6(hit[0])),
}


def agreement(kind: str) -> tuple[int, int, int]:
    """Labelled values of a kind, those of them that are found with their exact ends, and finds that are none."""
    labelled = found = wrong = 0
    for sentence in SENTENCES:
        expected = {(start, end) for start, end, labelled_kind in sentence.spans if labelled_kind == kind}
        spans = set(FINDERS[kind](sentence.text))
        labelled += len(expected)
        found += len(spans & expected)
        wrong += len(spans - expected)
    return labelled, found, wrong


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="pages, reviews and news of each")
    parser.add_argument("--shown", type=int, default=0, help="hits of each kind to print, with 30 characters before")
    given = parser.parse_args()
    real = pages(given.count) + texts("text/imdb_dev", given.count) + texts("text/reuters_dev", given.count)
    real += texts("text/speeches_dev")
    print(machine())
    characters = sum(map(len, real)) / 1e6
    print(f"{len(SENTENCES)} labelled sentences; {len(real):,} texts of {characters:.1f} million characters")
    for kind, find in FINDERS.items():
        labelled, found, wrong = agreement(kind)
        started = time.process_time()
        hits = [(text[start:end], text[max(0, start - 30) : start]) for text in real for start, end in find(text)]
        spent = (time.process_time() - started) / len(real)
        print(
            f"{kind}: recall {found}/{labelled}, precision {found}/{found + wrong}; "
            f"{len(hits)} hits in the texts, {1e3 * spent:.2f} ms a text"
        )
        for hit, count in Counter(hits).most_common(given.shown):
            print(f"  {count} x {hit}")


if __name__ == "__main__":
    main()
