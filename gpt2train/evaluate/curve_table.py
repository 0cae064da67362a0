"""Text table and plot of a run's curve, and the metrics that a curve shows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpt2train.convert.card_scores import cloze_set
from gpt2train.evaluate.files import DATA_HASH_KEY
from gpt2train.evaluate.metrics import Metric
from gpt2train.evaluate.registry import EVALUATIONS
from gpt2train.evaluate.tables import aligned
from gpt2train.evaluate.tasks.table import is_of_tasks, task_lines, task_metrics
from gpt2train.monitoring.chart import BLUE, INK, RED, panels, png

LAST = "last checkpoint"
OTHER = "#7a5195"
COLORS = {"lambada": "#2f7d5b", "wikitext": BLUE}


def curve_metrics(curve: Mapping[str, Any]) -> list[tuple[str, Metric]]:
    """Return a curve's evaluations with each of their main metrics; passages are LAMBADA's or named by their hash."""
    found = []
    for name in curve[DATA_HASH_KEY]:
        result = curve["points"][-1][name]
        metrics = task_metrics(result) if is_of_tasks(result) else EVALUATIONS[name].metrics
        found += [(name, _on_set(name, metric, result)) for metric in metrics if metric.main]
    return found


def _on_set(name: str, metric: Metric, result: Mapping[str, Any]) -> Metric:
    """Return a metric of cloze passages with their name in its head and label."""
    if name != "lambada" or (passages := cloze_set(result)) == "LAMBADA":
        return metric
    column = f"{passages} {metric.name.partition(' ')[2]}"
    return replace(metric, column=column, axis=(metric.axis or "").replace("LAMBADA", passages))


def curve_lines(curve: Mapping[str, Any]) -> list[str]:
    """Format a run's curve (`score_run`), one line per checkpoint, and the table of the last checkpoint on tasks."""
    points = curve["points"]
    columns = curve_metrics(curve)
    rows = [["step", "tokens", "valid loss", *(metric.column or f"{name} {metric.name}" for name, metric in columns)]]
    for point in points:
        loss = "–" if point["valid_loss"] is None else f"{point['valid_loss']:.4g}"
        values = [metric.text(point[name]) for name, metric in columns]
        rows.append([f"{point['step']:,}", f"{point['tokens']:,}", loss, *values])
    lines = aligned(rows, left=())
    last = [points[-1][name] for name in curve[DATA_HASH_KEY]]
    others = [result for result in last if not is_of_tasks(result)]
    lines += [f"note: {LAST}: {note}" for result in others for note in result.get("notes", ())]
    of_tasks = [{LAST: result} for result in last if is_of_tasks(result)]
    return lines + (task_lines(of_tasks) if of_tasks else [])


def curve_picture(curve: Mapping[str, Any]) -> bytes:
    """Return a PNG with one panel per metric that occurs in a point of a curve (`score_run`)."""
    points = curve["points"]
    # Label, colour, scale of the axis and value at each point; shares are in per cent.
    lines = [("validation loss, nats per token", RED, "linear", [point["valid_loss"] for point in points])]
    for name, metric in curve_metrics(curve):
        unit, suffix = (100, ", %") if metric.scale == "share" else (1, "")
        found = [metric.value(point[name]) for point in points]
        values = [None if value is None else unit * value for value in found]
        lines.append((metric.axis or f"{name} {metric.name}{suffix}", COLORS.get(name, OTHER), metric.scale, values))
    shown = [line for line in lines if any(value is not None for value in line[-1])]
    places = panels(max(1, len(shown)), 2.4)
    for axes, (label, color, scale, values) in zip(places, shown, strict=False):
        series = [(point["tokens"], value) for point, value in zip(points, values, strict=True) if value is not None]
        axes.plot(*zip(*series, strict=True), color=color, marker="o", markersize=4, linewidth=1.6)
        axes.set_ylabel(label, color=INK)
        if scale == "log":
            axes.set_yscale("log")
            axes.grid(alpha=0.25, which="minor")
    places[-1].set_xlabel("tokens of training", color=INK)
    return png(places[-1])
