"""Passages planted in other texts in 28 typographic variants: all are cut out, and clean texts are unchanged."""

import json
import random
import re
import unicodedata
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from tasks.decontaminate.ngrams import NgramIndex, words_of
from tasks.decontaminate.step import DecontaminateSettings, remove
from tests.tasks.corpus import read_jsonl, texts_of

PROSE = (
    "The old man told them "  # retired-word: ok
    "that the mill would be sold in the spring, because nobody had paid for the flour since the "
    "winter. They looked at the river for a long time and did not say a word to him. When the boat came in at night, "
    "he was still waiting at the harbour with the letter in his hand, and he gave it to nobody but the captain"
)
FILLER = " ".join(f"Sentence number {n} says something about topic {n * 7} and then ends." for n in range(40))
CYRILLIC = str.maketrans("aeopcxyiAEOPCXTHKMB", "аеорсхуіАЕОРСХТНКМВ")
GREEK = str.maketrans("oaivABEZHIKMNOPTYX", "οαινΑΒΕΖΗΙΚΜΝΟΡΤΥΧ")
BOLD = {ord(letter): 0x1D400 + n for n, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")}
WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}


def inside(mark: str) -> Callable[[str], str]:
    """Insert a mark in the middle of each word of four letters and more."""
    return lambda text: re.sub(r"\b(\w{2})(\w{2,})\b", rf"\1{mark}\2", text)


def every(count: int, change: Callable[[str, int], str]) -> Callable[[str], str]:
    """Change every n-th word."""

    def changed(text: str) -> str:
        words = text.split()
        return " ".join(change(word, n) if n % count == count - 1 else word for n, word in enumerate(words))

    return changed


def hyphenated(text: str) -> str:
    """Lines of about 60 characters, each broken within a word if that is long enough."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > 60:
            cut = len(word) // 2
            if len(word) > 5 and word.isalpha():
                lines.append(f"{line} {word[:cut]}-")
                line = word[cut:]
                continue
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


KINDS: dict[str, Callable[[str], str]] = {
    "exact": str,
    "upper": str.upper,
    "title": str.title,
    "no punctuation": lambda text: re.sub(r"[^\w\s']", "", text),
    "line ends": lambda text: text.replace(" ", "\n"),
    "tabs": lambda text: text.replace(" ", "\t"),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "curly quotes": lambda text: text.replace("'", "\u2019").replace('"', "\u201c"),
    "table": lambda text: text.replace(" ", " | "),
    "paragraphs": lambda text: text.replace(". ", ".\n\n"),
    "bullets": lambda text: "- " + text.replace(". ", ".\n- "),
    "15 words": lambda text: " ".join(text.split()[5:20]),
    "space and zero width": lambda text: text.replace(" ", " \u200b"),
    "zero width inside": inside("\u200b"),
    "zero width joiner inside": inside("\u200d"),
    "word joiner inside": inside("\u2060"),
    "soft hyphens": inside("\u00ad"),
    "*emphasis*": every(4, lambda word, n: f"*{word}*"),
    "_emphasis_": every(4, lambda word, n: f"_{word}_"),
    "__strong__": every(5, lambda word, n: f"__{word}__"),
    "references": every(6, lambda word, n: f"{word}[{n % 30}]"),
    "raised references": every(6, lambda word, n: f"{word}\u00b2\u2070"),
    "hyphens at line ends": hyphenated,
    "full width": lambda text: text.translate(WIDE),
    "mathematical letters": lambda text: text.translate(BOLD),
    "ligatures": lambda text: text.replace("fi", "\ufb01").replace("fl", "\ufb02"),
    "Cyrillic letters": lambda text: text.translate(CYRILLIC),
    "Greek letters": lambda text: text.translate(GREEK),
    "combining accents": lambda text: unicodedata.normalize("NFD", re.sub("e", "é", text)),
}
SETTINGS = DecontaminateSettings()


def left_of(passage: str, kind: str, index: NgramIndex, around: str, at: int) -> int:
    """Words of a planted passage that are left, except those in which an n-gram may begin or end."""
    planted = KINDS[kind](passage)
    text, _ = remove(f"{around[:at]} {planted} {around[at:]}", index, SETTINGS)
    kept, words = words_of(text), words_of(planted)
    runs = {tuple(kept[start : start + 5]) for start in range(len(kept))}
    return sum(tuple(words[start : start + 5]) in runs for start in range(len(words) - 4))


def test_there_are_28_variants() -> None:
    assert len(KINDS) >= 28
    changed = [kind for kind, change in KINDS.items() if change(f"\"{PROSE} don't ﬂ fl") != f"\"{PROSE} don't ﬂ fl"]
    assert set(KINDS) - set(changed) == {"exact"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_passage_is_cut_out(kind: str) -> None:
    index = NgramIndex([PROSE])
    for at in (0, len(FILLER) // 2, len(FILLER)):
        assert left_of(PROSE, kind, index, FILLER, at) == 0
    assert index.matches(FILLER) == []


@pytest.fixture(scope="module")
def passages(open_data: Path) -> list[str]:
    with (open_data / "lambada" / "lambada_test.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in islice(file, 1500)]


@pytest.fixture(scope="module")
def index(passages: list[str]) -> NgramIndex:
    return NgramIndex(passages)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_fifteen_passages_of_lambada_are_cut_out(
    kind: str, open_data: Path, passages: list[str], index: NgramIndex
) -> None:
    speeches = texts_of(open_data / "text" / "speeches_dev.jsonl.gz", 15)
    chosen = random.Random(kind).sample([text for text in passages if len(text.split()) > 40], 15)
    for number, passage in enumerate(chosen):
        around = speeches[number]
        assert index.matches(around) == []
        assert left_of(passage, kind, index, around, (0, len(around) // 2, len(around))[number % 3]) == 0, passage


def cuts_in(real_data: Path, counts: dict[str, int]) -> tuple[int, list[str]]:
    """Number of clean texts that were searched for all of LAMBADA, and those with a match."""
    with (real_data / "lambada" / "lambada_test.jsonl").open(encoding="utf-8") as file:
        index = NgramIndex([json.loads(line)["text"] for line in file])
    seen, cut = 0, []
    for name, count in counts.items():
        for row in islice(read_jsonl(real_data / "text" / f"{name}_dev.jsonl.gz"), count):
            seen += 1
            cut += [row["text"][:200]] if index.matches(row["text"]) else []
    return seen, cut


def test_clean_reviews_are_unchanged(real_data: Path) -> None:
    assert cuts_in(real_data, {"imdb": 1000, "reuters": 500}) == (1500, [])


@pytest.mark.slow
def test_no_clean_text_is_cut(real_data: Path) -> None:
    """All reviews, news and speeches: 30,000 texts that have nothing of LAMBADA."""
    seen, cut = cuts_in(real_data, {"imdb": 10**6, "reuters": 10**6, "speeches": 10**6})
    assert seen > 30_000 and cut == []
