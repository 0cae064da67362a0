"""Text table of a run's curve, and the metrics that a curve shows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpt2train.convert.card_scores import cloze_set
from gpt2train.evaluate.files import DATA_HASH_KEY
from gpt2train.evaluate.metrics import Metric
from gpt2train.evaluate.registry import EVALUATIONS
from gpt2train.evaluate.tables import aligned
from gpt2train.evaluate.tasks.table import is_of_tasks, task_lines, task_metrics

LAST = "last checkpoint"


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
