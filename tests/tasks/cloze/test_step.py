"""Cloze passages: LAMBADA's format, drawn from the test split, in scripts with and without spaces between words."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.text_units import units_of
from gpt2train.evaluate.passages import last_unit, read_passages
from gpt2train.store.manifest import Folder, Manifest
from tasks.cloze.passages import passages
from tasks.cloze.spaced import prose_runs
from tasks.cloze.step import ClozeSettings, cloze, cloze_file, no_passages_message
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.decontaminate.step import DecontaminateSettings, decontaminate
from tests.tasks.corpus import Inline, cleaned, texts_of


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Inline(workers=1) as runner:
        yield runner


def story(name: str, sentences: int = 12) -> str:
    """Prose in which each sentence ends in a word that occurred before; different words for each name."""
    return " ".join(
        f"In chapter {n} the traveller {name} looked for {name} harbour, but nobody knew where {name} saw the harbour."
        for n in range(sentences)
    )


def drawn(root: Folder, manifest: Manifest) -> list[str]:
    [record] = manifest.outputs
    data = (root / manifest.folder).read_bytes(record.name)
    return [json.loads(line)["text"] for line in data.decode().splitlines()]


def sidecar(root: Folder, manifest: Manifest) -> list[dict[str, Any]]:
    return list(read_rows(root / manifest.folder, "passages.parquet"))


@pytest.mark.slow
def test_passages_have_lambadas_format_and_come_from_the_test_split(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    texts = {"0-0": story("Anna"), "0-1": story("Bert"), "1-0": story("Carl"), "1-1": story("Dora")}
    splits = {"0-0": "test", "0-1": "train", "1-0": "valid", "1-1": "test"}
    documents = [(texts[key], splits[key]) for key in texts]
    manifest = cloze(root, cleaned(root, documents[:2], documents[2:]), ClozeSettings(), runner)
    rows = sidecar(root, manifest)
    assert drawn(root, manifest) == [row["text"] for row in rows]
    assert {row["doc_id"] for row in rows} == {"0-0", "1-1"}
    for row in rows:
        source = texts[row["doc_id"]][row["start"] : row["end"]]
        assert " ".join(source.split()) == row["text"] + "."
        words = row["text"].split()
        assert 30 <= len(words) <= 110
        assert words[-1].isalpha()
        assert words[-1].lower() in re.findall(r"\w+", " ".join(words[:-1]).lower())
    assert manifest.outputs[0].rows == len(rows) == manifest.outcome.kept
    assert manifest.outcome.facts["documents"] == 2
    assert cloze(root, cleaned(root, documents[:2], documents[2:]), ClozeSettings(), runner) == manifest


@pytest.mark.slow
def test_the_choice_does_not_depend_on_the_layout_or_the_workers(tmp_path: Path, runner: Runner) -> None:
    documents = [(story(name, 30), "test") for name in ("Anna", "Bert", "Carl", "Dora")]
    settings = ClozeSettings(max_passages=9)
    one, two = Folder(tmp_path / "one"), Folder(tmp_path / "two")
    first = drawn(one, cloze(one, cleaned(one, documents), settings, runner))
    with Runner(workers=1) as single:
        second = cloze(two, cleaned(two, documents[:1], documents[1:3], documents[3:]), settings, single)
    assert first == drawn(two, second)
    other = drawn(one, cloze(one, cleaned(one, documents), ClozeSettings(max_passages=9, seed=1), runner))
    assert len(first) == len(other) == 9 and first != other


def test_limits_duplicates_and_common_phrases_are_respected(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    common = story("Everywhere", 2)
    documents = [(story("Anna", 40), "test"), (story("Anna", 40), "test"), (f"{common} {story('Bert', 2)}", "test")]
    documents += [(f"{common} {n} {story(f'Name{chr(65 + n)}')}", "train") for n in range(4)]
    manifest = cloze(root, cleaned(root, documents), ClozeSettings(per_document=5), runner)
    rows = sidecar(root, manifest)
    assert len({row["text"] for row in rows}) == len(rows)
    assert not any("Everywhere" in row["text"] for row in rows)
    assert sum("Anna" in row["text"] for row in rows) <= 10
    assert sum("Bert" in row["text"] for row in rows) == 1
    reasons = manifest.outcome.reasons
    assert set(reasons) == {"duplicate", "common_phrase", "over_limit"}
    assert manifest.outcome.seen == manifest.outcome.kept + sum(reasons.values())
    rejected = list(read_rows(root / "evalset", "rejected/passages.parquet"))
    assert len(rejected) == sum(reasons.values())


def test_decontamination_removes_the_drawn_passages(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    held_out = story("Anna")
    notes = f"{story('Bert', 30)} {held_out[:400]} {story('Carl', 30)}"
    clean = cleaned(root, [(held_out, "test"), (notes, "train")])
    drawn_set = cloze(root, clean, ClozeSettings(), runner)
    manifest = decontaminate(root, clean, [("cloze", cloze_file(root, drawn_set))], DecontaminateSettings(), runner)
    [test, train] = [row for r in manifest.outputs for row in read_rows(root / manifest.folder, r.name)]
    assert test["text"] == held_out
    assert "Anna" not in train["text"]
    assert "Bert" in train["text"] and "Carl" in train["text"]


COMMON = [(story("Anna", 2), "test"), *((f"{story('Anna', 2)} {n}", "train") for n in range(5))]


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        ([("Some text.", "train")], "no cloze passage in the 0 test documents"),
        ([("x = f(y)\n" * 50, "test")], "no cloze passage in the 1 test documents"),
        (COMMON, "each of the 1 cloze passages of the test documents is a common phrase"),
    ],
)
def test_a_corpus_without_passages_gives_no_set_and_a_reason(
    tmp_path: Path, runner: Runner, documents: list[tuple[str, str]], reason: str
) -> None:
    root = Folder(tmp_path)
    clean = cleaned(root, documents)
    manifest = cloze(root, clean, ClozeSettings(), runner)
    assert cloze_file(root, manifest) is None and manifest.outputs == ()
    assert "cloze.jsonl" not in (root / manifest.folder).files()
    words = no_passages_message(manifest)
    assert words.startswith(reason) and "--lambada FILE" in words and "\n" not in words
    assert manifest.outcome.seen == sum(manifest.outcome.reasons.values())
    assert cloze(root, clean, ClozeSettings(), runner) == manifest
    kept = decontaminate(root, clean, [], DecontaminateSettings(), runner)
    assert kept.outcome.kept == len(documents)


def test_the_set_of_an_earlier_corpus_is_removed(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    assert cloze_file(root, cloze(root, cleaned(root, [(story("Anna"), "test")]), ClozeSettings(), runner))
    cloze(root, cleaned(root, [("x = f(y)", "test")]), ClozeSettings(), runner)
    assert "cloze.jsonl" not in (root / "evalset").files()


def test_code_signatures_and_tables_end_a_paragraph_of_prose() -> None:
    text = """Usage
=====
The first call opens the file. It is slow, e.g. on a network. See Dr. Who.
open(file, mode) Open a file and return it. Raise OSError upon failure.
A heading without a stop
Each ``name`` is looked up once. None) It was no sentence.
Notes
This begins after the heading. So does the next.
>>> open(1)
| cell | The cell holds prose. |
- A bullet begins here. And "it" ends (here)."""
    assert [[text[start:end] for start, end in run] for run in prose_runs(text)] == [
        ["The first call opens the file.", "It is slow, e.g. on a network.", "See Dr. Who."],
        *(["Raise OSError upon failure."], ["Each ``name`` is looked up once."]),
        ["This begins after the heading.", "So does the next."],
        *(["The cell holds prose."], ["A bullet begins here.", 'And "it" ends (here).']),
    ]


@given(st.text(st.sampled_from("Ab. \n(|") | st.characters(), max_size=300), st.integers(5, 20), st.integers(0, 20))
def test_any_text_gives_passages_within_bounds(text: str, least: int, more: int) -> None:
    last = 0
    for passage in passages(text, least, least + more):
        assert last <= passage.start < passage.end <= len(text)
        assert least <= len(passage.text.split()) <= least + more
        last = passage.end


def test_passages_of_real_prose_match_their_source(open_data: Path) -> None:
    text = "\n".join(texts_of(open_data / "text" / "novels_dev.jsonl.gz", 2))
    assert len(text) > 200_000
    found = list(passages(text, 30, 110))
    assert len(found) > 40
    for passage in found:
        assert " ".join(text[passage.start : passage.end].split())[:-1] == passage.text


LAST_WORDS = {
    "Brücke": "Der Müller ging über die Brücke und sah den Fluß. Öfter träumte er, daß er über die alte Brücke flöge. "
    "Ängstlich wurde er nie, wenn er am Ufer stand und hinüber sah zur alten Brücke.",
    "медведя": "Мальчик пошёл в лес и увидел большого медведя. Он испугался и побежал домой. Мать спросила его, что "
    "случилось в лесу. Мальчик ответил, что он увидел в лесу большого страшного медведя.",
    "학교에서": "학교에서 우리는 선생님을 만났다. 선생님은 우리에게 책을 주셨다. 우리는 책을 읽고 집으로 돌아와서 "
    "다시 학교 이야기를 했다. 내일도 우리는 친구와 함께 선생님을 만나서 공부하고 같이 노는 곳은 바로 학교에서.",
    "քաղաքում": "Մի անգամ մի մարդ ապրում էր մեծ քաղաքում։ Նա ամեն օր գնում էր շուկա և գնում էր հաց ու պանիր։ Երեկոյան "
    "նա վերադառնում էր տուն և պատմում էր երեխաներին այն մասին, ինչ տեսել էր մեծ քաղաքում։",
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
    assert (" " if spaced else "").join(text[passage.start : passage.end].split()).rstrip(".。։") == passage.text
    assert spaced == (word in ("Brücke", "медведя", "학교에서", "քաղաքում"))
    assert (last_unit(passage.text) is None) == spaced


def test_what_is_no_prose_gives_no_passage() -> None:
    for text in (
        "曹操见玄德。孙权见吕布。关公问周瑜。",  # no word of the end occurs before
        "第一回玄德见曹操\n第二回玄德见曹操\n第三回玄德见曹操",  # headings
        "曹操说：“你看，这是玄德，我们都认识这一位玄德。",  # an open quote
        "使用 import Python 语言，运行 a = b 得到结果，再运行 a = b 得到结果。",  # code
        "玄德 likes New York and Boston 玄德，去了 New York 玄德。",  # words that a passage without spaces would join
    ):
        assert list(passages(text, 5, 110)) == [], text


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
