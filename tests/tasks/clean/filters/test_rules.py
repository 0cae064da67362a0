"""Each filter rule at both sides of its threshold, on texts written by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.text_units import units_of
from gpt2train.errors import UserError
from gpt2train.settings import build
from tasks.clean.filters.c4 import C4Settings, c4
from tasks.clean.filters.cleanup import CleanupSettings, cleanup
from tasks.clean.filters.filter_chain import FilterSettings, apply, not_in_fingerprint
from tasks.clean.filters.fineweb import FineWebSettings, fineweb
from tasks.clean.filters.gopher import GopherSettings, gopher
from tasks.clean.filters.registry import Replacement
from tasks.clean.filters.repetition import RepetitionSettings, repeated_characters, repetition, top_characters
from tasks.clean.filters.verdict import Rejection, repeated


def reason(found: Rejection | Replacement | None) -> str | None:
    return found.reason if isinstance(found, Rejection) else None


def words(count: int, word: str = "story", stops: str = "the and") -> str:
    """`count` words, two of them stop words."""
    return " ".join([*stops.split(), *[word] * (count - len(stops.split()))])


GOPHER = GopherSettings(enabled=True)


@pytest.mark.parametrize(
    ("passes", "fails", "code"),
    [
        (words(50), words(49), "gopher_few_words"),
        (words(100_000), words(100_001), "gopher_many_words"),
        # Two stop words of three letters, 48 words of the length given.
        (words(50, "abc"), words(50, "ab"), "gopher_short_words"),
        (words(50, "a" * 10), words(50, "a" * 11), "gopher_long_words"),
        (words(50) + "#" * 5, words(50) + "#" * 6, "gopher_hashes"),
        (words(50) + "…" * 5 + " x", words(50) + "…" * 4 + "...... x", "gopher_ellipses"),
        (*("\n".join(["- " + words(10)] * n + [words(10)]) for n in (9, 19)), "gopher_bullet_lines"),
        (
            *("\n".join([words(50) + end] * n + [words(50)] * (10 - n)) for n, end in ((3, "..."), (4, "…"))),
            "gopher_ellipsis_lines",
        ),
        (words(80) + " 1234" * 20, words(79) + " 1234" * 21, "gopher_words_without_letters"),
        (words(50, stops="The BE"), words(50, stops="the cat"), "gopher_few_stop_words"),
        (words(50, stops="the be"), words(50, stops="the The"), "gopher_few_stop_words"),
    ],
)
def test_each_gopher_rule_has_its_threshold(passes: str, fails: str, code: str) -> None:
    assert reason(gopher(passes, GOPHER)) is None
    assert reason(gopher(fails, GOPHER)) == code


CHINESE = "今天天气很好，我们去公园散步。"  # 13 characters with their punctuation marks


def test_texts_without_spaces_are_measured_in_characters() -> None:
    assert reason(gopher(CHINESE * 4, GOPHER)) is None  # neither the length nor the stop words of English are tested
    assert reason(gopher(CHINESE * 3, GOPHER)) == "gopher_few_words"
    stops = GopherSettings(stop_words=("的", "我们", "天"), min_stop_words=2)
    assert reason(gopher(CHINESE * 4, stops)) is None
    assert reason(gopher("春眠不觉晓，处处闻啼鸟。" * 6, stops)) == "gopher_few_stop_words"
    assert reason(gopher(CHINESE + words(50), GOPHER)) is None
    assert reason(gopher(CHINESE + words(50, "ab"), GOPHER)) == "gopher_short_words"
    lines = [CHINESE * 3 + "？", CHINESE * 4, CHINESE * 5]
    assert reason(fineweb("\n".join(lines), FineWebSettings(enabled=True))) is None
    assert top_characters(units_of("天气天气天气"), 2) == 6
    good = ["他说：“走吧！我们去公园。”", "今天天气很好。", "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少？"]
    text = "\n".join([*good[:2], "好。", "首页 | 关于我们", good[2]])
    assert c4(text, C4Settings(enabled=True)) == Replacement("\n".join(good))


def test_sentences_end_with_the_marks_of_their_script() -> None:
    inside = FineWebSettings(max_short_lines=1, max_repeated_characters=1)
    for sentence in (
        *("यह एक अच्छा दिन है।", "یہ ایک اچھا دن ہے۔", "هل هذا يوم جيد حقا؟", "Սա լավ օր է այսօր։", "ይህ ጥሩ ቀን ነው።"),
        *("នេះជាថ្ងៃល្អ។", "ဒါက နေ့ကောင်းပါ။", "Il dit : « C’est un beau jour »"),
    ):
        assert c4("\n".join([sentence] * 5), C4Settings()) == Replacement("\n".join([sentence] * 5))
        assert fineweb("\n".join([sentence] * 5), inside) is None
        assert reason(fineweb("\n".join([sentence[:-1]] * 5), inside)) == "fineweb_few_ended_lines", sentence


def test_texts_without_words_letters_or_repetition_pass_if_allowed() -> None:
    assert reason(gopher("", GopherSettings(min_words=0))) == "gopher_few_words"
    assert reason(gopher("1234 5678", GopherSettings(min_words=0, min_letter_words=0, min_stop_words=0))) is None
    assert repetition("one two", RepetitionSettings()) is repetition("", RepetitionSettings()) is None
    assert fineweb("", FineWebSettings()) is None


def lines(different: int, again: int, text: str = "{}") -> str:
    return "\n".join([text.format(chr(0x4E00 + n)) for n in range(different)] + [text.format(chr(0x4E00))] * again)


OFF = {"lines": 1, "paragraphs": 1, "line_characters": 1, "paragraph_characters": 1, "top": (), "repeated": ()}


@pytest.mark.parametrize(
    ("setting", "limit", "passes", "fails", "code"),
    [
        ("lines", 0.3, lines(7, 3), lines(6, 4), "gopher_repeated_lines"),
        ("paragraphs", 0.3, lines(7, 3).replace("\n", "\n\n"), lines(6, 4).replace("\n", "\n\n\n"),
         "gopher_repeated_paragraphs"),
        # 10 and 11 characters again, of 50 in all.
        ("line_characters", 0.2, "a" * 10 + "\n" + "a" * 10 + "\n" + "b" * 28,
         "a" * 11 + "\n" + "a" * 11 + "\n" + "b" * 26,
         "gopher_repeated_line_characters"),
        ("paragraph_characters", 0.2, "a" * 10 + "\n\n" + "a" * 10 + "\n\n" + "b" * 26,
         "a" * 11 + "\n\n" + "a" * 11 + "\n\n" + "b" * 24, "gopher_repeated_paragraph_characters"),
        # "aa bb" twice is 10 characters, of 50 and of 49.
        ("top", ((2, 0.2),), "aa bb aa bb " + "c" * 38, "aa bb aa bb " + "c" * 37, "gopher_top_2_gram"),
        # "aa bb cc" again is 6 characters, of 60 and of 59.
        ("repeated", ((3, 0.1),), "aa bb cc aa bb cc " + "d" * 42, "aa bb cc aa bb cc " + "d" * 41,
         "gopher_repeated_3_grams"),
    ],
)  # fmt: skip
def test_each_repetition_rule_has_its_threshold(setting: str, limit: Any, passes: str, fails: str, code: str) -> None:
    settings = RepetitionSettings(**{**OFF, "enabled": True, setting: limit})  # type: ignore[arg-type]
    assert reason(repetition(passes, settings)) is None
    assert reason(repetition(fails, settings)) == code


@given(st.lists(st.sampled_from(["a", "bb", "c", "dd"]), max_size=30), st.integers(1, 5))
def test_repeated_n_grams_equal_the_reference_implementation(words: list[str], length: int) -> None:
    grams = [tuple(words[n : n + length]) for n in range(len(words) - length + 1)]
    noted: list[tuple[str, ...]] = []  # not those inside one that was skipped
    characters, place = 0, 0
    while place < len(grams):
        again = grams[place] in noted
        characters += again * len("".join(grams[place]))
        noted += [] if again else [grams[place]]
        place += length if again else 1
    assert repeated_characters(words, length) == characters <= len("".join(words))
    counts = {gram: grams.count(gram) for gram in grams}
    most = max(counts.values(), default=0)
    longest = max((len(" ".join(gram)) for gram, count in counts.items() if count == most), default=0)
    assert top_characters(words, length) == (most * longest if most > 1 else 0)
    assert repeated(words) == (len(words) - len(set(words)), len("".join(words)) - len("".join(set(words))))


SENTENCES = "\n".join(f"This is the sentence number {n}." for n in range(5))


@pytest.mark.parametrize(
    ("passes", "fails", "code"),
    [
        (SENTENCES, SENTENCES + "\nLorem Ipsum dolor.", "c4_lorem_ipsum"),
        (SENTENCES, SENTENCES + "\n{", "c4_curly_bracket"),
        (SENTENCES, SENTENCES.rpartition("\n")[0], "c4_few_sentences"),
        ("One is here. Two is there! Three? Is it? \"Five.\"", "One is here. Two is there! Three? Is it five 5.5?",
         "c4_few_sentences"),
    ],
)  # fmt: skip
def test_each_c4_rule_has_its_threshold(passes: str, fails: str, code: str) -> None:
    assert c4(passes, C4Settings(enabled=True)) == Replacement(passes)
    assert reason(c4(fails, C4Settings(enabled=True))) == code


def test_c4_keeps_or_drops_each_line() -> None:
    stay = ("Three words stay.", 'He said "it is so"', f"One word is {'a' * 999}.", "We know cookies well here.")
    go = ("Two words.", "There is no end to it", "It ends with dots...", f"One word is {'a' * 1000}.")
    legal = ("Please enable JavaScript to read this.", "Read our Privacy Policy before you go.")
    for line in (*stay, *go, *legal):
        found = c4(f"{SENTENCES}\n{line}", C4Settings(enabled=True))
        assert found == Replacement(f"{SENTENCES}\n{line}" if line in stay else SENTENCES), line


def test_each_c4_rule_can_be_switched_off() -> None:
    text = SENTENCES + "\nSee it there[1][edit]. {\nthere is no end"
    settings = C4Settings(curly_bracket=False, terminal_punctuation=False, citations=False)
    assert c4(text, settings) == Replacement(text)
    assert c4(text.replace(" {", ""), C4Settings()) == Replacement(SENTENCES + "\nSee it there.")


def prose(count: int, end: str, start: int = 0) -> list[str]:
    """Different lines of ten words and 60 characters or so."""
    return [f"Line {n:05d} has some more words than a short one would{end}" for n in range(start, start + count)]


@pytest.mark.parametrize(
    ("passes", "fails", "code"),
    [
        (prose(12, ".") + prose(88, "", 12), prose(11, ".") + prose(89, "", 11), "fineweb_few_ended_lines"),
        # Of 30 characters.
        (*([f"a b c d e f g h i {n:011d}." for n in range(short)] + prose(100 - short, ".") for short in (67, 68)),
         "fineweb_short_lines"),
        # A line of 40 characters again, in 4,000 characters and in 3,999.
        (["a b c d " + "a" * 31 + "."] * 2 + ["a b c d " + "b" * n + "." for n in (3911,)],
         ["a b c d " + "a" * 31 + "."] * 2 + ["a b c d " + "b" * n + "." for n in (3910,)], "fineweb_repeated_lines"),
        # Three line ends for ten words, then for nine.
        (["a" * 40 + f"{n}. b c" for n in range(3)] + ["d" * 40 + "."], ["a" * 40 + f"{n}. b c" for n in range(2)]
         + ["a" * 42 + " b", "d" * 40 + "."], "fineweb_list"),
    ],
)  # fmt: skip
def test_each_fineweb_rule_has_its_threshold(passes: list[str], fails: list[str], code: str) -> None:
    assert reason(fineweb("\n".join(passes), FineWebSettings(enabled=True))) is None
    assert reason(fineweb("\n".join(fails), FineWebSettings(enabled=True))) == code


JAVASCRIPT = "JavaScript".ljust(255, "x")


@pytest.mark.parametrize(
    ("task", "text", "language", "code"),
    [
        *(("remove_512", "a" * length, "en", code) for length, code in ((511, "short_text"), (512, None))),
        ("remove_256_javascript", JAVASCRIPT, "en", "short_javascript"),
        *(("remove_256_javascript", text, "en", None) for text in (f"{JAVASCRIPT}x", "x" * 20)),
        *(("remove_512_non_english", "a" * 511, language, "short_not_english") for language in ("de", None)),
        *(("remove_512_non_english", "a" * length, language, None) for length, language in ((511, "en"), (512, "de"))),
    ],
)
def test_each_cleanup_task_drops_its_texts(task: str, text: str, language: str | None, code: str | None) -> None:
    found = cleanup(text, build(CleanupSettings, {"tasks": [task]}), language)
    assert reason(found) == code and (code or found is None)


def test_every_task_of_the_cleanup_applies_in_turn() -> None:
    """In Megatron-LM the tasks behind ftfy_fix_text never ran, nor those behind the first that applied."""
    settings = build(CleanupSettings, {"tasks": ["general_cleaning", "ftfy_fix_text", "remove_512"]})
    text = "one  two\nthree.\n four" + " x" * 300
    assert cleanup(text, settings, "en") == Replacement("one two three.\n four" + " x" * 300)
    assert reason(cleanup("short  text", settings, "en")) == "short_text"
    with pytest.raises(UserError, match="remove_512"):
        build(CleanupSettings, {"tasks": ["remove_5"]})


def test_all_rules_are_off_by_default() -> None:
    for text in ("", "a", "{ # … lorem ipsum", "a b\n" * 50, "mail me@example.org at 8.8.8.8"):
        assert apply(text, None, FilterSettings()) == (text, None, {})
        assert cleanup(text, CleanupSettings(), None) is None
    assert all(not_in_fingerprint(FilterSettings())[name] is True for name in ("fasttext", "fineweb_edu"))


def test_rules_run_in_order_and_the_first_one_ends() -> None:
    everything = {name: {"enabled": True} for name in ("repetition", "gopher", "c4", "fineweb")}
    settings = build(FilterSettings, {**everything, "pii": {"emails": True}})
    assert reason(apply("a b c d e\n" * 30 + "{", "en", settings).found) == "gopher_repeated_lines"
    assert reason(apply("nothing but {", "en", settings).found) == "gopher_few_words"
    assert reason(apply(" ".join(prose(20, ".")), "en", settings).found) == "gopher_top_3_gram"
    good = " ".join(f"The {a} and the {a.lower()} went to town, and that was well with them." for a in "ABCDEF")
    assert reason(apply(good, "en", build(FilterSettings, {"c4": {"enabled": True}})).found) is None
    left = apply(good + " Ask me@there.example.", "en", build(FilterSettings, {"pii": {"emails": True}}))
    assert left == (good + " Ask email@example.com.", None, {"masked": 1, "masked_emails": 1})
