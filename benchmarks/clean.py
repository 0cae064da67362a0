"""Cleaning on one core, Parquet in and out: ours, and what one writes with the libraries at hand.

`python -m benchmarks.clean [--count N]`

1. The step: ftfy, GPT-2's tokens, language, split. The peer is the same tests by `ftfy.fix_text`, `langdetect.detect`
   on the whole text and `tokenizers`, document by document, in the order of the step, on the same files.
2. ftfy alone: `ftfy.fix_text` and ours, whose output is equal.
3. 13-grams of LAMBADA and WikiText: ours, and a Python set of joined n-grams, as Megatron-LM looks them up.
"""

import argparse
import json
import re
import tempfile
from pathlib import Path

import ftfy
import langdetect
from langdetect import DetectorFactory, LangDetectException

from benchmarks.corpora import DATA, texts
from benchmarks.pairs import compare, machine
from gpt2train.data.tokenizer import copy_tokenizer, encode_ordinary, load_tokenizer
from gpt2train.store.folder import Folder
from tasks.clean.repair import fix_text
from tasks.clean.settings import CleanSettings
from tasks.clean.splits import split_of
from tasks.clean.step import clean_part
from tasks.core.shards import CLEAN, DOCUMENT, commit_rows, read_rows, rejected_row, write_rows
from tasks.core.tokenizer_file import TokenizerFile
from tasks.decontaminate.ngrams import NgramIndex

SETTINGS = CleanSettings()


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="documents: half reviews, half news")
    given = parser.parse_args()
    documents = texts("text/imdb_dev", given.count // 2) + texts("text/reuters_dev", given.count // 2)
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        step(Path(place), documents)
    for text in documents:
        assert fix_text(text) == ftfy.fix_text(text)
    compare(
        "ftfy",
        "docs",
        len(documents),
        {
            "ours": lambda: [fix_text(text) for text in documents],
            "ftfy.fix_text": lambda: [ftfy.fix_text(text) for text in documents],
        },
    )
    ngrams(documents)


def step(place: Path, documents: list[str]) -> None:
    """The whole step."""
    for folder in ("tokenizer", "source", "ours", "naive"):
        (place / folder).mkdir()
    copy_tokenizer(DATA / "bpe", place / "tokenizer")
    tokenizer = TokenizerFile(Folder(place / "tokenizer"), "tokenizer.json", "of the benchmark")
    rows = [{"id": str(n), "url": f"http://a.example/{n}", "text": text} for n, text in enumerate(documents)]
    write_rows(Folder(place / "source"), "part.parquet", rows, DOCUMENT)
    ours = clean_part(Folder(place / "ours"), "part", "part.parquet", Folder(place / "source"), SETTINGS, tokenizer, {})
    theirs = naive(place)
    kept = [{row["id"] for row in read_rows(Folder(place / f), "part.parquet")} for f in ("ours", "naive")]
    print(f"kept: {ours.kept} by ours, {theirs} by the peer, {len(kept[0] ^ kept[1])} of them other documents")
    compare(
        "Cleaning, the whole step",
        "docs",
        len(documents),
        {
            "ours": lambda: clean_part(
                Folder(place / "ours"), "part", "part.parquet", Folder(place / "source"), SETTINGS, tokenizer, {}
            ),
            "ftfy, tokenizers, langdetect": lambda: naive(place),
        },
        rounds=3,
    )


def naive(place: Path) -> int:
    """The peer; how many documents it keeps."""
    known = load_tokenizer(place / "tokenizer")
    kept, rejected = [], []
    for row in read_rows(Folder(place / "source"), "part.parquet"):
        text = ftfy.fix_text(row["text"])
        tokens = len(encode_ordinary(known, [text])[0])
        if tokens < SETTINGS.min_tokens:
            rejected.append(rejected_row(row, "too_short"))
            continue
        DetectorFactory.seed = 0
        try:
            language = langdetect.detect(text)
        except LangDetectException:
            language = "none"
        if language != "en":
            rejected.append(rejected_row(row, "wrong_language"))
            continue
        split = split_of(text, SETTINGS.split)
        kept.append({**row, "text": text, "language": language, "tokens": tokens, "split": split})
    return commit_rows(Folder(place / "naive"), "part.parquet", kept, rejected, CLEAN).kept


def ngrams(documents: list[str]) -> None:
    """Looking for the n-grams of the evaluation sets."""
    with (DATA / "lambada" / "lambada_test.jsonl").open(encoding="utf-8") as file:
        passages = [json.loads(line)["text"] for line in file]
    passages += (DATA / "wikitext" / "wiki.test.head20.raw").read_text(encoding="utf-8").split("\n")
    index = NgramIndex(passages)
    word = re.compile(r"\w+")
    known: dict[int, set[str]] = {}
    for passage in passages:
        words = word.findall(passage.lower())
        length = min(len(words), 13)
        if length >= 8:
            grams = known.setdefault(length, set())
            grams.update(" ".join(words[start : start + length]) for start in range(len(words) - length + 1))

    def plain() -> int:
        count = 0
        for text in documents:
            words = word.findall(text.lower())
            for length, grams in known.items():
                count += sum(
                    " ".join(words[start : start + length]) in grams for start in range(len(words) - length + 1)
                )
        return count

    compare(
        "N-grams of LAMBADA and WikiText",
        "MB",
        sum(len(text.encode()) for text in documents) / 1e6,
        {"ours": lambda: [index.matches(text) for text in documents], "a set of joined n-grams": plain},
        rounds=3,
    )


if __name__ == "__main__":
    main()
