"""Text tables of results, with one line per metric and its definition, and one column per model."""

from collections.abc import Mapping, Sequence
from typing import Any

MAX_NAME = 24  # characters of a model's path in a column's head; the end of the path is kept


def lambada_lines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format LAMBADA results.

    Args:
        results: result of each model, by its path.
    """
    models = list(results.values())
    rows = []
    for name, first in models[0]["definitions"].items():
        scores = [result["definitions"][name] for result in models]
        shown = [f"{s['accuracy']:.4f} ± {s['standard_error'] or 0:.4f}" for s in scores]
        rows.append((f"{name} accuracy", shown, first["definition"]))
        if "perplexity" in first:
            rows.append((f"{name} perplexity", [f"{s['perplexity']:.4g}" for s in scores], "per last word, see above"))
    unigram = [f"{result['unigram_perplexity']:.4g}" for result in models]
    rows.append(("word counts' perplexity", unigram, "last words by the counts of the passages' other words (add-one)"))
    head = "; ".join(sorted({f"passages {r['passages']:,}, truncated {r['truncated']:,}" for r in models}))
    return [head, *_table(list(results), rows), *_notes(results)]


def wikitext_lines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format WikiText results.

    Args:
        results: result of each model, by its path.
    """
    models = list(results.values())
    meaning = {
        "adjusted_perplexity": models[0]["definition"],
        "token_perplexity": "exp(loss), per token of the model's own tokenizer",
        "unigram_perplexity": "per token, by the text's own token counts (add-one)",
    }
    rows = [(key, [f"{result[key]:.4g}" for result in models], text) for key, text in meaning.items()]
    facts = sorted({f"words {r['words']:,}, tokens {r['tokens']:,}, stride {r['stride']}" for r in models})
    return ["; ".join(facts), *_table(list(results), rows), *_notes(results)]


def curve_lines(curve: Mapping[str, Any]) -> list[str]:
    """Format a run's curve, with one line per checkpoint.

    Args:
        curve: result of `gpt2train.evaluate.curve.score_run`.
    """
    points = curve["points"]
    rows = [["step", "tokens", "valid loss"]]
    for kind in ("lambada", "wikitext"):
        if kind in points[0]:
            rows[0] += ["lambada_openai", "perplexity"] if kind == "lambada" else ["wikitext, adjusted"]
    for point in points:
        row = [f"{point['step']:,}", f"{point['tokens']:,}", _number(point["valid_loss"])]
        if "lambada" in point:
            headline = point["lambada"]["definitions"]["lambada_openai"]
            row += [f"{headline['accuracy']:.4f}", _number(headline["perplexity"])]
        if "wikitext" in point:
            row.append(_number(point["wikitext"]["adjusted_perplexity"]))
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    last = {kind: points[-1][kind] for kind in ("lambada", "wikitext") if kind in points[-1]}
    return lines + [f"note: last checkpoint: {note}" for result in last.values() for note in result["notes"]]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


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


def _notes(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format the notes of the results; a note of all results appears once."""
    models_by_note: dict[str, list[str]] = {}
    for name, result in results.items():
        for note in result["notes"]:
            models_by_note.setdefault(note, []).append(name)
    return [
        f"note: {note}" if len(names) == len(results) else f"note: {', '.join(names)}: {note}"
        for note, names in models_by_note.items()
    ]
