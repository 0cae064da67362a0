"""Units of texts: words where there are spaces, characters where there are none."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.text_units import (
    ALPHABETIC,
    BLOCKS,
    IDEOGRAPHIC,
    UNSPACED,
    has_unspaced,
    is_mostly_unspaced,
    spaced_word,
    units_of,
    without_invisible,
)

UNSPACED_LETTERS = [chr(code) for first, last in BLOCKS for code in range(first, last + 1) if chr(code).isalnum()]
# Every kind of character, with the scripts without spaces as often as all others.
MIXED = st.text(
    st.characters(codec="utf-8") | st.sampled_from(UNSPACED_LETTERS) | st.sampled_from("བོདསྐ་།༄ab1 \n,.“”。，’_")
)
SPACED = st.text(st.characters(codec="utf-8").filter(lambda letter: not has_unspaced(letter)))


@given(SPACED)
def test_text_with_spaces_has_the_words_of_str_split(text: str) -> None:
    assert not has_unspaced(text)
    assert units_of(text) == text.split()


@given(MIXED, MIXED)
def test_units_are_the_text_without_its_white_space_and_independent_of_the_text_around(one: str, other: str) -> None:
    """A unit has one unspaced letter, or is a word without."""
    units = units_of(one)
    assert "".join(units) == "".join(one.split()) and units_of(f"{one} {other}") == units + units_of(other)
    for unit in units:
        found = UNSPACED.findall(unit)
        assert not found or (len(found) == 1 and not re.search(r"\w", unit.replace(found[0], "", 1)))


@given(st.text(st.sampled_from(UNSPACED_LETTERS)))
def test_spaces_between_unspaced_letters_change_nothing(text: str) -> None:
    assert units_of(text) == units_of(" ".join(text)) == list(text)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("今天天气很好。", ["今", "天", "天", "气", "很", "好。"]),
        ("他说：“走吧！”", ["他", "说：“", "走", "吧！”"]),
        ("“走” iPhone手机，GPT-2模型", ["“走”", "iPhone", "手", "机，", "GPT-2", "模", "型"]),
        ("カタカナとｶﾀ々〇", list("カタカナとｶﾀ々〇")),
        ("ที่นี่ ๑๒", ["ที่", "นี่", "๑", "๒"]),
        ("한국어는 띄어쓰기가 있다", ["한국어는", "띄어쓰기가", "있다"]),
        ("tiếng Việt; русский, naïve", ["tiếng", "Việt;", "русский,", "naïve"]),
        ("བོད་སྐད་ཡིན།", ["བོད་", "སྐད་", "ཡིན།"]),
        ("༄༅། །བཀྲ་ཤིས་བདེ་ལེགས། GPT", ["༄༅།", "།བཀྲ་", "ཤིས་", "བདེ་", "ལེགས།", "GPT"]),
        ("ខ្មែរ ភាសា", ["ខ្", "មែ", "រ", "ភា", "សា"]),
        ("ພາສາລາວ", list("ພາສາລາວ")),
        ("မြန်မာ", ["မြ", "န်", "မာ"]),
        ("", []),
    ],
)
def test_units_of_scripts(text: str, units: list[str]) -> None:
    assert units_of(text) == units


@pytest.mark.parametrize(
    "text",
    ["हिन्दी भाषा", "தமிழ் மொழி", "മലയാളം", "שָׁלוֹם עֲלֵיכֶם", "ދިވެހި", "e\u0301te\u0301 x_1", "བོད སྐད"],
)
def test_signs_belong_to_the_word_of_their_letter(text: str) -> None:
    assert re.findall(spaced_word(), text) == text.split()
    assert not re.findall(spaced_word(), "今天 ภาษา ខ្មែរ ❤️")


def test_the_majority_of_letters_decides_for_a_text() -> None:
    mostly = {"今天天气很好 GPT": True, "今天 GPT-2 model": False, "ภาษาไทย": True, "": False, "…“”": False, "é": False}
    assert {text: is_mostly_unspaced(text) for text in mostly} == mostly


def test_the_blocks_are_in_order_and_of_the_named_scripts() -> None:
    for group in (IDEOGRAPHIC, ALPHABETIC):
        flat = [code for block in group for code in block]
        assert flat == sorted(flat)
    names = {unicodedata.name(letter, "?").split()[0] for letter in UNSPACED_LETTERS}
    assert {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"} <= names
    assert not names & {"LATIN", "GREEK", "CYRILLIC", "HANGUL", "ARABIC", "DEVANAGARI", "TIBETAN", "FULLWIDTH"}


@pytest.mark.parametrize("separated", ["ភាសា|ខ្មែរ|គឺ", "ภาษา|ไทย", "ພາສາ|ລາວ", "မြန်မာ|ဘာသာ", "བོད་|སྐད་|ནི"])
def test_only_separators_of_words_are_kept_of_what_is_invisible(separated: str) -> None:
    text = separated.replace("|", "\u200b")
    assert without_invisible(text) == text
    noisy = separated.replace("|", "\u200b\ufeff\u200b")
    assert without_invisible(f"\ufeff\u200b{noisy}\u200b, a\u200bb, 漢\u200b字\u00ad") == f"{text}, ab, 漢字"


@given(MIXED | st.text("aက\u200b\u00ad\ufeff "))
def test_nothing_visible_is_removed(text: str) -> None:
    found = without_invisible(text)
    plain = re.sub("[\u00ad\u200b\u2060\ufeff]", "", text)
    assert found.replace("\u200b", "") == plain and without_invisible(found) == found
