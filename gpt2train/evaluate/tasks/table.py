"""Table of tasks: one line per metric, with a column per model, the random baseline and published scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpt2train.evaluate.metrics import Metric
from gpt2train.evaluate.tables import MAX_NAME, notes_lines
from gpt2train.evaluate.tasks.description import Suite, Task
from gpt2train.evaluate.tasks.scores import measures
from gpt2train.evaluate.tasks.suite import Work

MEAN = Metric("centred", "mean of (accuracy - random) / (1 - random)", scale="share")
HEAD = ("task", "metric", "items")
Results = Mapping[str, Mapping[str, Any]]


def task_lines(scored: Sequence[tuple[Work, Results]]) -> list[str]:
    """Format the results of several tasks.

    Args:
        scored: each task or suite, with the result of each model by its path.
    """
    models = list(scored[0][1])
    heads = [name if len(name) <= MAX_NAME else f"…{name[1 - MAX_NAME :]}" for name in models]
    rows = [[*HEAD, *heads, "random", "published"]]
    used: dict[tuple[str, str], None] = {}
    for work, results in scored:
        for part in work.parts:
            found = [_of_part(results[model], part.name) for model in models]
            for measure in measures(part.task):
                rows.append(_row(part.name, measure.metric, found, part.task))
                used[(measure.metric.name, measure.metric.definition)] = None
        if isinstance(work.description, Suite):
            rows.append(_row(work.name, MEAN, [results[model] for model in models], work.description))
            used[(MEAN.name, MEAN.definition)] = None
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"{name}: {definition}" for name, definition in used]
    lines.append("[low, high]: 95 % interval of the bootstrap over the items")
    for _, results in scored:
        lines += notes_lines(results)
    return lines


def _of_part(result: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = result["tasks"][name] if "tasks" in result else result
    return found


def _row(name: str, metric: Metric, results: Sequence[Mapping[str, Any]], description: Task | Suite) -> list[str]:
    cells = [f"{metric.text(result)} [{_interval(metric, result)}]" for result in results]
    random = f"{results[0]['random']:.4f}" if metric.name.startswith("accuracy") else ""
    return [name, metric.name, f"{results[0]['items']:,}", *cells, random, _published(metric, description)]


def _interval(metric: Metric, result: Mapping[str, Any]) -> str:
    return ", ".join(metric.text({metric.name: value}) for value in result[f"{metric.name}_interval"])


def _published(metric: Metric, description: Task | Suite) -> str:
    if isinstance(description, Suite):
        found = dict(description.published)
    else:
        found = {model: v[metric.name] for model, v in description.published.items() if metric.name in v}
    return ", ".join(f"{model} {metric.text({metric.name: value})}" for model, value in found.items())
