"""Results as text: a line for each metric with its definition, and a column for each model."""

from collections.abc import Mapping, Sequence
from typing import Any

NAME = 24  # characters of a model's path that a column shows, from its end


def lambada_lines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines about LAMBADA's results, by model."""
    some = list(results.values())
    rows = []
    for name, first in some[0]["definitions"].items():
        scores = [result["definitions"][name] for result in some]
        shown = [f"{s['accuracy']:.4f} ± {s['standard_error'] or 0:.4f}" for s in scores]
        rows.append((f"{name} accuracy", shown, first["definition"]))
        if "perplexity" in first:
            rows.append((f"{name} perplexity", [f"{s['perplexity']:.4g}" for s in scores], "per last word, see above"))
    unigram = [f"{result['unigram_perplexity']:.4g}" for result in some]
    rows.append(("word counts' perplexity", unigram, "last words by the counts of the passages' other words (add-one)"))
    head = "; ".join(sorted({f"passages {r['passages']:,}, of which truncated {r['truncated']:,}" for r in some}))
    return [head, *_table(list(results), rows), *_notes(results)]


def wikitext_lines(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines about WikiText's results, by model."""
    some = list(results.values())
    meaning = {
        "adjusted_perplexity": some[0]["definition"],
        "token_perplexity": "exp(loss), per token of the model's own tokenizer",
        "unigram_perplexity": "per token, by the text's own token counts (add-one)",
    }
    rows = [(key, [f"{result[key]:.4g}" for result in some], text) for key, text in meaning.items()]
    facts = sorted({f"words {r['words']:,}, tokens {r['tokens']:,}, stride {r['stride']}" for r in some})
    return ["; ".join(facts), *_table(list(results), rows), *_notes(results)]


def curve_lines(found: Mapping[str, Any]) -> list[str]:
    """A line for each checkpoint of a run's curve."""
    points = found["points"]
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
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, wide, strict=True)) for row in rows]
    last = {kind: points[-1][kind] for kind in ("lambada", "wikitext") if kind in points[-1]}
    return lines + [f"note: last checkpoint: {note}" for result in last.values() for note in result["notes"]]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _table(names: Sequence[str], rows: Sequence[tuple[str, Sequence[str], str]]) -> list[str]:
    """Columns: metric, one for each model, definition. The models' names are told where there are several."""
    heads = [name if len(name) <= NAME else f"…{name[1 - NAME :]}" for name in names] if len(names) > 1 else [""]
    wide = [max(len(head), *(len(row[1][at]) for row in rows)) for at, head in enumerate(heads)]
    first = max(len(row[0]) for row in rows)
    lines = []
    if len(names) > 1:
        lines.append("  ".join([" " * first, *(head.rjust(width) for head, width in zip(heads, wide, strict=True))]))
    for metric, values, meaning in rows:
        cells = [value.rjust(width) for value, width in zip(values, wide, strict=True)]
        lines.append("  ".join([metric.ljust(first), *cells, meaning]))
    return lines


def _notes(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What to know of each result; said once where it holds for all."""
    said: dict[str, list[str]] = {}
    for name, result in results.items():
        for note in result["notes"]:
            said.setdefault(note, []).append(name)
    return [
        f"note: {note}" if len(names) == len(results) else f"note: {', '.join(names)}: {note}"
        for note, names in said.items()
    ]
