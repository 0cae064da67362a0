"""Evaluation flow: checkpoint -> merged model and scores. Run it with `python -m flows.evaluate --run RUN_FOLDER`."""

import logging
from typing import Any

from flows.command import command
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import run_context
from flows.recipe import PlannedRun
from flows.settings import EvaluateFlowSettings, MergeAndScoreSettings, OutputSettings
from flows.ui.result import show_result
from gpt2train.errors import UserError
from tasks.cloze.step import cloze_file, no_passages_message
from tasks.core.manifest import Manifest, need_manifest, read_manifest
from tasks.core.runner import Runner
from tasks.core.storage import Folder
from tasks.evaluate.step import data_files, read_data
from tasks.evaluate.step import evaluate as evaluate_model
from tasks.merge.step import merge, write_card
from tasks.ready_tokens.step import NAME as READY_TOKENS

log = logging.getLogger("gpt2train")


def check(run: PlannedRun[EvaluateFlowSettings]) -> None:
    """Check inputs and output before the flow starts.

    Raises:
        RunError: the run is missing or unfinished.
        UserError: an input is missing or malformed, or the output cannot be written.
    """
    settings = run.settings
    inputs_of(settings)
    run.root.check_writable(leave=not settings.dry_run)
    if settings.lambada:
        read_data("lambada", settings.lambada)
    check_data(settings)


def recipe(run: PlannedRun[EvaluateFlowSettings], runner: Runner) -> tuple[Manifest, Manifest, Manifest]:
    """Run all steps of the flow. Returns the manifests of the training, of the merge and of the scores."""
    training, bpe, documents, lambada = inputs_of(run.settings)
    return training, *merge_and_score(run.root, training, bpe, lambada, documents, run.settings, runner)


@settings_flow("evaluate", EvaluateFlowSettings, recipe, check)
def evaluate(run: PlannedRun[EvaluateFlowSettings]) -> str:
    """Merge the last checkpoint of a run and score the model. Returns the folder of the scores."""
    settings = run.settings
    output = OutputSettings(output=settings.output, workers=settings.workers, verify=settings.verify)
    with run_context(output) as (root, runner):
        *earlier, scores = recipe(run, runner)
        show_result(runner.publisher, root, [*earlier, scores])
        return (root / scores.folder).url


def inputs_of(settings: EvaluateFlowSettings) -> tuple[Manifest, Manifest, Manifest, str | None]:
    """Find the inputs of an evaluation from a run folder.

    Returns:
        The manifests of training, tokenizer and shuffled documents, and the path of the evaluation set; None if the
        data flow found no cloze passage.

    Raises:
        RunError: the run is not finished.
        UserError: there is no evaluation set: the data flow used a given one and drew none; or the run was trained on
            token files made elsewhere.
    """
    run, root = Folder(settings.run), Folder(settings.output)
    training = need_manifest(run)
    if READY_TOKENS in training.inputs:  # a tokenizer and documents of this output are of another run
        raise UserError(
            f"{run.url} was trained on token files, which have no documents to score; run gpt2train merge {run.url} "
            "--output DIR, then gpt2train evaluate"
        )
    bpe, documents = (need_manifest(root / step) for step in ("tokenizer", "shuffled"))
    if settings.lambada:
        return training, bpe, documents, settings.lambada
    drawn = read_manifest(root / "evalset")
    if drawn is None:
        raise UserError(f"{root.url} holds no cloze set of its own; give --lambada FILE")
    found = cloze_file(root, drawn)
    if found is None:
        log.warning(no_passages_message(drawn))
    return training, bpe, documents, found


def merge_and_score(
    root: Folder,
    training: Manifest,
    bpe: Manifest,
    lambada: str | None,
    documents: Manifest,
    settings: MergeAndScoreSettings,
    runner: Runner,
) -> tuple[Manifest, Manifest]:
    """Merge the checkpoint, score the merged model and write its model card.

    Without a path of the evaluation set (`lambada`) there is no LAMBADA score. The perplexity is that of the shuffled
    documents. Returns the manifests of the merge and of the scores.
    """
    model = runner.run_step(merge, root, training, bpe, settings.merge)
    options: dict[str, Any] = {"wikitext": settings.wikitext, "evals": settings.evals}
    scores = runner.run_step(evaluate_model, root, model, lambada, documents, settings.evaluate, **options)
    if not runner.is_dry_run:
        write_card(root, training, settings.merge, scores)
    return model, scores


def check_data(settings: MergeAndScoreSettings) -> None:
    """Check the data files of WikiText and of `evals`.

    Raises:
        UserError: a file is missing or malformed, or there is no evaluation of a name.
    """
    for name, path in (data_files(None, settings.wikitext) | settings.evals).items():
        read_data(name, path)


if __name__ == "__main__":
    command(evaluate, "scores")
