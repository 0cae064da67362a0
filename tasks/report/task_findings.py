"""Findings of a fine-tuning for the report: validations by epoch, counts of each class, wrong predictions."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from gpt2train.data.indexed import IndexedDataset
from gpt2train.data.tokenizer import Tokenizer, load_tokenizer
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.report.pictures import score_curve

MAX_CLASSES = 20  # shown one by one, the most frequent ones
MAX_CONFUSION = 12  # classes of a confusion table
MAX_WRONG = 10  # examples of each part
MAX_CHARACTERS = 600  # of a text
PREDICTIONS = ".predictions.jsonl"


def task_findings(root: Folder, by_step: Mapping[str, Manifest], metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Facts of the page about a fine-tuning as plain values; empty for other flows."""
    prepared, training, scored = (by_step.get(name) for name in ("samples", "train", "task_scores"))
    if prepared is None or training is None:
        return {}
    kind = str(prepared.parameters["kind"])
    selected = training.outcome.facts.get("selected_step")
    validations = [
        {"step": row["step"], "epoch": row.get("epoch")}
        | {name.removeprefix("valid_"): value for name, value in row.items() if name.startswith("valid_")}
        | {"selected": row["step"] == selected}
        for row in metrics
        if "valid_loss" in row
    ]
    parts = _parts(root, prepared, scored) if scored else []
    majority = next((part["scores"].get("majority") for part in parts if part["name"] == "valid"), None)
    measured = sum("accuracy" in row for row in validations)
    return {
        "kind": kind,
        "validations": validations,
        "columns": [name for name in ("loss", "accuracy", "f1") if any(name in row for row in validations)],
        "picture": score_curve(validations, majority) if measured > 1 else None,
        "parts": parts,
    }


def _parts(root: Folder, prepared: Manifest, scored: Manifest) -> list[dict[str, Any]]:
    """Scores of valid and test, the counts of their classes, and wrong predictions with their texts."""
    folder, names = root / scored.folder, [record.name for record in scored.outputs]
    found = []
    for name in names:
        if not name.endswith(".json"):
            continue
        part = PurePosixPath(name).stem
        rows = _lines(folder.read_bytes(part + PREDICTIONS)) if part + PREDICTIONS in names else []
        answer = "label" if prepared.parameters["kind"] == "classification" else "answer"
        known = [(number, row | {"expected": row[answer]}) for number, row in enumerate(rows) if answer in row]
        wrong = [(number, row) for number, row in known if row["expected"].strip() != row["predicted"].strip()]
        wrong.sort(key=lambda one: (-one[1].get("probabilities", {}).get(one[1]["predicted"], 0.0), one[0]))
        counts = class_counts([row for _, row in known] if answer == "label" else [])
        found.append(
            {
                "name": part,
                "scores": json.loads(folder.read_bytes(name)),
                "wrong_count": len(wrong),
                "known": len(known),
                "wrong": list(_examples(root / prepared.folder, part, wrong[:MAX_WRONG])),
                **counts,
            }
        )
    return found


def class_counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of each class: rows, predictions, right ones; and the confusion table if there are few classes."""
    actual, predicted = (Counter(row[key] for row in rows) for key in ("expected", "predicted"))
    both = Counter((row["expected"], row["predicted"]) for row in rows)
    names = sorted(actual | predicted, key=lambda name: (-actual[name], -predicted[name], name))
    classes = [
        {
            "name": name,
            "actual": actual[name],
            "predicted": predicted[name],
            "right": both[name, name],
            "recall": both[name, name] / actual[name] if actual[name] else None,
            "precision": both[name, name] / predicted[name] if predicted[name] else None,
        }
        for name in names
    ]
    few = names if len(names) <= MAX_CONFUSION else []
    return {
        "classes": classes[:MAX_CLASSES],
        "class_count": len(names),
        "confusion": [{"name": name, "counts": [both[name, other] for other in few]} for name in few],
    }


def _examples(samples: Folder, part: str, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Rows with the text of their sample, as the model read it."""
    if not rows:
        return
    path = samples.path()
    tokenizer, tokens = load_tokenizer(path), IndexedDataset(f"{path}/{part}")
    for number, row in rows:
        first, last = (int(at) for at in tokens.documents[number : number + 2])
        chance = row.get("probabilities", {}).get(row["predicted"], math.nan)
        yield {
            "place": f"{row['file']}, row {row['row']:,}",
            "text": _text(tokenizer, [tokens[at] for at in range(first, last - 1)]),
            "expected": row["expected"][:MAX_CHARACTERS],
            "predicted": row["predicted"][:MAX_CHARACTERS],
            "probability": None if math.isnan(chance) else chance,
        }


def _text(tokenizer: Tokenizer, sequences: Sequence[np.ndarray]) -> str:
    text = "".join(tokenizer.decode(sequence.tolist()) for sequence in sequences)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " …"


def _lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.split(b"\n") if line]
