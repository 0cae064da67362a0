"""Pretraining flow: token shards -> checkpoints, in one torchrun job. Run it with `python -m flows.pretrain`.

The tokens are those of the data flow, or with `--tokens` files that were made elsewhere. With `--score` the model is
merged and scored at the end.
"""

import logging
from pathlib import Path

from flows.command import command
from flows.dry_run.plan import plan_page
from flows.dry_run.resources import check_resources, vocabulary_of
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import check_output, run_context
from flows.recipe import PlannedRun
from flows.scores import check_data, merge_and_score, scores_after_training
from flows.settings import DataprepSettings, PretrainFlowSettings, PretrainSettings
from flows.ui.result import show_result
from gpt2train.data.sentinels import TOP, find_special_tokens, needs_tokenizer
from gpt2train.data.tokenizer import load_tokenizer, open_tokenizer
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.errors import UserError
from gpt2train.model.objectives import SpanCorruptionOptions
from gpt2train.parallel.layout import Layout
from gpt2train.settings import MAX_COUNT
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, need_manifest
from gpt2train.store.output import check_no_removal
from tasks.core.runner import Retries, Runner
from tasks.core.stage_inputs import on_local_disk
from tasks.passport.write import leave_passport, run_names
from tasks.ready_tokens.step import ready_tokens
from tasks.ready_tokens.tokens import TOKENIZER, ReadyTokens
from tasks.tokenizer.step import own_files
from tasks.train.launch.launchers import check_launcher
from tasks.train.step import check_corpora, check_ready_tokens, train

TRAIN = "train"  # name of the training step

log = logging.getLogger("gpt2train")


def check(run: PlannedRun[PretrainFlowSettings]) -> None:
    """Check inputs, output, parallel layout and this machine's resources before the flow starts.

    Raises:
        UserError: the output cannot be written or is not local, the batch does not divide over the processes, a
            corpus is missing or a removal of pages was interrupted in one, token files made elsewhere cannot be used,
            data of the scores are missing or malformed, or this machine lacks resources for the run.
        RunError: there are no tokens.
    """
    settings = run.settings
    check_local(settings.output)
    data = Folder(settings.data or settings.output)
    check_no_removal(data)
    if settings.score:
        check_data(settings, settings.lambada)
    if run.ready_tokens is not None:
        check_ready_tokens(run.ready_tokens, settings.train)
    check_training(run)
    check_output(settings)
    if run.ready_tokens is not None:
        return
    for step in ("tokens", "tokenizer"):
        need_manifest(data / step)


def recipe(run: PlannedRun[PretrainFlowSettings], runner: Runner) -> list[Manifest]:
    """Run all steps of the flow. Returns their manifests; merge and scores, if any, are the last two."""
    inputs, note = scores_after_training(run)
    if note is not None and not runner.is_dry_run:
        log.warning(note)
    manifests = train_on_given_tokens(run, runner)
    if inputs is not None:
        manifests += merge_and_score(run.root, manifests[-1], inputs, run.settings, runner)
    return manifests


def train_on_given_tokens(run: PlannedRun[PretrainFlowSettings], runner: Runner) -> list[Manifest]:
    """Train on the tokens of the data flow, or on those made elsewhere. The last manifest is that of the training."""
    if ready := run.ready_tokens:
        counted = runner.run_step(ready_tokens, run.root, ready)
        return [counted, train_on_tokens(run.root, ready, counted, None, run.settings, runner)]
    data = Folder(run.settings.data or run.settings.output)
    tokens, bpe = runner.input_manifest(data / "tokens"), runner.input_manifest(data / "tokenizer")
    if runner.is_dry_run:
        data = data if data.is_local else run.root  # nothing is copied
    else:
        data = on_local_disk(data, [tokens, bpe], run.root)
    return [train_on_tokens(run.root, data, tokens, bpe, run.settings, runner)]


@settings_flow("pretrain", PretrainFlowSettings, recipe, check)
def pretrain(run: PlannedRun[PretrainFlowSettings]) -> str:
    """Train on token shards and write checkpoints. Returns the run folder."""
    with run_context(run.settings, plan=lambda: plan_page(run)) as (root, runner):
        manifests = recipe(run, runner)
        show_result(runner.publisher, root, manifests)
        leave_passport(root, run_names(manifests))
        return next((root / manifest.folder).url for manifest in manifests if manifest.step == TRAIN)


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


def check_training(run: PlannedRun[PretrainSettings]) -> None:
    """Check parallel layout, launcher, corpora of the mixture and this machine's resources; see `check`."""
    settings = run.settings
    Layout.of(settings.train, settings.launch.world)
    check_launcher(settings.launch, Folder(settings.output).path())
    check_corpora(settings.train)
    if settings.train.objective.name == "span_corruption":
        _check_special_tokens(run)
    check_resources(run)


def _check_special_tokens(run: PlannedRun[PretrainSettings]) -> None:
    """Look up the sentinels in the tokenizer, as the training will.

    Raises:
        UserError: one does not exist, or would not in a tokenizer that the flow makes.
    """
    settings = run.settings
    options = SpanCorruptionOptions.model_validate(settings.train.objective.options)
    if isinstance(settings, DataprepSettings) and settings.tokenizer.name != "folder":
        if options.sentinels != TOP and settings.tokenizer.sentinels < options.sentinel_count:
            raise UserError(
                f"tokenizer.sentinels is {settings.tokenizer.sentinels}, but the objective needs "
                f"{options.sentinel_count}; set it to that, or objective.options.sentinels to top"
            )
        return
    if isinstance(settings, DataprepSettings):
        source = str(settings.tokenizer.folder)
        tokenizer = open_tokenizer(own_files(settings.tokenizer)[0], source)
    else:
        place = run.ready_tokens.tokenizer if run.ready_tokens else Path(settings.data or settings.output) / TOKENIZER
        if place is None and needs_tokenizer(options):
            raise UserError(f"{settings.train.objective.name} looks up its tokens by name; give --tokenizer DIR")
        if place is None or not (place.is_file() or has_tokenizer(place)):
            return  # not needed; in an object store, or not made yet
        source, tokenizer = str(place), load_tokenizer(place)
    # A model to start from may have further rows.
    vocab = vocabulary_of(run) if settings.train.checkpoints.init_from is None else MAX_COUNT
    find_special_tokens(options, int(settings.train.model.options["start_id"]), vocab, tokenizer, source)


def check_local(output: str) -> None:
    """Check that the output is on a local disk: training memory-maps tokens and renames checkpoints.

    Raises:
        UserError: the output is in an object store.
    """
    if not Folder(output).is_local:
        raise UserError(
            f"training writes to a local disk, not to {output}; run flows.dataprep --output {output}, then "
            f"flows.pretrain --data {output} --output FOLDER"
        )


if __name__ == "__main__":
    command(pretrain, "run")
