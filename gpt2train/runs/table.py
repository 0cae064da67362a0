"""Text table of runs, with one line per run and a list of differing settings."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from gpt2train.runs.reading import Run
from gpt2train.store.progress import format_duration

Sort = Literal[
    "started", "name", "state", "tokens", "parameters", "loss", "valid", "bits", "lambada", "wikitext", "hours", "speed"
]

# Sort key of a run, and True if the greatest value comes first. Runs without the value come last.
KEYS: dict[str, tuple[Callable[[Run], Any], bool]] = {
    "started": (lambda run: run.started, False),
    "name": (lambda run: run.name, False),
    "state": (lambda run: run.state, False),
    "tokens": (lambda run: run.tokens, True),
    "parameters": (lambda run: run.parameters, True),
    "loss": (lambda run: run.loss, False),
    "valid": (lambda run: run.best_valid_loss, False),
    "bits": (lambda run: run.bits_per_byte, False),
    # Runs on one set beside each other: shares of different passages cannot be compared.
    "lambada": (lambda run: None if run.cloze_accuracy is None else (run.cloze_set, run.cloze_accuracy), True),
    "wikitext": (lambda run: run.wikitext_perplexity, False),
    "hours": (lambda run: run.hours, True),
    "speed": (lambda run: run.tokens_per_second, True),
}
# Settings that are paths or derived from data; the table shows the data's fingerprint instead.
PATH_SETTINGS = ("output", "data.train", "data.valid", "data.cache", "tokenizer_hash")
# Metrics of tasks, with their heads in the table.
TASK_METRICS = {
    "accuracy_norm": "norm",
    "accuracy": "acc",
    "word_perplexity": "word ppl",
    "perplexity": "ppl",
    "bits_per_byte": "bits/byte",
    "centred": "centred",
}
WIKITEXT = "WikiText"
FINGERPRINT_CHARS = 8  # characters of a fingerprint that are shown
NONE = "–"
MAX_COLUMNS = 8  # maximum number of runs whose differing settings are shown in columns
MAX_NAMED = 3  # maximum number of runs with the same value that are listed by name


def sort_runs(runs: Sequence[Run], by: Sort) -> list[Run]:
    """Sort runs by a column, best, greatest or earliest first, then by name; runs without the value come last."""
    key, descending = KEYS[by]
    known = [run for run in sorted(runs, key=lambda run: run.name) if key(run) is not None]
    return sorted(known, key=key, reverse=descending) + [run for run in runs if key(run) is None]


def columns(run: Run) -> dict[str, str]:
    """Return the cells of a run, by column."""
    return {
        "run": run.name,
        "state": run.state if run.state == "finished" else f"{run.state} at {run.step:,} of {run.steps:,}",
        "data": "+".join(name[:FINGERPRINT_CHARS] for name in run.data.split("+")) if run.data else NONE,
        "tokens": count(run.tokens),
        "parameters": count(run.parameters),
        "layout": run.layout or NONE,
        "loss": number(run.loss, 4),
        "best valid": number(run.best_valid_loss, 4),
        "bits/byte": number(run.bits_per_byte, 4),
        **_scored(run),
        "hours": number(run.hours, 2 if run.hours >= 0.1 else 4),
        "tokens/s": NONE if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
        "GPU": NONE if run.gpu_utilization is None else f"{run.gpu_utilization:.0%}",
        "kWh": NONE if run.gpu_kwh is None else f"{run.gpu_kwh:,.3g}",
        "kWh CPU": NONE if run.cpu_kwh is None else f"{run.cpu_kwh:,.3g}",
        "left": format_duration(run.seconds_left) if run.seconds_left else NONE,
    }


def table_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return the cells of several runs, by the same columns; a run has dashes for the sets and tasks that it lacks."""
    rows = [columns(run) for run in runs]
    scored = dict.fromkeys(head for run in runs for head in _scored(run))
    tasks = {_task_head(name) for run in runs for name in run.task_scores}
    heads = [head for head in rows[0] if head not in scored]
    place = heads.index("hours")
    heads[place:place] = sorted(scored, key=lambda head: (head in tasks, head.startswith(WIKITEXT)))
    return [{head: row.get(head, NONE) for head in heads} for row in rows]


def _scored(run: Run) -> dict[str, str]:
    """Return the cells of a run's scores, by column: scores on different data have different columns."""
    cells: dict[str, str] = {}
    if run.cloze_set and run.cloze_accuracy is not None:
        cells |= {run.cloze_set: f"{run.cloze_accuracy:.2%}", f"{run.cloze_set} ppl": perplexity(run.cloze_perplexity)}
    if run.wikitext_perplexity is not None:
        digest = str(run.evaluation["wikitext"].get("data_sha256", ""))[:FINGERPRINT_CHARS]
        cells[" ".join(filter(None, (WIKITEXT, digest, "ppl")))] = perplexity(run.wikitext_perplexity)
    return cells | {_task_head(name): _task_cell(name, value) for name, value in run.task_scores.items()}


def _task_head(name: str) -> str:
    """Return the column of a task's score, `hellaswag acc` for `hellaswag_accuracy`."""
    for metric, short in TASK_METRICS.items():
        if name.endswith(f"_{metric}"):
            return f"{name.removesuffix(f'_{metric}')} {short}"
    return name


def _task_cell(name: str, value: float) -> str:
    if name.endswith(("_accuracy", "_accuracy_norm")):
        return f"{value:.2%}"
    return perplexity(value) if name.endswith("_perplexity") else number(value, 4)


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the settings, presets, devices and releases that differ between runs.

    Returns:
        Values in the order of the runs, by name; None if a run does not have the setting.
    """
    known = [_compared(run) for run in runs]
    names = sorted({name for one in known for name in one})
    found = {name: [one.get(name) for one in known] for name in names}
    return {name: values for name, values in found.items() if any(value != values[0] for value in values)}


def _compared(run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = {name: value for name, value in run.settings.items() if name not in PATH_SETTINGS}
    facts["preset"] = run.record.preset
    if run.record.starts:
        last = run.record.starts[-1]
        facts |= {"device used": last.device, "processes": last.world, "commit": last.commit}
        facts |= {f"release of {name}": release for name, release in last.versions.items()}
    return facts


def text(runs: Sequence[Run]) -> str:
    """Format the table of runs, followed by the differing settings."""
    rows = table_rows(runs)
    parts = [aligned([list(rows[0]), *(list(row.values()) for row in rows)], left=("run", "state", "data", "layout"))]
    if len(runs) > 1:
        parts.append(different(runs) or "no setting differs")
    return "\n\n".join(parts)


def different(runs: Sequence[Run]) -> str:
    """Format the differing settings with one column per run, or, for more runs than fit, with runs grouped by value."""
    found = differences(runs)
    names = [run.name for run in runs]
    if found and len(runs) <= MAX_COLUMNS:
        body = [[name, *(truncated(shown(value)) for value in values)] for name, values in found.items()]
        return aligned([["different", *names], *body], left=("different",))
    width = max(map(len, found), default=0)
    return "\n".join(f"{name:<{width}}  {_by_value(values, names)}" for name, values in found.items())


def _by_value(values: Sequence[Any], names: Sequence[str]) -> str:
    """Group runs by value, as `8: one, other; 16: 12 runs`, in the order of the runs."""
    groups: dict[str, list[str]] = {}
    for value, name in zip(values, names, strict=True):
        groups.setdefault(truncated(shown(value)), []).append(name)
    listed = (", ".join(group) if len(group) <= MAX_NAMED else f"{len(group)} runs" for group in groups.values())
    return "; ".join(f"{value}: {runs}" for value, runs in zip(groups, listed, strict=True))


def truncated(value: str, width: int = 24) -> str:
    """Truncate a value to the width of a cell."""
    return value if len(value) <= width else value[: width - 1] + "…"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[str]) -> str:
    """Align rows in columns and omit empty columns.

    Args:
        rows: rows of cells; the first row has the heads.
        left: heads of left-aligned columns; the others are right-aligned.
    """
    shown_columns = [column for column in range(len(rows[0])) if any(row[column] != NONE for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in shown_columns}
    justify = {column: str.ljust if rows[0][column] in left else str.rjust for column in shown_columns}
    return "\n".join("  ".join(justify[p](row[p], widths[p]) for p in shown_columns).rstrip() for row in rows)


def shown(value: Any) -> str:
    """Format the value of a setting."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def count(value: int) -> str:
    """Format a number of tokens or parameters with three or four digits and a unit."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}" if value < 1000 * size else f"{value / size:,.0f}{unit}"
    return str(value)


def number(value: float | None, digits: int) -> str:
    """Format a number with fixed decimals; None is a dash."""
    return NONE if value is None else f"{value:,.{digits}f}"


def perplexity(value: float | None) -> str:
    """Format a perplexity, in scientific notation from 100,000, as an untrained model's; None is a dash."""
    return NONE if value is None else f"{value:,.2f}" if value < 1e5 else f"{value:.2e}"
