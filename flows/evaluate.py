"""Evaluation flow: checkpoint -> merged model and scores. Run it with `python -m flows.evaluate --run RUN_FOLDER`."""

import logging
from functools import cached_property
from pathlib import Path, PurePosixPath
from shlex import quote

from flows.command import command
from flows.dry_run.plan import Rows
from flows.orchestration.flow import settings_flow
from flows.recipe import PlannedRun
from flows.scores import ScoreInputs, check_data, merge_and_score
from flows.settings import EvaluateFlowSettings
from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.result import show_result
from gpt2train.config import read_run_settings
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, need_manifest, read_manifest
from gpt2train.store.output import check_no_removal
from tasks.cloze.step import cloze_file, no_passages_message
from tasks.core.runner import Runner
from tasks.ready_tokens.step import NAME as READY_TOKENS

log = logging.getLogger("gpt2train")


class Evaluate(PlannedRun[EvaluateFlowSettings]):
    """Merge the selected checkpoint of a run and score the model. Returns the folder of the scores."""

    name, model, result_name = "evaluate", EvaluateFlowSettings, "scores"
    has_plan = False

    @cached_property
    def inputs(self) -> tuple[Manifest, ScoreInputs]:
        """Manifest of the training, and what its scores need, found once."""
        return inputs_of(self.settings)

    def check(self) -> None:
        _ = self.inputs
        self.root.check_writable(leave=not self.settings.dry_run)
        check_data(self.settings, self.settings.lambada)

    def recipe(self, runner: Runner) -> list[Manifest]:
        training, inputs = self.inputs
        return [training, *merge_and_score(self.root, training, inputs, self.settings, runner)]

    def conclude(self, made: list[Manifest], publisher: ArtifactPublisher) -> str:
        show_result(publisher, self.root, made)
        return (self.root / made[-1].folder).url

    def subject(self) -> list[str]:
        return [PurePosixPath(self.settings.run).name]

    def plan(self) -> Rows:
        return [("missing", "nothing")]


def inputs_of(settings: EvaluateFlowSettings) -> tuple[Manifest, ScoreInputs]:
    """Find the inputs of an evaluation from a run folder: the manifest of the training, and what belongs to it.

    Raises:
        RunError: the run is not finished.
        UserError: there is no evaluation set: the data flow used a given one and drew none, or the run was trained on
            token files made elsewhere.
    """
    run, root = Folder(settings.run), Folder(settings.output)
    training = need_manifest(run)
    if READY_TOKENS in training.inputs:  # a tokenizer and documents of this output are of another run
        if not settings.lambada:
            raise UserError(
                f"{run.url} was trained on token files, which have no documents to score; give --lambada FILE, or run "
                f"gpt2train merge {quote(run.url)} --output DIR, then gpt2train evaluate"
            )
        if not (Path(run.path()) / "tokenizer").is_dir():
            remedy = f"run gpt2train merge {quote(run.url)} --tokenizer DIR --output DIR"
            raise UserError(f"{run.url} was trained without a tokenizer; {remedy}")
        return training, ScoreInputs(root, None, None, settings.lambada)
    data = data_of(run, root)
    check_no_removal(data)
    bpe, documents = (need_manifest(data / step) for step in ("tokenizer", "shuffled"))
    if settings.lambada:
        return training, ScoreInputs(data, bpe, documents, settings.lambada)
    drawn = read_manifest(data / "evalset")
    if drawn is None:
        raise UserError(f"{data.url} holds no cloze set of its own; give --lambada FILE")
    found = cloze_file(data, drawn)
    if found is None:
        log.warning(no_passages_message(drawn))
    return training, ScoreInputs(data, bpe, documents, found)


def data_of(run: Folder, root: Folder) -> Folder:
    """Return the output of the data flow that made a run's tokens: `root`, or that named by the run's settings."""
    if read_manifest(root / "tokenizer") is not None:
        return root
    tokens = Path(read_run_settings(run.path()).data.corpora[0].prefix)  # DATA/tokens/train/tokens
    named = Folder(tokens.parents[2]) if len(tokens.parents) > 2 else root
    return named if read_manifest(named / "tokenizer") is not None else root


evaluate = settings_flow(Evaluate)

if __name__ == "__main__":
    command(evaluate)
