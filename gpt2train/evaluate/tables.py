"""Text tables of results, with one line per metric and its definition, and one column per model."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpt2train.evaluate.evaluation import Evaluation
from gpt2train.evaluate.files import DATA_HASH_KEY
from gpt2train.evaluate.registry import EVALUATIONS

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


def curve_lines(curve: Mapping[str, Any]) -> list[str]:
    """Format a run's curve, with one line per checkpoint.

    Args:
        curve: result of `gpt2train.evaluate.curve.score_run`.
    """
    points = curve["points"]
    columns = [(name, metric) for name in curve[DATA_HASH_KEY] for metric in EVALUATIONS[name].main_metrics]
    rows = [["step", "tokens", "valid loss", *(metric.column or f"{name} {metric.name}" for name, metric in columns)]]
    for point in points:
        loss = "–" if point["valid_loss"] is None else f"{point['valid_loss']:.4g}"
        values = [metric.text(point[name]) for name, metric in columns]
        rows.append([f"{point['step']:,}", f"{point['tokens']:,}", loss, *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    last = [points[-1][name] for name in curve[DATA_HASH_KEY]]
    return lines + [f"note: last checkpoint: {note}" for result in last for note in result.get("notes", ())]


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
