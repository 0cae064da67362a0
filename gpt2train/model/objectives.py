"""Registry of training objectives: the data that a run learns from, and its loss; does not import torch.

A training is the same for all objectives: layout, optimizer, checkpoints and resume. An objective names the function
that opens its data, and may replace the loss. `next_token` predicts each next token of packed samples,
`classification` the class of each sample, and `answers` the tokens of answers after their prompts.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from gpt2train.plugins import NoOptions, Registry
from gpt2train.settings import Settings


@dataclass(frozen=True)
class Objective:
    """Specification of an objective.

    Functions are named as "module:function" and imported on first use, since torch takes 1-2 s.

    Attributes:
        data: function of the run's `RunConfig` and of "train" or "valid" that returns a
            `gpt2train.data.dataset.Dataset`, or None if a run has no validation data.
        options: settings model of the settings that only this objective has.
        loss: function of logits, targets and the batch's further tensors that returns the summed loss, a float32
            scalar. By default the cross entropy of the targets, without ever having all logits in memory.
        scores: function of the same arguments that returns a vector of sums for a validation, in `sum_dtype`, such as
            the number of right answers.
        sums: length of that vector, or of its part that does not depend on the number of classes.
        sums_per_label: further numbers in it for each class of a classifier.
        metrics: function of these sums over the validation set and of its number of counted targets that returns named
            numbers; they are logged as `valid_<name>`.
        best_metrics: names of those that are higher for better models, for `checkpoints.best_metric`.
        sequences: sequences of a sample: 2 for models with an encoder and a decoder.
        length: function of the settings of a training that returns the tokens that a sample takes from packed
            documents, without torch, and raises ValueError if they do not fit the model. By default `model.context`.
        predicts_text: True if every target that is not ignored is the next token of a text: validations then have bits
            per byte and a sample text.
    """

    data: str
    options: type[Settings] = NoOptions
    loss: str | None = None
    scores: str | None = None
    sums: int = 0
    sums_per_label: int = 0
    metrics: Callable[[Sequence[float], int], dict[str, float]] = lambda sums, counted: {}
    best_metrics: tuple[str, ...] = ()
    sequences: int = 1
    length: str | None = None
    predicts_text: bool = False


class SpanCorruptionOptions(Settings):
    """Settings of the objective span_corruption alone, the group [objective.options].

    Source of the defaults: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer".
    """

    task: Literal["spans", "prefix"] = "spans"
    """spans: the decoder writes the spans of tokens that are left out of the encoder's text. prefix: it continues the
    encoder's text, cut at a random place (prefix language modelling)."""
    noise_density: float = Field(0.15, gt=0, lt=1)
    """Share of the tokens that are left out."""
    mean_span: float = Field(3.0, ge=1, le=1000)
    """Mean length of a span in tokens."""
    sentinels: str = "<extra_id_{}>"
    """Names of the tokens that stand for spans in the tokenizer, {} for the numbers 0, 1, 2 …; or top: the last tokens
    of the vocabulary, counting down, which no text may contain."""
    sentinel_count: int = Field(100, ge=1, le=2**16)
    """Sentinels that there are."""
    end_id: int = Field(-1, ge=-1)
    """Token that ends input and target. -1: the tokenizer's token that ends a text."""

    @model_validator(mode="after")
    def _numbered(self) -> Self:
        if self.sentinels != "top" and self.sentinels.count("{}") != 1:
            raise ValueError(f"sentinels {self.sentinels!r} has no {{}} for the number; give <extra_id_{{}}>, or top")
        return self


OBJECTIVES: Registry[Objective] = Registry("objective")
OBJECTIVES.register("next_token", Objective(data="gpt2train.data.training_data:packed_data", predicts_text=True))
OBJECTIVES.register(
    "span_corruption",
    Objective(
        data="gpt2train.data.span_data:span_data",
        options=SpanCorruptionOptions,
        sequences=2,
        length="gpt2train.data.span_corruption:fitting_length",
    ),
)


class ClassificationOptions(Settings):
    """Options of the objective classification."""

    labels: str = ""
    """Names of the classes in the order of their numbers, as a JSON list, for the merged model; none by default."""

    @field_validator("labels")
    @classmethod
    def _is_list(cls, labels: str) -> str:
        label_names(labels)
        return labels


def label_names(labels: str) -> tuple[str, ...]:
    """Names of the classes, a JSON list of different strings; ValueError if it is none."""
    names = json.loads(labels) if labels else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
        raise ValueError("the names of the classes are a JSON list of different strings")
    return tuple(names)


def classification_metrics(sums: Sequence[float], counted: int) -> dict[str, float]:
    """Accuracy and F1: of class 1 if there are two, else the mean over the classes (macro).

    A class that is neither predicted nor present has an F1 of 0, as in scikit-learn. The sums are those of
    `gpt2train.model.classification.class_counts` over the whole set.
    """
    labels = len(sums) // 3
    right, predicted, actual = (sums[start : start + labels] for start in (0, labels, 2 * labels))
    scores = [2 * r / (p + a) if p + a else 0.0 for r, p, a in zip(right, predicted, actual, strict=True)]
    return {"accuracy": sum(right) / max(1, counted), "f1": scores[1] if labels == 2 else sum(scores) / labels}


OBJECTIVES.register(
    "classification",
    Objective(
        data="gpt2train.data.task_data:labelled_data",
        options=ClassificationOptions,
        scores="gpt2train.model.classification:class_counts",
        sums_per_label=3,
        metrics=classification_metrics,
        best_metrics=("accuracy", "f1"),
    ),
)
OBJECTIVES.register("answers", Objective(data="gpt2train.data.task_data:answer_data", predicts_text=True))
