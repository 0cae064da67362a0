"""Passages in scripts without spaces between words are found, and other texts of the language are unchanged."""

import re
from pathlib import Path

import pytest

from gpt2train.data.text_units import UNSPACED
from tasks.decontaminate.ngrams import NgramIndex, words_of
from tasks.decontaminate.step import DecontaminateSettings, plan_cuts, remove
from tests.tasks.corpus import read_jsonl

PASSAGE = 150  # characters: some thirty words


def texts_by_language(open_data: Path) -> dict[str, str]:
    """Parts of translations of the Declaration of Human Rights that are mostly in these scripts."""
    rows = read_jsonl(open_data / "lang" / "udhr_lang_dev.jsonl.gz")
    return {row["lang3"]: row["text"] for row in rows if len(UNSPACED.findall(row["text"])) > len(row["text"]) / 3}


def test_planted_passages_are_cut_out(open_data: Path) -> None:
    languages = texts_by_language(open_data)
    assert {"cmn_hans", "jpn", "tha", "lao", "mya"} <= languages.keys()
    for language, text in languages.items():
        middle = len(text) // 2
        other, passage = text[:middle], text[-PASSAGE:]
        index = NgramIndex([passage])
        assert index.ignored == 0 and index.matches(other) == [], language
        planted = f"{other[: middle // 2]}{passage}{other[middle // 2 :]}"
        rest, cuts = remove(planted, index, DecontaminateSettings(margin=0, min_piece=1))
        assert cuts and passage[30:-30] not in rest, language


def test_cuts_end_at_the_sentence_boundaries_of_chinese() -> None:
    text = "第一句在这里。他说：“第二句。”然后这是考试的文章中的一句话，再来一句！最后一句。"
    index = NgramIndex(["这是考试的文章中的一句话"], 8, 8)
    cuts = plan_cuts(text, index.matches(text), margin=1)
    assert [text[cut.start : cut.end] for cut in cuts] == ["然后这是考试的文章中的一句话，再来一句！"]


@pytest.mark.parametrize("text", ["佐々木さんの話", "ｶﾅの話", "ㄅㄆㄇ", "ꆈꌠꁱ"])
def test_each_ideograph_is_a_word(text: str) -> None:
    assert len(words_of(text)) == len(re.findall(r"\w", text))
