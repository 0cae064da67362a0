"""Table of tasks: one line per metric, with a column per model, the random baseline and published scores."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpt2train.evaluate.metrics import Metric
from gpt2train.evaluate.tables import aligned, notes_lines, short_names
from gpt2train.evaluate.tasks.description import Suite
from gpt2train.evaluate.tasks.scores import METRICS, measures
from gpt2train.evaluate.tasks.suite import Work

MEAN = Metric("centred", "mean of (accuracy - random) / (1 - random)", scale="share", main=True)
INTERVAL = "_interval"  # end of the key of a metric's interval
INTERVALS = "[low, high]: 95 % interval of the bootstrap over the items"
Results = Mapping[str, Mapping[str, Any]]


class TaskRow(NamedTuple):
    """Line of the table, as text."""

    task: str  # name of the task or suite
    metric: str
    items: str
    score: str  # value and interval
    random: str  # accuracy of guessing; empty for other metrics
    published: str  # published scores of other models


def is_of_tasks(result: Mapping[str, Any]) -> bool:
    """Return True for the result of a task or suite, False for that of another evaluation."""
    return "suite" in result or ("task" in result and "published" in result)


def result_rows(result: Mapping[str, Any]) -> list[TaskRow]:
    """Format the result of a model on a task, or on a suite and its tasks, of `score_work`."""
    parts = result["tasks"].values() if "suite" in result else [result]
    rows = [_row(part["task"], metric, part) for part in parts for metric in task_metrics(part)]
    return [*rows, _row(result["suite"], MEAN, result)] if "suite" in result else rows


def task_metrics(result: Mapping[str, Any]) -> list[Metric]:
    """Return the metrics of a result of a task, or the mean of a suite."""
    if "suite" in result:
        return [MEAN]
    return [METRICS[key.removesuffix(INTERVAL)] for key in result if key.endswith(INTERVAL)]


def definitions(works: Sequence[Work]) -> list[str]:
    """Return the lines that define the metrics of tasks and suites, each once, in their order."""
    metrics = [measure.metric for work in works for part in work.parts for measure in measures(part.task)]
    metrics += [MEAN for work in works if isinstance(work.description, Suite)]
    return list(dict.fromkeys(f"{metric.name}: {metric.definition}" for metric in metrics))


def task_lines(scored: Sequence[Results], defined: Iterable[str] = ()) -> list[str]:
    """Format the results of several tasks, each by the models' paths, and the lines that define their metrics."""
    models = list(scored[0])
    rows = [["task", "metric", "items", *short_names(models), "random", "published"]]
    for results in scored:
        for found in zip(*(result_rows(results[model]) for model in models), strict=True):
            (*begin, _, random, published), scores = found[0], [row.score for row in found]
            rows.append([*begin, *scores, random, published])
    lines = [*aligned(rows, left=range(len(rows[0]))), *defined, INTERVALS]
    return lines + [line for results in scored for line in notes_lines(results)]


def _row(name: str, metric: Metric, result: Mapping[str, Any]) -> TaskRow:
    interval = ", ".join(metric.text({metric.name: value}) for value in result[f"{metric.name}{INTERVAL}"])
    random = f"{result['random']:.4f}" if metric.name.startswith("accuracy") else ""
    score = f"{metric.text(result)} [{interval}]"
    return TaskRow(name, metric.name, f"{result['items']:,}", score, random, _published(metric, result))


def _published(metric: Metric, result: Mapping[str, Any]) -> str:
    if "suite" in result:
        found = dict(result["published"])
    else:
        found = {model: values[metric.name] for model, values in result["published"].items() if metric.name in values}
    return ", ".join(f"{model} {metric.text({metric.name: value})}" for model, value in found.items())
