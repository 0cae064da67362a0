"""Repair of texts: ftfy's results in less time, and damaged texts repaired."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import ftfy
import pytest
from ftfy.badness import BADNESS_RE
from hypothesis import given
from hypothesis import strategies as st

from tasks.clean.repair import fix_clean_line, fix_simple_text, fix_text, is_bad, is_repaired, repair
from tests.tasks.corpus import pieces_of_novels, real_texts, texts_of

SIGNS = "\u00a0\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026"
# Patterns that ftfy repairs: mojibake, entities, tags, ligatures, full width, control characters, line ends, accents.
TRICKY = st.sampled_from(
    [*SIGNS, *"aZ9 .&;<>é\n\r\f\x1bÃ¢€™œÂ\u0301ﬁＡ\ufeff\x85\u2028\ud83d\ude00\u02bc", "&amp;", "â€™"]
)


@given(st.text(max_size=100) | st.lists(TRICKY, max_size=30).map("".join), st.booleans(), st.booleans(), st.booleans())
def test_the_fast_path_equals_ftfy(text: str, straight: bool, keep_width: bool, entities: bool) -> None:
    html = "auto" if entities else False
    theirs = ftfy.fix_text(text, unescape_html=html, uncurl_quotes=straight, fix_character_width=not keep_width)
    assert fix_text(text, straight_quotes=straight, keep_width=keep_width, entities=entities) == theirs


PLAIN, ODD = list("aZ .,\n"), sorted({letter for letter in BADNESS_RE.pattern if not letter.isascii()})
PIECE = st.text(st.sampled_from(PLAIN), max_size=40) | st.text(st.sampled_from(PLAIN + ODD), max_size=6)


@given(st.lists(PIECE, max_size=6).map("".join))
def test_mojibake_is_recognised_as_by_ftfy(text: str) -> None:
    assert is_bad(text) == ftfy.is_bad(text)


def test_separators_and_joiners_of_words_are_kept() -> None:
    asian = ("ភាសា\u200bខ្មែរ\u200bគឺ", "ภาษา\u200bไทย", "ພາສາ\u200bລາວ", "မြန်မာ\u200bဘာသာ", "བོད་སྐད་ནི།")
    for text in (*asian, "می\u200cخواهم", "क्\u200dष", "👩\u200d🔬"):
        assert repair(text, entities=True) == repair(text, entities=False) == text


def test_chinese_and_japanese_punctuation_is_kept() -> None:
    for text in ("他说：“走吧！”，（对吗？）GPT-2的第１步。", "「ｶﾅ」と、ｷﾞﾀｰ！"):
        assert repair(text) == text
    assert repair("The ＧＰＵ “中” ﬁts！") == 'The GPU "中" fits!'
    assert repair("他说：走吧！\r\n“对\x00吗？” ") == "他说：走吧！\n“对吗？”"


def test_signs_that_are_never_mojibake_are_repaired_as_by_ftfy() -> None:
    """No rule of ftfy's spans more than five characters; those of four and five need letters that are no such signs."""
    for signs in itertools.product(SIGNS + "aZ9 .\n", repeat=3):
        text = "".join(signs)
        assert fix_simple_text(text, True) == ftfy.fix_text(text)


def test_each_single_character_is_repaired_as_by_ftfy() -> None:
    for code in itertools.chain(range(0x3400), range(0xAC00, 0xAC20), range(0xD7F0, 0xE010), range(0xF8F0, 0x10010)):
        line = f"ab {chr(code)} c"
        fixed = fix_simple_text(line, True) or fix_clean_line(line, True)
        assert fixed is None or fixed == ftfy.fix_text(line), hex(code)


def test_the_fast_path_equals_ftfy_on_real_texts(open_data: Path) -> None:
    """The answers are ftfy's, and most texts need no more than the fast way."""
    passages = texts_of(open_data / "lang" / "udhr_lang_dev.jsonl.gz", 700)[::5]
    texts = passages + real_texts(open_data) + pieces_of_novels(open_data, 330)
    for text in texts:
        assert fix_text(text) == ftfy.fix_text(text)
    assert sum(fix_simple_text(text, True) is not None for text in texts) > 0.7 * len(texts)


def test_the_test_cases_of_ftfy_pass(open_data: Path) -> None:
    """ftfy's own cases: texts that it must repair, and texts that it must not change."""
    for name in ("in-the-wild", "negative"):
        cases: list[dict[str, Any]] = json.loads((open_data / "lang" / "ftfy_cases" / f"{name}.json").read_text())
        assert len(cases) > 10
        for case in cases:
            assert fix_text(case["original"]) == ftfy.fix_text(case["original"])
            if case["expect"] == "pass":
                assert fix_text(case["original"]) == case["fixed"], case["label"]


@pytest.mark.slow
def test_real_mojibake_is_repaired(real_data: Path) -> None:
    with gzip.open(real_data / "lang" / "mojibake_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    repaired = sum(repair(row["garbled"]) == repair(row["original"]) for row in rows)
    assert repaired >= 0.98 * len(rows)  # the rest lost characters in the damage
    for row in rows[:300]:
        lines = [line.rstrip() for line in row["original"].strip().split("\n")]
        assert repair(row["original"], straight_quotes=False) == "\n".join(lines)


@given(st.text(max_size=200) | st.text(st.sampled_from("ab \t\n\0\ud800é\xa0\r"), max_size=60))
def test_repaired_text_is_storable_and_stable(text: str) -> None:
    fixed = repair(text)
    fixed.encode()
    assert "\0" not in fixed
    assert all(line == line.rstrip(" \t\xa0") for line in fixed.split("\n"))


def test_a_text_counts_as_repaired_if_mojibake_was_fixed() -> None:
    for text, repaired in {"cafÃ©": True, **dict.fromkeys(("café", "plain", "“curly”", "ﬁne"), False)}.items():
        assert is_repaired(text, repair(text)) == repaired, text
