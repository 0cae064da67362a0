"""Runs side by side, in plain text: a line a run, and what differs between their settings."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from gpt2train.runs.reading import Run

Sort = Literal[
    "started", "name", "state", "tokens", "parameters", "loss", "valid", "lambada", "wikitext", "hours", "speed"
]

# What a run is sorted by, and whether the greatest is first. A run without it is last.
KEYS: dict[str, tuple[Callable[[Run], Any], bool]] = {
    "started": (lambda run: run.started, False),
    "name": (lambda run: run.name, False),
    "state": (lambda run: run.state, False),
    "tokens": (lambda run: run.tokens, True),
    "parameters": (lambda run: run.parameters, True),
    "loss": (lambda run: run.loss, False),
    "valid": (lambda run: run.best_valid_loss, False),
    "lambada": (lambda run: run.lambada_accuracy, True),
    "wikitext": (lambda run: run.wikitext_perplexity, False),
    "hours": (lambda run: run.hours, True),
    "speed": (lambda run: run.tokens_per_second, True),
}
# Settings that say where things lie; what lies there has a fingerprint in the table.
PLACES = ("output", "data.train", "data.valid", "data.cache", "tokenizer_hash")
SHORT = 8  # characters of a fingerprint
NONE = "–"
BESIDE = 8  # runs whose settings stand beside each other
NAMED = 3  # runs of one value that are named


def sort_runs(runs: Sequence[Run], by: Sort) -> list[Run]:
    """Best, greatest or first come first; those of which nothing is known last; ties by name."""
    key, descending = KEYS[by]
    known = [run for run in sorted(runs, key=lambda run: run.name) if key(run) is not None]
    return sorted(known, key=key, reverse=descending) + [run for run in runs if key(run) is None]


def columns(run: Run) -> dict[str, str]:
    """The cells of a run, by the head of their column."""
    return {
        "run": run.name,
        "state": run.state if run.state == "finished" else f"{run.state} at {run.step:,} of {run.steps:,}",
        "data": "+".join(name[:SHORT] for name in run.data.split("+")) if run.data else NONE,
        "tokens": count(run.tokens),
        "parameters": count(run.parameters),
        "layout": run.layout or NONE,
        "loss": number(run.loss, 4),
        "best valid": number(run.best_valid_loss, 4),
        "LAMBADA": NONE if run.lambada_accuracy is None else f"{run.lambada_accuracy:.2%}",
        "LAMBADA ppl": perplexity(run.lambada_perplexity),
        "WikiText ppl": perplexity(run.wikitext_perplexity),
        "hours": number(run.hours, 2 if run.hours >= 0.1 else 4),
        "tokens/s": NONE if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
    }


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """What is not the same in all runs: settings, preset, device and releases; by name, in the order of the runs.

    Where a run has no such setting (another release wrote it, or it is None) its value is None.
    """
    known = [_known(run) for run in runs]
    names = sorted({name for one in known for name in one})
    found = {name: [one.get(name) for one in known] for name in names}
    return {name: values for name, values in found.items() if any(value != values[0] for value in values)}


def _known(run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = {name: value for name, value in run.settings.items() if name not in PLACES}
    facts["preset"] = run.record.preset
    if run.record.starts:
        last = run.record.starts[-1]
        facts |= {"device used": last.device, "processes": last.world, "commit": last.commit}
        facts |= {f"release of {name}": release for name, release in last.versions.items()}
    return facts


def text(runs: Sequence[Run]) -> str:
    """The whole answer: the table, and below it what differs."""
    rows = [columns(run) for run in runs]
    parts = [aligned([list(rows[0]), *(list(row.values()) for row in rows)], left=("run", "state", "data", "layout"))]
    if len(runs) > 1:
        parts.append(different(runs) or "no setting differs")
    return "\n\n".join(parts)


def different(runs: Sequence[Run]) -> str:
    """What differs: a column a run; of more than fit beside each other, the runs by value."""
    found = differences(runs)
    names = [run.name for run in runs]
    if found and len(runs) <= BESIDE:
        body = [[name, *(cut(shown(value)) for value in values)] for name, values in found.items()]
        return aligned([["different", *names], *body], left=("different",))
    width = max(map(len, found), default=0)
    return "\n".join(f"{name:<{width}}  {_by_value(values, names)}" for name, values in found.items())


def _by_value(values: Sequence[Any], names: Sequence[str]) -> str:
    """`8: one, other; 16: 12 runs`, in the order of the runs."""
    groups: dict[str, list[str]] = {}
    for value, name in zip(values, names, strict=True):
        groups.setdefault(cut(shown(value)), []).append(name)
    lists = {value: ", ".join(some) if len(some) <= NAMED else f"{len(some)} runs" for value, some in groups.items()}
    return "; ".join(f"{value}: {some}" for value, some in lists.items())


def cut(value: str, most: int = 24) -> str:
    """A value that is too long for a cell, without its end."""
    return value if len(value) <= most else value[: most - 1] + "…"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[str]) -> str:
    """Rows in columns; numbers to the right, those whose head is in `left` to the left; empty ones left out."""
    wanted = [place for place in range(len(rows[0])) if any(row[place] != NONE for row in rows[1:])]
    widths = {place: max(len(row[place]) for row in rows) for place in wanted}
    flush = {place: str.ljust if rows[0][place] in left else str.rjust for place in wanted}
    return "\n".join("  ".join(flush[p](row[p], widths[p]) for p in wanted).rstrip() for row in rows)


def shown(value: Any) -> str:
    """A setting as it is written."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def count(value: int) -> str:
    """A number of tokens or parameters in three or four digits."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}" if value < 1000 * size else f"{value / size:,.0f}{unit}"
    return str(value)


def number(value: float | None, digits: int) -> str:
    """A number, or a dash."""
    return NONE if value is None else f"{value:,.{digits}f}"


def perplexity(value: float | None) -> str:
    """A perplexity: those of a model that has learned nothing have many digits."""
    return NONE if value is None else f"{value:,.2f}" if value < 1e5 else f"{value:.2e}"
