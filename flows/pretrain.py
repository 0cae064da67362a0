"""Pretraining flow: token shards -> checkpoints, in one torchrun job. Run it with `python -m flows.pretrain`.

The tokens are those of the data flow, or with `--tokens` files that were made elsewhere. With `--score` the model is
merged and scored at the end.
"""

import logging
from abc import abstractmethod
from functools import cached_property
from typing import TypeVar

from flows.command import command
from flows.dry_run.plan import Rows, ready_rows, training_rows
from flows.dry_run.resources import (
    MissingResourcesError,
    RunEstimate,
    TrainingEstimate,
    estimate_training,
    vocabulary_note,
)
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import check_output
from flows.recipe import PlannedRun
from flows.scores import check_data, merge_and_score, scores_after_training, scores_text
from flows.settings import PretrainFlowSettings, PretrainSettings
from flows.token_source import EarlierTokens, GivenTokens
from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.result import show_result
from gpt2train.data.sentinels import find_special_tokens
from gpt2train.errors import UserError
from gpt2train.model.objectives import SpanCorruptionOptions
from gpt2train.parallel.layout import Layout
from gpt2train.settings import MAX_COUNT
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, need_manifest, read_manifest
from gpt2train.store.output import check_no_removal
from tasks.core.runner import Retries, Runner
from tasks.core.stage_inputs import on_local_disk
from tasks.outputs.passport.write import leave_passport, run_names
from tasks.ready_tokens.step import ready_tokens
from tasks.ready_tokens.tokens import ReadyTokens, open_ready_tokens
from tasks.train.launch.launchers import check_launcher
from tasks.train.step import check_corpora, check_ready_tokens, train

P = TypeVar("P", bound=PretrainSettings, covariant=True)
TRAIN = "train"  # name of the training step

log = logging.getLogger("gpt2train")


class Training(PlannedRun[P]):
    """A flow with a pretraining, on tokens that it makes or finds."""

    @property
    @abstractmethod
    def tokens(self) -> EarlierTokens:
        """Tokens of the training."""

    def check_training(self) -> None:
        """Check parallel layout, launcher, corpora of the mixture and this machine's resources.

        Raises:
            UserError: the batch does not divide over the processes, or a corpus is missing.
            MissingResourcesError: the machine lacks resources; the message lists them and the remedies.
        """
        settings = self.settings
        Layout.of(settings.train, settings.launch.world)
        check_launcher(settings.launch, self.root.path())
        check_corpora(settings.train)
        if settings.train.objective.name == "span_corruption":
            self._check_special_tokens()
        if not settings.launch.skip_resource_check and (estimate := self.estimate).lacks:
            remedy = "" if settings.preset == "tiny" else "use --preset tiny (the deployment pretrain/tiny), or "
            raise MissingResourcesError(
                f"{settings.preset} cannot be trained on this machine, which lacks {', '.join(estimate.missing)}; "
                f"{remedy}use another machine, or set launch.skip_resource_check to start anyway (--dry-run shows the "
                "plan)"
            )
        # The plan of a dry run has a row for it.
        if not settings.dry_run and (note := vocabulary_note(settings, self.tokens)):
            log.warning("%s", note)

    def _check_special_tokens(self) -> None:
        """Look up the sentinels in the tokenizer, as the training will.

        Raises:
            UserError: one does not exist, or would not in a tokenizer that the flow makes.
        """
        train = self.settings.train
        options = SpanCorruptionOptions.model_validate(train.objective.options)
        if (opened := self.tokens.open_tokenizer(options)) is not None:
            source, tokenizer = opened
            # A model to start from may have further rows.
            vocab = self.tokens.vocabulary if train.checkpoints.init_from is None else MAX_COUNT
            find_special_tokens(options, int(train.model.options["start_id"]), vocab, tokenizer, source)

    def is_trained(self, folder: Folder | None) -> bool:
        return folder is not None and read_manifest(folder) is not None

    def training(self) -> TrainingEstimate:
        folder = self.tokens.run_folder()
        merged = getattr(self.settings, "score", True)  # the flow `pretrain` alone can leave the scores out
        trained = self.is_trained(folder)
        return estimate_training(self.settings, self.tokens, folder, trained=trained, merged=merged)

    def subject(self) -> list[str]:
        parallel, world = self.settings.train.parallel, self.settings.launch.world
        sizes = {"tp": parallel.tp, "pp": parallel.pp, "dp": max(1, world // (parallel.tp * parallel.pp))}
        layout = [f"{axis}{size}" for axis, size in sizes.items() if size > 1 or axis == "dp"]
        return [self.settings.preset, *layout, *super().subject()]

    def rows(self, estimate: RunEstimate) -> Rows:
        assert estimate.training is not None
        training = training_rows(self.settings, self.tokens, estimate.training)
        return [*training, *self.score_rows(), *super().rows(estimate)]

    def score_rows(self) -> Rows:
        """Return the row of scores that depend on what there is."""
        return []


class Pretrain(Training[PretrainFlowSettings]):
    """Train on token shards and write checkpoints. Returns the run folder."""

    name, model, result_name = "pretrain", PretrainFlowSettings, "run"

    @cached_property
    def ready_tokens(self) -> ReadyTokens | None:
        """Token files made elsewhere, opened when they are first used; None for tokens of the data flow.

        Raises:
            UserError: a file or the tokenizer is missing, damaged or of another kind.
        """
        settings = self.settings
        if settings.tokens is None:
            return None
        return open_ready_tokens(settings.tokens, settings.split, settings.tokenizer, settings.vocab, settings.valid)

    @property
    def tokens(self) -> EarlierTokens:
        """Tokens of an earlier data flow, or those made elsewhere."""
        ready = self.ready_tokens
        return EarlierTokens(self.settings) if ready is None else GivenTokens(self.settings, ready)

    def check(self) -> None:
        """Check inputs, output, parallel layout and this machine's resources.

        Raises:
            UserError: the output cannot be written or is not local, the batch does not divide over the processes, a
                corpus is missing or a removal of pages was interrupted in one, token files made elsewhere cannot be
                used, data of the scores are missing or malformed, or this machine lacks resources for the run.
            RunError: there are no tokens.
        """
        settings = self.settings
        check_local(settings.output)
        data = Folder(settings.data or settings.output)
        check_no_removal(data)
        if settings.score:
            check_data(settings, settings.lambada)
        if self.ready_tokens is not None:
            check_ready_tokens(self.ready_tokens, settings.train)
        self.check_training()
        check_output(settings)
        if self.ready_tokens is None:
            for step in ("tokens", "tokenizer"):
                need_manifest(data / step)

    def recipe(self, runner: Runner) -> list[Manifest]:
        inputs, note = scores_after_training(self.settings, self.ready_tokens)
        if note is not None and not runner.is_dry_run:
            log.warning(note)
        manifests = self._train(runner)
        if inputs is not None:
            manifests += merge_and_score(self.root, manifests[-1], inputs, self.settings, runner)
        return manifests

    def _train(self, runner: Runner) -> list[Manifest]:
        """Train on the tokens of the data flow, or on those made elsewhere. The last manifest is the training's."""
        if ready := self.ready_tokens:
            counted = runner.run_step(ready_tokens, self.root, ready)
            return [counted, train_on_tokens(self.root, ready, counted, None, self.settings, runner)]
        data = Folder(self.settings.data or self.settings.output)
        tokens, bpe = runner.input_manifest(data / "tokens"), runner.input_manifest(data / "tokenizer")
        if runner.is_dry_run:
            data = data if data.is_local else self.root  # nothing is copied
        else:
            data = on_local_disk(data, [tokens, bpe], self.root)
        return [train_on_tokens(self.root, data, tokens, bpe, self.settings, runner)]

    def conclude(self, made: list[Manifest], publisher: ArtifactPublisher) -> str:
        show_result(publisher, self.root, made)
        leave_passport(self.root, run_names(made))
        return next((self.root / manifest.folder).url for manifest in made if manifest.step == TRAIN)

    def rows(self, estimate: RunEstimate) -> Rows:
        return [*(ready_rows(self.ready_tokens) if self.ready_tokens else []), *super().rows(estimate)]

    def score_rows(self) -> Rows:
        """Return the row of the scores, if the model is scored or they are left out."""
        text = scores_text(*scores_after_training(self.settings, self.ready_tokens))
        return [("scores", text)] if text else []


def train_on_tokens(
    root: Folder,
    data: Folder | ReadyTokens,
    tokens: Manifest,
    bpe: Manifest | None,
    settings: PretrainSettings,
    runner: Runner,
) -> Manifest:
    """Run the training step with the retries of the launch settings.

    `data` is a local folder that holds the tokens and the tokenizer, or token files made elsewhere, which have no
    manifest of a tokenizer; `root` is the output folder.
    """
    launch = settings.launch
    retries = Retries(launch.retries, launch.retry_delay)
    return runner.run_step(train, root, data, tokens, bpe, settings.train, launch, settings.preset, retries=retries)


def check_local(output: str) -> None:
    """Check that the output is on a local disk: training memory-maps tokens and renames checkpoints.

    Raises:
        UserError: the output is in an object store.
    """
    if not Folder(output).is_local:
        remedy = f"run flows.dataprep --output {output}, then flows.pretrain --data {output} --output FOLDER"
        raise UserError(f"training writes to a local disk, not to {output}; {remedy}")


pretrain = settings_flow(Pretrain)

if __name__ == "__main__":
    command(pretrain)
