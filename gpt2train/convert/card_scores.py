"""Scores of a run's model for its card, each with its error and what it was measured on, and names of cloze sets."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2train.store.counts import count_of
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import read_manifest

# OpenAI's file of LAMBADA's test set; other copies have its number of passages and its name.
LAMBADA_SHA256, LAMBADA_PASSAGES = "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226", 5153
OWN_CLOZE = "cloze.jsonl"  # file that the data flow draws from held-out documents
HEADLINE = "lambada_openai"  # first of the definitions of a cloze score
HASH_CHARS = 8  # characters of a file's hash that name a set
NORMAL_95 = 1.96  # standard errors of half a 95 % interval


@dataclass(frozen=True)
class Score:
    """Score of a model."""

    dataset: str  # data that it was measured on
    metric: str  # short name of the measure, as hubs write it
    label: str  # what is measured, in words
    value: float  # the score
    error: float | None = None  # standard error; None if not known
    examples: int | None = None  # number of examples; None if not known

    @property
    def name(self) -> str:
        """Measure with its data and the number of examples."""
        count = f", {count_of(self.examples, 'example')}" if self.examples is not None else ""
        return f"{self.label} ({self.dataset}{count})"

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval: of a share of examples Wilson's, else by the standard error; None if neither is known."""
        if self.metric == "accuracy" and self.examples and 0 <= self.value <= 1:
            share, spread = self.value, NORMAL_95**2 / self.examples
            middle = share + spread / 2
            half = math.sqrt(share * (1 - share) * spread + spread**2 / 4)
            return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
        if self.error is None:
            return None
        return self.value - NORMAL_95 * self.error, self.value + NORMAL_95 * self.error

    @property
    def text(self) -> str:
        """Score with its 95 % interval."""
        found = self.interval
        return f"{self.value:,.4g}" + (f" ({found[0]:,.3g} to {found[1]:,.3g})" if found else "")


def is_lambada(result: Mapping[str, Any]) -> bool:
    """Return True for a result on LAMBADA's test set, False for one on any other passages in its format."""
    named = result.get("passages") == LAMBADA_PASSAGES and "lambada" in str(result.get("data")).lower()
    return result.get("data_sha256") == LAMBADA_SHA256 or named


def cloze_set(result: Mapping[str, Any]) -> str:
    """Return a name of the passages of a result that no other passages have: `LAMBADA`, or one with the file's hash."""
    digest = str(result.get("data_sha256", ""))
    if digest == LAMBADA_SHA256:
        return "LAMBADA"
    return f"{'LAMBADA' if is_lambada(result) else 'cloze'} {digest[:HASH_CHARS]}".rstrip()


def cloze_title(result: Mapping[str, Any], measure: str) -> str:
    """Return a measure with its passages in words, as `cloze accuracy (own held-out text)`."""
    if is_lambada(result):
        return f"LAMBADA {measure}"
    data = str(result.get("data", "unknown set"))
    return f"cloze {measure} ({'own held-out text' if data == OWN_CLOZE else data})"


def definition_title(name: str, result: Mapping[str, Any]) -> str:
    """Return the name of a definition of a cloze score in words, without that of LAMBADA for other passages."""
    return "whole word" if name == HEADLINE and not is_lambada(result) else name.replace("_", " ")


def scores_of(run: Path, weights: str) -> tuple[Score, ...]:
    """Return the scores in a run's `eval/` and `task/`; empty if they belong to other weights.

    Args:
        run: run folder.
        weights: SHA-256 of `model.safetensors`.
    """
    merged = read_manifest(Folder(run / "merge"))
    if merged is None or ("model.safetensors", weights) not in [(file.name, file.sha256) for file in merged.outputs]:
        return ()
    found: list[Score] = []
    for folder, collect in (("eval", _evaluations), ("task", _of_task)):
        scored = read_manifest(Folder(run / folder))
        if scored and scored.inputs.get("merge") == merged.identity:
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                found += list(collect(run / folder))
    return tuple(found)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def _evaluations(folder: Path) -> Iterator[Score]:
    if lambada := read_object(folder / "lambada.json"):
        for name, found in lambada["definitions"].items():
            if name == lambada.get("headline", HEADLINE):
                count, error = int(lambada["passages"]), _number(found.get("standard_error"))
                by, data = f" by {name}", str(lambada.get("data"))
                if not is_lambada(lambada):
                    by, data = "", cloze_title(lambada, "set")
                accuracy, perplexity = float(found["accuracy"]), float(found["perplexity"])
                yield Score(data, "accuracy", f"last word{by}, accuracy", accuracy, error, count)
                yield Score(data, "perplexity", f"last word{by}, perplexity", perplexity, None, count)
    if held_out := read_object(folder / "perplexity.json"):
        count = int(held_out["documents"])
        for metric in ("word_perplexity", "bits_per_byte"):
            label = metric.replace("_", " ")
            yield Score("held-out documents", metric, label, float(held_out[metric]), None, count)
    if wiki := read_object(folder / "wikitext.json"):
        yield Score("WikiText", "perplexity", "adjusted perplexity", float(wiki["adjusted_perplexity"]))


def _of_task(folder: Path) -> Iterator[Score]:
    """Scores of a fine-tuning, of each part."""
    for part in ("valid", "test"):
        scores = read_object(folder / f"{part}.json")
        for name in ("accuracy", "f1", "majority", "exact_match", "loss", "perplexity"):
            if name in scores:
                yield Score(part, name, name.replace("_", " "), float(scores[name]), None, int(scores["samples"]))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
