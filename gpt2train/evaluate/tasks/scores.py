"""Result of a model on a task: metrics with intervals, random baseline, parts of the data, and a row for each item."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Evaluation, Scorer
from gpt2train.evaluate.metrics import Metric, Result, significant
from gpt2train.evaluate.scoring_request import Score, ScoringRequest
from gpt2train.evaluate.tasks import core_rule, lm_eval_rule
from gpt2train.evaluate.tasks.bootstrap import interval, resampled_sums
from gpt2train.evaluate.tasks.description import Task, description_hash, read_description, ready_files
from gpt2train.evaluate.tasks.items import DataFile, Item, read_items
from gpt2train.evaluate.tasks.verdict import Plan, Verdict

if TYPE_CHECKING:
    import numpy as np

    from gpt2train.data.tokenizer import Tokenizer

MIN_VARIED = 5  # items from which on equal answers are noted; four pairs have them once in eight times
FEW_ITEMS = 100  # from this number on an accuracy of 0 or 1 is within 0.03 of that of all possible items
TAIL = 0.05  # probability of a sample in which all items agree, at the bound that a note gives
MAX_EXPONENT = 700.0  # so that JSON can represent the result
Sums = Any  # of a column: a number, or numpy numbers of all resamples


@dataclass(frozen=True)
class Measure:
    """Metric as a function of sums over the items: of its columns, and of the items themselves."""

    metric: Metric
    columns: tuple[str, ...]
    value: Callable[[Sequence[Sums], int], Sums]


def _exp(nats: Sums) -> Sums:
    import numpy as np

    return np.exp(np.minimum(nats, MAX_EXPONENT))


def _accuracy(meaning: str, suffix: str = "") -> Measure:
    """Share of the items that a column counts as correct."""
    metric = Metric(f"accuracy{suffix}", meaning, scale="share", main=True)
    return Measure(metric, (f"correct{suffix}",), lambda sums, count: sums[0] / count)


ACCURACY = _accuracy("share of the items whose right choice has the highest log p")
ACCURACY_NORM = _accuracy("the same by log p / characters of the choice", "_norm")
CORE_ACCURACY = _accuracy("share of the items whose right choice has the highest mean log p")
MATCHES = _accuracy("share of the items of which every token is the most likely one")
TARGET_PERPLEXITY = Measure(
    Metric("perplexity", "exp(-mean log p(target)), per target", scale="log", main=True),
    ("log_prob",),
    lambda sums, count: _exp(-sums[0] / count),
)
BITS_PER_BYTE = Measure(
    Metric("bits_per_byte", "-log2 p / bytes of the texts", main=True),
    ("log_prob", "bytes"),
    lambda sums, count: -sums[0] / sums[1] / math.log(2),
)
WORD_PERPLEXITY = Measure(
    Metric("word_perplexity", "exp(-log p / words), words split at white space", scale="log"),
    ("log_prob", "words"),
    lambda sums, count: _exp(-sums[0] / sums[1]),
)
METRICS = {
    measure.metric.name: measure.metric
    for measure in (ACCURACY, ACCURACY_NORM, TARGET_PERPLEXITY, BITS_PER_BYTE, WORD_PERPLEXITY)
}
"""Metrics by name, for numbers of a result; `definition` is that of the rule lm-eval."""


def measures(task: Task) -> tuple[Measure, ...]:
    """Return the measures of a task, the first one for suites and curves."""
    if task.kind == "perplexity":
        return (BITS_PER_BYTE, WORD_PERPLEXITY)
    if task.kind == "greedy":
        return (MATCHES,) if task.rule == "core" else (MATCHES, TARGET_PERPLEXITY)
    if task.rule == "core":
        return (CORE_ACCURACY,)
    return (ACCURACY, ACCURACY_NORM) if task.kind == "multiple_choice" else (ACCURACY,)


@dataclass(frozen=True)
class TaskScores:
    """Scores of a model on a task; result and samples are JSON-serialisable."""

    result: Result
    samples: list[dict[str, Any]]
    """Row for each scored item."""
    resampled: "np.ndarray[Any, Any] | None"
    """Accuracy of each bootstrap resample, float64 [resamples]; None for a perplexity."""


@dataclass(frozen=True)
class PlannedTask:
    """Task with the scoring requests of its items."""

    task: Task
    name: str
    """Name of the task, seed of the bootstrap."""
    numbers: Sequence[int]
    """Index in the data of each item that is scored."""
    items: Sequence[Item]
    plans: Sequence[Plan]
    """Requests of each item."""

    @property
    def requests(self) -> list[ScoringRequest]:
        """Requests of all items, in their order."""
        return [request for plan in self.plans for request in plan.requests if request is not None]

    def result(self, scored: Sequence[Score]) -> TaskScores:
        """Return the scores of the task from the score of each of `requests`."""
        task, scores = self.task, iter(scored)
        verdicts = []
        for item, plan in zip(self.items, self.plans, strict=True):
            found = [None if request is None else next(scores) for request in plan.requests]
            if task.rule == "core":
                verdicts.append(core_rule.decide(task, item, found))
            else:
                verdicts.append(lm_eval_rule.decide(task, item, [score for score in found if score is not None]))
        truncated = sum(plan.truncated for plan in self.plans)
        result: Result = {"task": self.name, "items": len(self.items), "truncated": truncated, "shots": task.shots}
        values, resampled = _intervals(task, self.name, verdicts)
        result |= {"rule": task.rule, **values}
        if resampled is not None:
            chances = [0.0 if task.kind == "greedy" else 1 / item.choices for item in self.items]
            random = math.fsum(chances) / len(chances) if task.random is None else task.random
            result |= {"random": significant(random), "centred": centred(result["accuracy"], random)}
        if task.group:
            result["groups"] = _groups(task, self.items, verdicts)
        result |= {"published": task.published, "notes": _notes(task, result, self.items)}
        rows = zip(self.numbers, self.items, verdicts, strict=True)
        return TaskScores(result, [_sample(task, *row) for row in rows], resampled)


def plan_task(
    task: Task, name: str, items: Sequence[Item], tokenizer: "Tokenizer", context: int, limit: int | None = None
) -> PlannedTask:
    """Build the scoring requests of a task.

    Args:
        task: description of the task.
        name: name of the task.
        items: items in the order of the data.
        tokenizer: tokenizer of the model.
        context: maximum inputs of the model, in tokens.
        limit: number of items to score; by default all. By the rule core the examples are drawn from these too.

    Raises:
        UserError: the tokenizer has no token for a continuation.
    """
    count = len(items) if limit is None else min(limit, len(items))
    if task.rule == "core":
        numbers = core_rule.core_order(len(items))[:count]
        chosen = [items[number] for number in numbers]
        return PlannedTask(task, name, numbers, chosen, core_rule.plan_items(task, chosen, tokenizer, context))
    try:
        plans = lm_eval_rule.plan_items(task, items, count, tokenizer, context)
    except UserError as error:
        raise UserError(f"task {name}: {error}") from error
    return PlannedTask(task, name, range(count), items[:count], plans)


def score_task(scorer: Scorer, task: Task, name: str, items: Sequence[Item], limit: int | None = None) -> TaskScores:
    """Score a model on a task; arguments as those of `plan_task`.

    Raises:
        UserError: the tokenizer has no token for a continuation.
        RunError: the model's outputs are not finite.
    """
    planned = plan_task(task, name, items, scorer.tokenizer, scorer.context, limit)
    return planned.result(scorer.score_shared(planned.requests))


def centred(accuracy: Any, random: float) -> Any:
    """Return (accuracy - random) / (1 - random): 0 for guessing, 1 for no mistake."""
    found = (accuracy - random) / (1 - random)
    return significant(found) if isinstance(found, float) else found


def _intervals(task: Task, name: str, verdicts: Sequence[Verdict]) -> tuple[Result, "np.ndarray[Any, Any] | None"]:
    """Return each metric with its interval, and the resampled accuracy."""
    columns = sorted({column for measure in measures(task) for column in measure.columns})
    values = [[verdict.values[column] for verdict in verdicts] for column in columns]
    sums = dict(zip(columns, resampled_sums(values, name), strict=True))
    drawn = {
        measure.metric.name: measure.value([sums[column] for column in measure.columns], len(verdicts))
        for measure in measures(task)
    }
    intervals = {f"{metric}_interval": interval(values) for metric, values in drawn.items()}
    return _values(task, verdicts) | intervals, drawn.get("accuracy")


def _values(task: Task, verdicts: Sequence[Verdict]) -> Result:
    found = {}
    for measure in measures(task):
        sums = [math.fsum(verdict.values[column] for verdict in verdicts) for column in measure.columns]
        found[measure.metric.name] = significant(float(measure.value(sums, len(verdicts))))
    return found


def _groups(task: Task, items: Sequence[Item], verdicts: Sequence[Verdict]) -> dict[str, Result]:
    parts: dict[str, list[Verdict]] = {}
    for item, verdict in zip(items, verdicts, strict=True):
        parts.setdefault(item.group, []).append(verdict)
    return {name: {"items": len(parts[name]), **_values(task, parts[name])} for name in sorted(parts)}


def _notes(task: Task, result: Mapping[str, Any], items: Sequence[Item]) -> list[str]:
    notes = []
    said = isinstance(task.field("answer"), str)  # by the rows, not by the description
    if said and len(items) >= MIN_VARIED and len({item.answer for item in items}) == 1:
        notes.append(
            f"all {len(items)} answers are choice {items[0].answer}, so that a model that always gives it seems "
            "perfect; check the labels"
        )
    if result.get("accuracy") in (0, 1) and len(items) < FEW_ITEMS:
        far = 1 - TAIL ** (1 / len(items))
        bound = f"up to {far:.2f}" if result["accuracy"] == 0 else f"down to {1 - far:.2f}"
        notes.append(
            f"all {len(items)} items have the same verdict, of which the bootstrap makes no interval; accuracies "
            f"{bound} are plausible too"
        )
    if equal := sum(item.has_equal_choices for item in items):
        share = f"{equal:,} of {result['items']:,} items"
        notes.append(f"{share} have equal choices, of which the first one counts as the model's answer")
    if result["truncated"]:
        share = f"{result['truncated']:,} of {result['items']:,} prompts"
        notes.append(f"{share} are longer than the model's context and lose tokens at their start")
    return [f"{result['task']}: {note}" for note in notes]


def _sample(task: Task, number: int, item: Item, verdict: Verdict) -> dict[str, Any]:
    row: dict[str, Any] = {"item": number}
    if item.group:
        row["group"] = item.group
    row["log_probs"] = list(verdict.log_probs)
    if verdict.prediction is not None:
        row |= {"prediction": verdict.prediction, "answer": item.answer}
    if "correct" in verdict.values:
        row["correct"] = bool(verdict.values["correct"])
    return row


def ready_evaluation(name: str) -> Evaluation | None:
    """Return the task of a name as an evaluation of one data file, for curves, flows and reports.

    None if no task of the package, but a suite at most, has the name.
    """
    if name not in ready_files():
        return None
    _, task = read_description(name)
    if not isinstance(task, Task):
        return None
    return Evaluation(
        help=task.about,
        data="JSON lines.",
        read=lambda raw, file: read_items(task, name, [DataFile(file, raw)]),
        run=lambda scorer, items, _: score_task(scorer, task, name, items).result,
        metrics=tuple(measure.metric for measure in measures(task)),
        summary=lambda result: f"{name}: items {result['items']:,}",
        identity=description_hash(task),
    )
