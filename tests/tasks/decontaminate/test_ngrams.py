"""The n-gram index against a reference implementation, in all scripts; evaluation sets, and planted passages."""

import gzip
import json
import re
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.text_units import UNSPACED, spaced_word
from gpt2train.errors import UserError
from tasks.decontaminate.eval_sets import EvaluationSet, check_sets, find_sets, passages
from tasks.decontaminate.folding import IDEOGRAPH, IGNORED, LETTER, folded, letters
from tasks.decontaminate.ngrams import NgramIndex, distinct, word_spans, words_of
from tasks.decontaminate.step import DecontaminateSettings, plan_cuts, remove
from tests.tasks.corpus import read_jsonl, texts_of

# Few words, so that n-grams meet; İ grows when lower-cased, ß and Σ change.
WORDS = st.sampled_from(["a", "b", "A", "c", "İ", "ß", "ΣΑΣ", "_x", "12"])
GAPS = st.sampled_from([" ", "  ", ", ", ".\n", "-"])
TEXTS = st.lists(st.tuples(WORDS, GAPS), max_size=30).map(lambda parts: "".join(w + g for w, g in parts))


def plain_matches(texts: Sequence[str], text: str, longest: int, shortest: int) -> dict[tuple[int, int], list[int]]:
    """(first word, words) of every n-gram and the texts of the set that hold it, by comparing everything."""
    found: dict[tuple[int, int], list[int]] = {}
    words = words_of(text)
    for number, other in enumerate(texts):
        known = words_of(other)
        length = min(len(known), longest)
        if len(known) < shortest:
            continue
        for place in range(len(known) - length + 1):
            for start in range(len(words) - length + 1):
                if words[start : start + length] == known[place : place + length]:
                    holders = found.setdefault((start, length), [])
                    holders += [number] if number not in holders else []
    return found


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    NgramIndex(["one two"], 2, 2)


@given(st.lists(st.integers(1, 2), max_size=40))
def test_n_grams_with_one_hash_are_distinct(words: list[int]) -> None:
    starts, numbers = np.arange(len(words)), np.array(words, dtype=np.uint32)
    lengths = np.minimum(3, len(words) - starts)
    grams = [tuple(words[start : start + 3]) for start in range(len(words))]
    of_words = np.array([hash(gram) & 0xFFFF for gram in grams], dtype=np.uint64)
    for hashes in (of_words, np.zeros(len(words), dtype=np.uint64)):
        first, found = distinct(hashes, numbers, starts, lengths, 3)
        assert [grams[at] for at in first] == list(dict.fromkeys(grams))
        assert [grams[first[number]] for number in found] == grams


@given(st.lists(TEXTS, max_size=6), TEXTS, st.integers(1, 4), st.integers(0, 4))
def test_matches_equal_the_reference_implementation(texts: list[str], text: str, shortest: int, more: int) -> None:
    index = NgramIndex(texts, ngram=shortest + more, min_ngram=shortest)
    matches = index.matches(text)
    found = {(match.start, match.length): index.sources(match.gram) for match in matches}
    assert found == plain_matches(texts, text, shortest + more, shortest)
    assert matches == sorted(set(matches))
    assert index.ignored == sum(len(words_of(t)) < shortest for t in texts)


@given(st.text(min_size=1) | TEXTS, st.text(), st.text())
def test_any_text_is_found_in_any_context(text: str, before: str, behind: str) -> None:
    found = NgramIndex([text], ngram=3, min_ngram=2).matches(f"{before} {text} {behind}")
    assert bool(found) == (len(words_of(text)) >= 2)


@given(st.text(max_size=3), st.text(max_size=3))
def test_texts_equal_in_lower_case_match_in_the_kernel(one: str, other: str) -> None:
    if words_of(f"a {one}") == words_of(f"a {other}") and len(words_of(one)) == 1:
        assert NgramIndex([f"a {one}"], 2, 2).matches(f"a {other}")


LETTERS = "".join(chr(code) for code, kind in enumerate(letters().kinds.tolist()) if kind >= LETTER)
SINGLES = "".join(filter(IDEOGRAPH.fullmatch, LETTERS))
PASSED = "".join(chr(code) for code, kind in enumerate(letters().kinds.tolist()) if kind == IGNORED)
LETTER_RE = f"(?:(?![{SINGLES}])[{re.escape(LETTERS)}])"
LINE_END = r"[-\u2010\xad][ \t\r]*\n[ \t\r]*(?!\n)"
INSIDE = f"(?:[{re.escape(PASSED)}]|{LINE_END})*"
TWIN = re.compile(rf"\[(?:[0-9][0-9 ,-]{{0,10}}|[a-z])\]|([{SINGLES}]|{LETTER_RE}(?:{INSIDE}{LETTER_RE})*){INSIDE}")
PARTS = ["har", "b", "\u00ad", "\u200b", "-", "-\n", "- \r\n ", "\n", " ", "[3]", "[", "12", ", ", "]", "[a]", "_"]
ODD_PARTS = ["中", "の", "а", "𝐡", "ﬁ", "²", "\u0301", "İ", "ß", "\u02bc", "\ufe0f", "\ud800"]
PIECES = st.lists(st.sampled_from(PARTS + ODD_PARTS) | st.characters(exclude_categories=())).map("".join)


def test_every_letter_is_folded_alike_in_both_cases() -> None:
    """The kernel must pass whatever is equal when folded, or a passage would stay unseen.

    Greek eta, nu and upsilon look like h, n and y in capitals, but like n, v and u in small letters.
    """
    same = {"ABEZHIKMNOPTYX": "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABESIJKMHOPCTYXQWY": "АВЕЅІЈКМНОРСТУХԚԜҮ"}
    assert {"".join(map(folded, alike)) for alike in same.values()} == {latin.lower() for latin in same}
    kinds = letters().kinds
    for code in [*range(0xD800), *range(0xF900, 0x20000), *range(0xE0000, 0xE0200)]:
        letter = chr(code)
        word = bool(re.match(rf"\w|{spaced_word()}", letter)) and bool(folded(letter))
        assert (kinds[code] >= LETTER) == word, hex(code)
        for case in (letter.upper(), letter.lower()):
            other_in_capitals = unicodedata.normalize("NFKD", letter)[0] in "ΗηΝνΥυ"
            if word and len(case) == 1 and case.lower() == letter.lower() and not other_in_capitals:
                assert folded(case) == folded(letter), hex(code)


@given(st.text() | TEXTS | PIECES)
def test_words_equal_the_reference_implementation(text: str) -> None:
    assert word_spans(text) == [found.span(1) for found in TWIN.finditer(text) if found[1]]
    assert len(words_of(text)) == len(word_spans(text))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("harbour at night", "HARBOUR At nigHT"),
        ("harbour at night", "har\u00adbour at\u200b ni\u2060ght"),
        ("harbour at night", "har-\nbour at ni\u00ad\r\n  ght"),
        ("harbour at night", "_harbour_ at __night__"),
        ("harbour at night", "harbour[3] at night[12, 14][a]"),
        ("harbour at night", "harbour² at¹⁰ night"),
        ("harbour at night", "𝐡𝐚𝐫𝐛𝐨𝐮𝐫 𝒂𝒕 ｎｉｇｈｔ"),
        ("harbour at night", "hаrbоur аt nіght"),
        ("harbour at night", "hαrbοur αt nιght"),
        ("THE NEW HOUSE OF KEYS", "ΤΗΕ ΝΕW ΗΟUSΕ ΟF ΚΕΥS"),
        ("THE NEW HOUSE OF KEYS", "ТНЕ NЕW НОUЅЕ ОF КЕҮЅ"),
        ("harbour at night", "ʜᴀʀʙᴏᴜʀ ᴀᴛ ɴɪɢʜᴛ"),
        ("Το νησί του Αιγαίου", "Το νησι\u0301 του Αιγαι\u0301ου"),
        ("Старая гавань спит", "СТАРАЯ ГАВАНЬ СПИТ"),
        ("the fish don't", "the ﬁsh don\u02bct"),
        ("naïve café", "naive cafe"),
        ("naïve café", "nai\u0308ve cafe\u0301"),
        ("Вода и Хлеб", "ВОДА И ХЛЕБ"),
        ("ΣΑΣ", "σας"),
        ("人人生而自由", "人人，生而自由。"),
        ("یک کتاب خوب می خواهم", "يك كتاب خوب مى خواهم"),
        ("محمد في البيت", "محـــمد في البـيت"),
        ("1984 में 25 जून", "१९८४ में २५ जून"),
        ("عام 1984", "عام ١٩٨٤"),
    ],
)
def test_texts_that_read_the_same_match(one: str, other: str) -> None:
    assert words_of(one) == words_of(other)
    assert NgramIndex([one], 2, 1).matches(other)


def test_brackets_that_are_no_reference_marks_are_read() -> None:
    words = "x he said 1999 2001 500 y well known a b"
    assert words_of("x [he] said [1999-2001-500] y[2] well-known a-b") == words.split(" ")


def test_equal_hashes_alone_are_no_match() -> None:
    texts = ["one two three four", "five six seven eight"]
    index = NgramIndex(texts, ngram=2, min_ngram=2)
    text = "two three one two six five six eight seven eight"
    words = words_of(text)
    places = np.arange(len(words) - 1)
    pairs = np.repeat(places, index.size), np.tile(np.arange(index.size), len(places))
    found = {match.start for match in index._verify(text, *pairs)}  # as if every window had the hash of every n-gram
    known = {tuple(words_of(t)[i : i + 2]) for t in texts for i in range(3)}
    assert found == {start for start in places.tolist() if tuple(words[start : start + 2]) in known} != set()


def test_passages_of_one_beginning_are_compared_in_linear_time() -> None:
    """CPU time: 24 million pairs of a window and an n-gram with its first words took 8 s and 1.5 GB."""
    beginning = "the following are multiple choice questions with answers about"
    index = NgramIndex([f"{beginning} subject {number} of {'one two three ' * 4}" for number in range(4000)])
    text = f"{beginning} subject 7 of one two. " * 3000
    began = time.process_time()
    assert {index.sources(match.gram)[0] for match in index.matches(text)} == {7}
    assert time.process_time() - began < 2


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


def test_cuts_end_at_the_sentence_boundaries_of_chinese_and_hindi() -> None:
    text = "第一句在这里。他说：“第二句。”然后这是考试的文章中的一句话，再来一句！最后一句。"
    index = NgramIndex(["这是考试的文章中的一句话"], 8, 8)
    cuts = plan_cuts(text, index.matches(text), margin=1)
    assert [text[cut.start : cut.end] for cut in cuts] == ["然后这是考试的文章中的一句话，再来一句！"]
    text = "पहला वाक्य यहाँ है। यह परीक्षा का एक वाक्य है जो यहाँ लिखा है। अंतिम वाक्य।"
    index = NgramIndex(["परीक्षा का एक वाक्य है जो यहाँ लिखा है"], 8, 8)
    [cut] = plan_cuts(text, index.matches(text), margin=0)
    assert text[cut.start : cut.end] == " यह परीक्षा का एक वाक्य है जो यहाँ लिखा है।"


def test_each_ideograph_is_a_word_and_vowel_signs_are_part_of_theirs() -> None:
    """Not the ends of words: 13 words of Tamil would be three, which any text may share."""
    for text in ("佐々木さんの話", "ｶﾅの話", "ㄅㄆㄇ", "ꆈꌠꁱ"):
        assert len(words_of(text)) == len(re.findall(r"\w", text)), text
    for text in ("भारत की राजधानी क्या है", "தமிழ் ஒரு மொழி", "മലയാളം സംസാരിക്കുന്നവർ", "ދިވެހި ބަސް", "བོད་སྐད་"):
        assert len(words_of(text)) == len(re.split("[ ་]", text.strip("་"))), text


def sets(folder: Path, name: str, data: bytes, key: str = "text") -> list[EvaluationSet]:
    (folder / name).write_bytes(data)
    return find_sets((), [str(folder / name)], key)


def rows(folder: Path, name: str, data: bytes, key: str = "text") -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for item in sets(folder, name, data, key) for row in passages(item)]


def test_json_lines_plain_text_and_parquet_are_read(tmp_path: Path) -> None:
    """Plain text is split into lines and paragraphs."""
    data = b'{"text": "x y"}\n\n{"text": "z"}\n{"text": " "}'
    for name in ("s.jsonl", "s.ndjson", "s.json", "s.jsonl.gz"):
        packed = gzip.compress(data) if name.endswith(".gz") else data
        assert rows(tmp_path, name, packed) == [("s", 1, "x y"), ("s", 3, "z")]
    data = "\ufeffone\r\ntwo\n \nthree\n\nfour\nfive".encode()
    expected = [(1, "one"), (2, "two"), (1, "one\ntwo"), (4, "three"), (6, "four"), (7, "five"), (6, "four\nfive")]
    assert rows(tmp_path, "s.txt", data) == [("s", *row) for row in expected]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        table = pa.table({"n": [1, 2], "q": pa.array(["x", "y"], kind)})
        pq.write_table(table, tmp_path / "s.parquet")
        with pa.ipc.new_file(str(tmp_path / "s.arrow"), table.schema) as file:
            file.write_table(table)
        for name in ("s.parquet", "s.arrow"):
            assert rows(tmp_path, name, (tmp_path / name).read_bytes(), "q") == [("s", 1, "x"), ("s", 2, "y")]


def test_letters_that_are_written_apart_are_found(tmp_path: Path) -> None:
    """As files of a Mac may have them; the cleaning joins those of the documents."""
    apart = unicodedata.normalize("NFD", "한국어 말하다")
    [(_, _, text)] = rows(tmp_path, "s.txt", apart.encode())
    assert NgramIndex([text], 2, 2).matches("그 한국어 말하다")


def test_a_row_without_a_text_has_no_passage_and_a_key_may_be_nested(tmp_path: Path) -> None:
    found = [{"q": {"stem": "x"}}, {"q": {"stem": None}}, {"q": {"stem": "y\ud800"}}]
    data = b"".join(json.dumps(row).encode() + b"\n" for row in found)
    assert rows(tmp_path, "s.jsonl", data, "q.stem") == [("s", 1, "x"), ("s", 3, "y?")]
    pq.write_table(pa.table({"q": [{"stem": b"x"}, {"stem": None}]}), tmp_path / "t.parquet")
    assert rows(tmp_path, "t.parquet", (tmp_path / "t.parquet").read_bytes(), "q.stem") == [("t", 1, "x")]


def test_sets_of_one_name_get_distinct_names(tmp_path: Path) -> None:
    for name in ("lambada.txt", "a.txt", "a.jsonl", "b.txt"):
        (tmp_path / name).write_text('{"text": "x"}')
    found = find_sets([("lambada", str(tmp_path / "b.txt"))], [str(tmp_path)], "text")
    assert [item.name for item in found] == ["lambada", "a", "a-2", "b", "lambada-2"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"txt": "y"}\n', r"a.jsonl, row 2 \(KeyError\): expected {\"text\": …}"),
        ("a.jsonl", b'{"text": "x"}\nplain\n', r"row 2 \(JSONDecodeError\)"),
        ("a.jsonl", b"[]", r"row 1 \(KeyError\)"),
        ("a.jsonl", b'{"text": 3}', "row 1: 'text' is int; expected text, see decontaminate.key"),
        ("a.txt", b"x\ny\xff", "a.txt, line 2: it is not UTF-8"),
        ("a.jsonl", b"\n\n", "a.jsonl holds no passage; give another file"),
        ("a.txt", b"", "a.txt holds no passage"),
        ("a.parquet", b"PAR1", "a.parquet is not a valid Parquet file"),
        ("a.arrow", b"plain", "a.arrow is not a valid Arrow file"),
        ("a.jsonl.gz", b"plain", "a.jsonl.gz is not a complete .gz file"),
    ],
)
def test_files_that_are_no_evaluation_set_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows(tmp_path, name, data)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["x"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"has no column 'text'; it has 'question', 'n'; name it by decontaminate\.key"):
        check_sets([str(tmp_path / "a.parquet")], "text")
    (tmp_path / "a.parquet").unlink()  # the check reads only the first passage
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\nbroken\n')
    check_sets([str(tmp_path)], "text")
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        check_sets([str(tmp_path / "nowhere.txt")], "text")


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
    return lambda text: re.sub(r"\b(\w{2})(\w{2,})\b", rf"\1{mark}\2", text)


def every(count: int, change: Callable[[str, int], str]) -> Callable[[str], str]:
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_passage_is_cut_out(kind: str) -> None:
    """No word of it is left, but those in which an n-gram may begin or end."""
    assert (KINDS[kind](f"{PROSE} don't ﬂ") != f"{PROSE} don't ﬂ") == (kind != "exact")
    index, planted = NgramIndex([PROSE]), KINDS[kind](PROSE)
    words = words_of(planted)
    for at in (0, len(FILLER) // 2, len(FILLER)):
        text, _ = remove(f"{FILLER[:at]} {planted} {FILLER[at:]}", index, DecontaminateSettings())
        kept = words_of(text)
        runs = {tuple(kept[start : start + 5]) for start in range(len(kept))}
        assert not [start for start in range(len(words) - 4) if tuple(words[start : start + 5]) in runs]
    assert index.matches(FILLER) == []


def test_clean_texts_have_nothing_of_lambada(real_data: Path) -> None:
    index = NgramIndex([row["text"] for row in read_jsonl(real_data / "lambada" / "lambada_test.jsonl")])
    files = [real_data / "text" / f"{name}_dev.jsonl.gz" for name in ("imdb", "reuters", "speeches")]
    texts = [text for file in files for text in texts_of(file, 1000)]
    assert len(texts) > 2000 and not [text[:200] for text in texts if index.matches(text)]
