"""Task of the package as an evaluation of one data file, for curves, flows and reports; does not import torch."""

from collections.abc import Sequence

from gpt2train.evaluate.evaluation import Evaluation, Scorer
from gpt2train.evaluate.metrics import Result
from gpt2train.evaluate.tasks.description import Task, description_hash, read_description, ready_files
from gpt2train.evaluate.tasks.items import DataFile, Item, read_items
from gpt2train.evaluate.tasks.scores import measures, score_task


def ready_evaluation(name: str) -> Evaluation | None:
    """Return the task of a name as an evaluation; None if no task of the package, but a suite at most, has it."""
    if name not in ready_files():
        return None
    _, task = read_description(name)
    return _evaluation(name, task) if isinstance(task, Task) else None


def _evaluation(name: str, task: Task) -> Evaluation:
    def read(raw: bytes, file: str) -> list[Item]:
        return read_items(task, name, [DataFile(file, raw)])

    def run(scorer: Scorer, items: Sequence[Item], _: object) -> Result:
        return score_task(scorer, task, name, items).result

    return Evaluation(
        help=task.about,
        data="JSON lines.",
        read=read,
        run=run,
        metrics=tuple(measure.metric for measure in measures(task)),
        summary=lambda result: f"{name}: items {result['items']:,}",
        identity=description_hash(task),
    )
