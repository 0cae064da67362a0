"""Evaluation flow: checkpoint -> merged model and scores. Run it with `python -m flows.evaluate --run RUN_FOLDER`."""

import logging
from pathlib import PurePosixPath

from flows.command import command
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import run_context
from flows.orchestration.task_runner import run_step
from flows.settings import EvaluateFlowSettings, MergeAndScoreSettings, OutputSettings
from flows.ui.result import show_result
from gpt2train.errors import UserError
from tasks.cloze.step import cloze_file, no_passages_message
from tasks.core.dry_runner import DryRunner
from tasks.core.runner import Runner
from tasks.core.step import Manifest, need_manifest, read_manifest
from tasks.core.storage import Folder
from tasks.evaluate.step import data_files, read_data
from tasks.evaluate.step import evaluate as evaluate_model
from tasks.merge.step import merge, write_card

log = logging.getLogger("gpt2train")


def check(settings: EvaluateFlowSettings) -> None:
    """Check inputs and output before the flow starts.

    Raises:
        RunError: the run is missing or unfinished.
        UserError: an input is missing or malformed, or the output cannot be written.
    """
    root, *_ = inputs_of(settings)
    root.check_writable(leave=not settings.dry_run)
    if settings.lambada:
        read_data("lambada", settings.lambada)
    check_data(settings)


@settings_flow("evaluate", EvaluateFlowSettings, check)
def evaluate(settings: EvaluateFlowSettings) -> str:
    """Merge the last checkpoint of a run and score the model. Returns the folder of the scores."""
    root, training, bpe, documents, lambada = inputs_of(settings)
    output = OutputSettings(output=root.url, workers=settings.workers, verify=settings.verify)
    with run_context(output) as (root, runner):
        model, scores = merge_and_score(root, training, bpe, lambada, documents, settings, runner)
        show_result(runner.publisher, root, [training, model, scores])
        return (root / scores.folder).url


def inputs_of(settings: EvaluateFlowSettings) -> tuple[Folder, Manifest, Manifest, Manifest, str | None]:
    """Find the inputs of an evaluation from a run folder.

    Returns:
        The output folder that holds the run, the manifests of training, tokenizer and shuffled documents, and the path
        of the evaluation set; None if the data flow found no cloze passage.

    Raises:
        RunError: the run is not finished.
        UserError: there is no evaluation set.
    """
    run = Folder(settings.run)
    root = Folder(str(PurePosixPath(run.path()).parent.parent))
    training, bpe, documents = (need_manifest(folder) for folder in (run, root / "tokenizer", root / "shuffled"))
    return root, training, bpe, documents, settings.lambada or _cloze_file(root)


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

    Args:
        root: output folder.
        training: manifest of the training.
        bpe: manifest of the tokenizer.
        lambada: path of the evaluation set; None skips the LAMBADA score.
        documents: manifest of the shuffled documents, for the perplexity.
        settings: settings of both steps.
        runner: runner of both steps.

    Returns:
        The manifests of the merge and of the scores.
    """
    model = run_step(merge, root, training, bpe, settings.merge, runner=runner)
    scores = run_step(
        evaluate_model,
        *(root, model, lambada, documents, settings.evaluate),
        runner=runner,
        wikitext=settings.wikitext,
        evals=settings.evals,
    )
    if not isinstance(runner, DryRunner):
        write_card(root, training, settings.merge, scores)
    return model, scores


def _cloze_file(root: Folder) -> str | None:
    """Path of the cloze set that the data flow drew; None if it found no passage.

    Raises:
        UserError: the data flow used a given set and drew none.
    """
    manifest = read_manifest(root / "evalset")
    if manifest is None:
        raise UserError(f"{root.url} holds no cloze set of its own; give --lambada FILE")
    found = cloze_file(root, manifest)
    if found is None:
        log.warning(no_passages_message(manifest))
    return found


def check_data(settings: MergeAndScoreSettings) -> None:
    """Check the data files of WikiText and of `evals`.

    Raises:
        UserError: a file is missing or malformed, or there is no evaluation of a name.
    """
    for name, path in (data_files(None, settings.wikitext) | settings.evals).items():
        read_data(name, path)


if __name__ == "__main__":
    command(evaluate, "scores")
