"""Text tables of results, with one line per metric and its definition, and one column per model."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpt2train.evaluate.evaluation import Evaluation

MAX_NAME = 24  # characters of a model's path in a column's head; the end of the path is kept


def result_lines(evaluation: Evaluation, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format the results of several models.

    Args:
        evaluation: evaluation that gave the results.
        results: result of each model, by its path.
    """
    models = list(results.values())
    rows = [
        (metric.name, [metric.text_with_error(result) for result in models], metric.definition)
        for metric in evaluation.metrics
    ]
    head = ["; ".join(sorted({evaluation.summary(result) for result in models}))] if evaluation.summary else []
    return [*head, *_table(list(results), rows), *notes_lines(results)]


def _table(names: Sequence[str], rows: Sequence[tuple[str, Sequence[str], str]]) -> list[str]:
    """Format columns: metric, one per model, definition. Several models get a head line with their names."""
    heads = (
        [name if len(name) <= MAX_NAME else f"…{name[1 - MAX_NAME :]}" for name in names] if len(names) > 1 else [""]
    )
    widths = [max(len(head), *(len(row[1][at]) for row in rows)) for at, head in enumerate(heads)]
    first = max(len(row[0]) for row in rows)
    lines = []
    if len(names) > 1:
        lines.append("  ".join([" " * first, *(head.rjust(width) for head, width in zip(heads, widths, strict=True))]))
    for metric, values, meaning in rows:
        cells = [value.rjust(width) for value, width in zip(values, widths, strict=True)]
        lines.append("  ".join([metric.ljust(first), *cells, meaning]))
    return lines


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
