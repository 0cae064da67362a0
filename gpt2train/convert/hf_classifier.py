"""Sequence classifiers as Hugging Face folders: the classes `…ForSequenceClassification` of transformers.

The fields of `config.json` are those of the language model, with another architecture and the names of the classes. Its
`pad_token_id` is required: transformers reads the last token of a sample that is not this one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt2train.errors import UserError

SUFFIX = "ForSequenceClassification"
LANGUAGE_MODELS = ("LMHeadModel", "ForCausalLM")
MAX_LABELS = 2**16
DEFAULT_LABELS = 2  # of transformers, whose files leave out `id2label` then


def classifier_config(config: dict[str, Any], labels: int, names: Sequence[str], pad: int) -> dict[str, Any]:
    """Return the fields of `config.json` of a classifier.

    Args:
        config: fields of the language model.
        labels: number of classes.
        names: names of the classes; those of transformers if empty.
        pad: id of the token that pads samples on the right.
    """
    architecture = str(config["architectures"][0])
    for ending in LANGUAGE_MODELS:
        architecture = architecture.removesuffix(ending)
    chosen = list(names) or [f"LABEL_{number}" for number in range(labels)]
    return config | {
        "architectures": [architecture + SUFFIX],
        "id2label": {str(number): name for number, name in enumerate(chosen)},
        "label2id": {name: number for number, name in enumerate(chosen)},
        "pad_token_id": pad,
        "problem_type": "single_label_classification",
    }


def label_names(config: dict[str, Any], file: Path) -> tuple[str, ...]:
    """Read the names of the classes from the fields of `config.json`; empty for a language model.

    Raises:
        UserError: they are not those of the numbers from 0 on.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not any(str(name).endswith(SUFFIX) for name in architectures):
        return ()
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", DEFAULT_LABELS)
        if type(count) is not int or not 1 <= count <= MAX_LABELS:
            raise UserError(
                f"{file}: num_labels is {str(count)[:40]}; expected a whole number from 1 to {MAX_LABELS:,}"
            )
        names = {str(number): f"LABEL_{number}" for number in range(count)}
    if not isinstance(names, dict) or not names or set(names) != {str(number) for number in range(len(names))}:
        raise UserError(f"{file}: id2label does not name the classes 0, 1, …; correct it")
    return tuple(str(names[str(number)]) for number in range(len(names)))
