"""Text tables of results, with one line per metric and its definition, and one column per model."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpt2train.evaluate.evaluation import Evaluation

MAX_NAME = 24  # characters of a model's path in a column's head; the end of the path is kept


def result_lines(evaluation: Evaluation, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format the results of several models, by their paths."""
    models = list(results.values())
    head = ["; ".join(sorted({evaluation.summary(result) for result in models}))] if evaluation.summary else []
    rows = [["", *short_names(results), ""]] if len(models) > 1 else []
    rows += [
        [metric.name, *(metric.text_with_error(result) for result in models), metric.definition]
        for metric in evaluation.metrics
    ]
    return [*head, *aligned(rows, left=(0, len(models) + 1)), *notes_lines(results)]


def short_names(models: Iterable[str]) -> list[str]:
    """Shorten the paths of models to heads of columns."""
    return [name if len(name) <= MAX_NAME else f"…{name[1 - MAX_NAME :]}" for name in models]


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Align rows in columns, those at the indices `left` to the left, the others to the right."""
    sides = [
        (str.ljust if at in left else str.rjust, max(map(len, cells)))
        for at, cells in enumerate(zip(*rows, strict=True))
    ]
    return [
        "  ".join(justify(cell, width) for cell, (justify, width) in zip(row, sides, strict=True)).rstrip()
        for row in rows
    ]


def notes_lines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format the notes of the results; a note of all results appears once."""
    models_by_note: dict[str, list[str]] = {}
    for name, result in results.items():
        for note in result.get("notes", ()):
            models_by_note.setdefault(note, []).append(name)
    return [
        f"note: {note}" if len(names) == len(results) else f"note: {', '.join(names)}: {note}"
        for note, names in models_by_note.items()
    ]
