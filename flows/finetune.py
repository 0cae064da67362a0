"""Fine-tuning flow: a task file and a model -> samples, training, merged model, scores, predictions.

Run it with `python -m flows.finetune --model DIR|PRESET --task TASK.toml`.
"""

import json
import logging
import math
from functools import cached_property
from pathlib import Path

from flows.command import command
from flows.finetune_settings import FinetuneFlowSettings
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import check_output
from flows.pretrain import check_local
from flows.recipe import PlannedRun
from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.artifacts import as_table
from flows.ui.result import result
from gpt2train.config import Corpus, TrainSettings
from gpt2train.data.epoch import samples_in
from gpt2train.parallel.layout import Layout
from gpt2train.settings import build, layer
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.core.runner import Retries, Runner
from tasks.finetune.base_model import BaseModel, check_classes, open_base_model
from tasks.finetune.scores import read_scores, task_scores
from tasks.finetune.settings import TaskSettings, read_task
from tasks.finetune.step import TaskFiles, check_template, found_labels, samples
from tasks.merge.step import merge, write_card
from tasks.outputs.passport.write import leave_passport, run_names
from tasks.ready_tokens.tokens import ReadyTokens
from tasks.report.step import report
from tasks.train.launch.launchers import check_launcher
from tasks.train.step import train

log = logging.getLogger("gpt2train")


class Finetune(PlannedRun[FinetuneFlowSettings]):
    """Fine-tune a model on a task: classification, answers to prompts, or texts. Returns the folder of the model."""

    name, model, result_name = "finetune", FinetuneFlowSettings, "model"
    has_plan = False

    @cached_property
    def task(self) -> TaskSettings:
        """Task file."""
        return read_task(self.settings.task)

    @cached_property
    def base(self) -> BaseModel:
        """Model to tune."""
        return open_base_model(self.settings.model, self.settings.tokenizer)

    def check(self) -> None:
        settings, task, base = self.settings, self.task, self.base
        check_local(settings.output)
        files = TaskFiles(task)
        files.check(task)
        if base.classes and task.kind == "classification":
            check_classes(settings.model, base, task.data.labels or found_labels(files.of["train"], task))
        check_template(task, base.tokenizer, base.vocab)
        tuned = tuned_settings(settings, task, None)
        Layout.of(tuned, settings.launch.world)
        check_launcher(settings.launch, self.root.path())
        check_output(settings)

    def recipe(self, runner: Runner) -> list[Manifest]:
        settings, root, task, base = self.settings, self.root, self.task, self.base
        files, length = TaskFiles(task), settings.train.model.context
        prepared = runner.run_step(samples, root, task, files, base.tokenizer, base.identity, length, rows=base.vocab)
        tuned = tuned_settings(settings, task, labels_of(root, prepared), prepared)
        ready = ready_samples(root, prepared, base, task)
        launch = settings.launch
        retries = Retries(launch.retries, launch.retry_delay)
        training = runner.run_step(train, root, ready, prepared, None, tuned, launch, task.kind, retries=retries)
        model = runner.run_step(merge, root, training, prepared, settings.merge)
        manifests = [prepared, training, model]
        if task.data.valid or task.data.holdout or task.data.test:
            manifests.append(runner.run_step(task_scores, root, model, prepared, task, length))
        if not runner.is_dry_run:
            write_card(root, training, settings.merge, manifests[-1] if len(manifests) > 3 else None)
        # In the run folder, since an output can hold several fine-tunings.
        return [*manifests, runner.run_step(report, root, manifests, settings.report, f"{training.folder}/report")]

    def conclude(self, made: list[Manifest], publisher: ArtifactPublisher) -> str:
        root = self.root
        leave_passport(root, run_names(made))
        scores = next((read_scores(root, found) for found in made if found.step == "task_scores"), {})
        for part, found in scores.items():
            log.info("%s: %s", part, ", ".join(f"{name} {value:,.4g}" for name, value in found.items()))
        page = [result(root, made)]
        if scores:
            table = [
                {"part": part} | {name: f"{value:,.4g}" for name, value in s.items()} for part, s in scores.items()
            ]
            page.insert(0, f"## Scores of the task\n\n{as_table(table)}\n")
        publisher.publish("result", lambda: "\n".join(page), "results and their paths", of_step=False)
        return (root / made[2].folder).url


def labels_of(root: Folder, prepared: Manifest) -> tuple[str, ...] | None:
    """Names of the classes that the samples have, empty for other kinds; None in a dry run before there are samples."""
    if not prepared.outcome.facts:
        return None
    return tuple(json.loads((root / prepared.folder).read_bytes("labels.json")))


def tuned_settings(
    settings: FinetuneFlowSettings, task: TaskSettings, labels: tuple[str, ...] | None, prepared: Manifest | None = None
) -> TrainSettings:
    """Settings of the training, with the objective of the task and a validation at the end of each epoch.

    `labels` are the names of the classes; None if they are not known yet.
    """
    more: dict[str, object] = {}
    if task.kind == "classification":
        names = labels or task.data.labels or ("0", "1")
        options = {"labels": json.dumps(list(names), ensure_ascii=False)}
        more = {"objective": {"name": "classification", "options": options}, "model": {"labels": len(names)}}
    elif task.kind == "answers":
        more = {"objective": {"name": "answers"}}
    facts = prepared.outcome.facts if prepared is not None else {}
    if settings.validations and facts:
        train = settings.train
        _, size, _ = train.batch.sizes(Layout.of(train, settings.launch.world).data)
        steps = math.ceil(_samples(facts, "train", task, train.model.context) / size)
        interval = max(1, math.ceil(steps / settings.validations))
        count = max(1, _samples(facts, "valid", task, train.model.context))
        more["validation"] = {"interval": interval, "samples": count}
    return build(TrainSettings, layer(settings.train.model_dump(), more), source=settings.task)


def ready_samples(root: Folder, prepared: Manifest, base: BaseModel, task: TaskSettings) -> ReadyTokens:
    """Samples of a task as token files of a training."""
    folder = (root / prepared.folder).path()
    facts = prepared.outcome.facts
    return ReadyTokens(
        corpora=(Corpus(prefix=f"{folder}/train"),),
        split=None,
        vocab=base.vocab,
        tokenizer=Path(folder) if task.kind == "answers" else base.tokenizer,  # with the chat template beside it
        tokenizer_hash=base.tokenizer_hash,
        identities=(),
        facts=dict(facts),
        valid=f"{folder}/valid" if "valid_samples" in facts else None,
    )


def _samples(facts: dict[str, int], part: str, task: TaskSettings, context: int) -> int:
    """Samples of an epoch of a part; texts are packed."""
    if task.kind == "text":
        return samples_in(facts.get(f"{part}_tokens", 0), context)
    return facts.get(f"{part}_samples", 0)


finetune = settings_flow(Finetune)

if __name__ == "__main__":
    command(finetune)
