"""Passages of texts in scripts with and without spaces between words, and the score of a set without spaces."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.text_units import units_of
from gpt2train.evaluate.passages import last_unit, read_passages
from gpt2train.store.folder import Folder
from tasks.cloze.passages import passages
from tasks.cloze.step import ClozeSettings, cloze
from tests.tasks.cloze.test_step import cleaned, drawn
from tests.tasks.corpus import Inline

LAST_WORDS = {
    "Brücke": "Der Müller ging über die Brücke und sah den Fluß. Öfter träumte er, daß er über die alte Brücke flöge. "
    "Ängstlich wurde er nie, wenn er am Ufer stand und hinüber sah zur alten Brücke.",
    "медведя": "Мальчик пошёл в лес и увидел большого медведя. Он испугался и побежал домой. Мать спросила его, что "
    "случилось в лесу. Мальчик ответил, что он увидел в лесу большого страшного медведя.",
    "학교에서": "학교에서 우리는 선생님을 만났다. 선생님은 우리에게 책을 주셨다. 우리는 책을 읽고 집으로 돌아와서 "
    "다시 학교 이야기를 했다. 내일도 우리는 친구와 함께 선생님을 만나서 공부하고 같이 노는 곳은 바로 학교에서.",
    "曹操": "忽见一彪军马，尽打红旗，截住去路。为首闪出一将，官拜骑都尉，姓曹名操字孟德，人称曹操。\n  操有叔父，见"
    "操游荡无度，尝怒之，言于其父。其父责曹操。",
    "猫": "吾輩は猫である。名前はまだ無い。どこで生れたか頓と見当がつかぬ。隣の家にも三毛の猫がいる。吾輩はその家を"
    "訪ねたが、そこにいたのは三毛の猫。",
    "มหานคร": "ประเทศไทยตั้งอยู่ในเอเชียตะวันออกเฉียงใต้ มีเมืองหลวงคือกรุงเทพมหานคร ชาวต่างชาติชอบมาเที่ยวกรุงเทพมหานคร",
}


@pytest.mark.parametrize("word", LAST_WORDS)
def test_the_last_word_occurs_before(word: str) -> None:
    text = LAST_WORDS[word]
    [passage] = passages(text, 20, 110)
    assert passage.text.endswith(word) and word in passage.text[: -len(word)]
    spaced = " " in passage.text
    assert (" " if spaced else "").join(text[passage.start : passage.end].split()).rstrip(".。") == passage.text
    assert spaced == (word in ("Brücke", "медведя", "학교에서"))
    assert (last_unit(passage.text) is None) == spaced


@pytest.mark.parametrize(
    "text",
    [
        "曹操见玄德。孙权见吕布。关公问周瑜。",  # no word of the end occurs before
        "第一回玄德见曹操\n第二回玄德见曹操\n第三回玄德见曹操",  # headings
        "曹操说：“你看，这是玄德，我们都认识这一位玄德。",  # an open quote
        "使用 import Python 语言，运行 a = b 得到结果，再运行 a = b 得到结果。",  # code
        "玄德 likes New York and Boston 玄德，去了 New York 玄德。",  # words that a passage without spaces would join
    ],
)
def test_what_is_no_prose_gives_no_passage(text: str) -> None:
    assert list(passages(text, 5, 110)) == []


@given(st.text(st.sampled_from("曹操。“”ก่ \nA") | st.characters(), max_size=200), st.integers(5, 20))
def test_any_text_gives_passages_that_can_be_scored(text: str, least: int) -> None:
    last = 0
    for passage in passages(f"{text}曹操去了。{text}", least, 110):
        assert last <= passage.start < passage.end and least <= len(units_of(passage.text)) <= 110
        last = passage.end
        assert last_unit(passage.text) is not None or " " in passage.text


def test_a_set_is_drawn_from_chinese_novels(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "eval/zh/corpus"
    if not folder.is_dir():
        pytest.skip(f"no Chinese corpus in {real_data}")
    novels = [path.read_text(encoding="utf-8")[:60_000] for path in sorted(folder.glob("*.txt"))]
    root = Folder(tmp_path)
    with Inline(workers=1) as runner:
        manifest = cloze(root, cleaned(root, [(text, "test") for text in novels]), ClozeSettings(), runner)
    found = drawn(root, manifest)
    assert len(found) == 60 and manifest.outcome.seen > 150  # 20 of a document
    assert all(len(last_unit(text) or "") == 1 for text in found)
    assert read_passages((root / manifest.folder).read_bytes("cloze.jsonl"), "cloze.jsonl") == found
