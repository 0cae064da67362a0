"""Filter by a fastText classifier that the user brings, such as that of DCLM."""

import functools
import subprocess
import sys
from typing import Any

from pydantic import Field

from gpt2train.errors import UserError
from gpt2train.settings import Settings
from tasks.clean.filters.registry import FilterModel, LocalModel, TextFilter, register_filter
from tasks.clean.filters.verdict import Rejection

ALL_LABELS = -1
CHECK_SECONDS = 600
# The loader reads a damaged file for ever, into memory without bound.
LIST_LABELS = """
import os, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (2 * os.path.getsize(sys.argv[1]) + 2**28,) * 2)
except ImportError:
    pass
import fasttext
labels, _ = fasttext.load_model(sys.argv[1]).predict("the", -1)
sys.stdout.reconfigure(encoding="utf-8")
print("\\n".join(sorted(labels)))
"""


class FastTextSettings(Settings):
    """Filter by a fastText classifier, as DCLM (Li et al. 2024)."""

    model: str | None = None
    """Local file of a supervised fastText model (.bin or .ftz); turns the filter on."""
    label: str = Field("__label__hq", min_length=1)
    """Label of good texts."""
    threshold: float = Field(0.018112, ge=0, le=1)
    """Minimum probability of the label."""

    @property
    def enabled(self) -> bool:
        """True if there is a model."""
        return self.model is not None


def fasttext_score(text: str, settings: FastTextSettings, model: LocalModel) -> Rejection | None:
    """Rejection of a text whose label is improbable; reason: `fasttext_low`."""
    score = score_of(text, settings.label, model)
    if score >= settings.threshold:
        return None
    return Rejection("fasttext_low", f"{score:.4f}, at least {settings.threshold:g} expected")


def score_of(text: str, label: str, model: LocalModel) -> float:
    """Probability of a label, rounded to 6 significant digits, of the 7 that a float32 has.

    The lines of the text are joined with spaces, as DCLM does.
    """
    line = " ".join(text.strip().splitlines()).replace("\n", " ").encode(errors="ignore").decode()
    labels, probabilities = _opened(model).predict(line, ALL_LABELS)
    found = dict(zip(labels, probabilities, strict=True)).get(label, 0.0)
    return float(f"{min(found, 1.0):.6g}")


def check_model(model: LocalModel, settings: FastTextSettings) -> None:
    """Check that the file is a fastText classifier with the label.

    In a process of its own: fastText's loader trusts the file, and a damaged one can end the process.

    Raises:
        UserError: It is not.
    """
    labels = _labels_of(model.path)
    if not labels:
        remedy = "give the .bin or .ftz file of one with --clean.filters.fasttext.model"
        raise UserError(f"{model.path} is no supervised fastText model, or damaged; {remedy}")
    if settings.label not in labels:
        remedy = "give one of its labels with --clean.filters.fasttext.label"
        raise UserError(f"{model.path} has no label {settings.label}, but {', '.join(labels[:5])}; {remedy}")


def _labels_of(path: str) -> list[str]:
    """Labels of a model file, sorted; none if it cannot be read."""
    command = [sys.executable, "-c", LIST_LABELS, path]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=CHECK_SECONDS).stdout.decode().split()
    except (subprocess.SubprocessError, UnicodeDecodeError):
        return []


@functools.lru_cache(maxsize=1)
def _opened(model: LocalModel) -> Any:
    import fasttext

    return fasttext.load_model(model.path)


register_filter(
    "fasttext",
    TextFilter(FastTextSettings, fasttext_score, order=560, file=FilterModel("model", check_model)),
)
