"""Planted truth for `gpt2train compare-data`: is a damaged corpus found worse, and are halves of one found alike?

    python -m benchmarks.compare_data --output FOLDER [--runs 20] [--minutes 40] [--seeds 8] [--tokens 65536]

Film reviews are split by run into a corpus, a damaged copy of it and 50 held-out reviews. The damage replaces 30 % of
the documents by shuffled words, menus of web pages, generated spam, or copies of other documents. `halves` compares two
halves of the corpus. A finished comparison is a line of FOLDER/results.jsonl; the command may be stopped at any time.
"""

import argparse
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.corpora import texts
from gpt2train.compare.comparison import Comparison, Request
from gpt2train.store.files import read_json_lines, write_atomic

SHARE = 0.3
HELD = 50
DOCUMENTS = 2500  # of a corpus
MENU = ("Home", "About", "Contact", "Login", "Register", "Search", "Help", "Terms", "Privacy", "News", "Blog", "Cart")
SPAM = (
    ("Buy", "Order", "Get", "Compare"),
    ("cheap", "best", "discount", "original"),
    ("watches", "pills", "insurance", "loans", "casino bonus", "replica bags"),
    ("online now", "with free shipping", "without prescription", "at the lowest price", "today"),
)


def shuffled(text: str, rng: random.Random, others: list[str]) -> str:
    """The words of a text in random order."""
    words = text.split()
    rng.shuffle(words)
    return " ".join(words)


def menu(text: str, rng: random.Random, others: list[str]) -> str:
    """Entries of a menu, as long as the text."""
    return "\n".join(rng.choice(MENU) for _ in text.split())


def spam(text: str, rng: random.Random, others: list[str]) -> str:
    """Sentences from a template, about as long as the text."""
    return " ".join(" ".join(map(rng.choice, SPAM)) + "." for _ in range(len(text.split()) // 6 + 1))


def duplicate(text: str, rng: random.Random, others: list[str]) -> str:
    """A copy of one of the first documents that stay."""
    return rng.choice(others)


DAMAGE: dict[str, Callable[[str, random.Random, list[str]], str]] = {
    "shuffled": shuffled,
    "menus": menu,
    "spam": spam,
    "duplicates": duplicate,
}


def corpora(kind: str, run: int) -> tuple[list[str], list[str], list[str]]:
    """Corpora A and B of a run, and its held-out documents."""
    rng = random.Random(f"{kind} {run}")
    found = list(dict.fromkeys(texts("text/imdb_dev")))
    rng.shuffle(found)
    held, rest = found[:HELD], found[HELD:]
    if kind == "halves":
        return rest[:DOCUMENTS], rest[DOCUMENTS : 2 * DOCUMENTS], held
    clean = rest[:DOCUMENTS]
    bad = round(SHARE * DOCUMENTS)
    return clean, [DAMAGE[kind](text, rng, clean[bad:]) for text in clean[:bad]] + clean[bad:], held


def compare(folder: Path, kind: str, run: int, chosen: dict[str, int], jobs: int) -> dict[str, object]:
    """Run one comparison."""
    work = folder / f"{kind}-{run}"
    for name, documents in zip(("a", "b", "held"), corpora(kind, run), strict=True):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        write_atomic(work / f"{name}.jsonl", lines.encode())
    request = Request(
        heldout=(work / "held.jsonl",),
        seeds=chosen["seeds"],
        tokens=chosen["tokens"],
        epochs=chosen["epochs"],
        proxy="micro",
        jobs=jobs,
    )
    started = time.perf_counter()
    result = Comparison((work / "a.jsonl", work / "b.jsonl"), work / "out", request).run(lambda line: None)
    found = result["sets"]["held"]
    shutil.rmtree(work)
    row = {key: found[key] for key in ("better", "mean", "half_width", "seed_deviation", "heldout_error", "values")}
    return {"kind": kind, "run": run, **chosen, "seconds": round(time.perf_counter() - started, 1), **row}


def main() -> None:
    """Run the comparisons that are missing until the time is over, then print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=65_536, help="of each training")
    parser.add_argument("--epochs", type=int, default=Request.epochs, help="epochs that have these tokens")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="I N: one of N commands that share the runs")
    parser.add_argument("--minutes", type=float, default=40, help="no further comparison is started after these")
    given = parser.parse_args()
    end, results = time.monotonic() + 60 * given.minutes, given.output / "results.jsonl"
    given.output.mkdir(parents=True, exist_ok=True)
    chosen = {name: getattr(given, name) for name in ("seeds", "tokens", "epochs")}
    raw = results.read_bytes() if results.exists() else b""
    rows = [row for row in read_json_lines(raw, lambda row: "kind" in row)[0] if chosen.items() <= row.items()]
    done = {(row["kind"], row["run"]) for row in rows}
    part, parts = given.part
    for run in range(part, given.runs, parts):
        for kind in (*DAMAGE, "halves"):
            if (kind, run) in done or time.monotonic() > end:
                continue
            row = compare(given.output, kind, run, chosen, given.jobs)
            rows.append(row)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{kind} {run}: {row['mean']:+.4f} ± {row['half_width']:.4f} {row['better']}", flush=True)
    for kind in (*DAMAGE, "halves"):
        own = [row for row in rows if row["kind"] == kind]
        worse, different = (sum(row["better"] in arms for row in own) for arms in (("A",), ("A", "B")))
        print(f"{kind}: B worse in {worse}, different in {different} of {len(own)}")


if __name__ == "__main__":
    main()
