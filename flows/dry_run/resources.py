"""Resources that a run needs and that this machine lacks, estimated before the run starts."""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.recipe import PlannedRun
from flows.settings import (
    PRESET_TOKENIZERS,
    DataprepSettings,
    OutputSettings,
    PipelineSettings,
    PretrainSettings,
)
from flows.sources import Sources
from gpt2train.config.data import split_weights
from gpt2train.data.epoch import samples_in
from gpt2train.data.mixture import Mixture
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.errors import UserError
from gpt2train.model.families import parameter_count
from gpt2train.plan.devices import find_gpus, usable_cores
from gpt2train.plan.fit import ResourceEstimate, estimate_resources, missing_resources
from gpt2train.settings import Settings
from gpt2train.store.files import format_bytes
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import read_manifest
from gpt2train.training.train_state import newest_state
from tasks.ready_tokens.step import step_of
from tasks.tokenizer.settings import TokenizerSettings
from tasks.tokenizer.step import own_files
from tasks.train.launch.launchers import runs_here
from tasks.train.step import run_folder

log = logging.getLogger("gpt2train")

GPT2_VOCAB = 50257
BYTES_PER_PAGE = 110_000  # a fetched page and all data derived from it


@dataclass(frozen=True)
class RunEstimate:
    """Estimate of a run before it starts. GPUs are queried once, when it is created.

    Attributes:
        fit: resources of the training; None if the flow has none.
        trained: whether the training on the data of this run is already finished and needs nothing more.
        needed: estimated bytes that the run still has to write.
        free: free bytes of the output; None if unknown.
        lacks: resources that this machine lacks for the training. Machines of a scheduler are not checked.
        no_tokens: message that there are no tokens to train on; None if there are, or if the run makes them.
    """

    fit: ResourceEstimate | None
    trained: bool
    needed: int
    free: int | None
    lacks: tuple[str, ...]
    no_tokens: str | None

    @property
    def missing(self) -> tuple[str, ...]:
        """All missing resources and inputs."""
        return (*self.lacks, *([self.no_tokens] if self.no_tokens else []))


class MissingResourcesError(UserError):
    """This machine lacks resources for the run; the plan of the run lists them."""


def estimate_run(planned: PlannedRun[Settings]) -> RunEstimate:
    """Estimate the resources that a run needs, and find those that are missing."""
    settings = planned.settings
    run = _existing_run(planned) if isinstance(settings, PretrainSettings) else None
    fit = resource_estimate(planned, run) if isinstance(settings, PretrainSettings) else None
    # With finished data that other settings would recreate, the training counts as done only if every step is cached.
    trained = run is not None and read_manifest(run) is not None
    if trained and isinstance(settings, DataprepSettings):
        trained = dict(planned.cached_steps())["train"] is not None
    needed, free = 0, None
    if isinstance(settings, OutputSettings):
        needed = _needed_bytes(settings, planned.sources, None if trained else fit, run)
        free = _free_bytes(Folder(settings.output))
    lacks: list[str] = []
    if fit is not None and not trained and isinstance(settings, PretrainSettings):
        lacks += missing_resources(fit, settings.train) if runs_here(settings.launch) else []
    if isinstance(settings, OutputSettings) and free is not None and needed > free:
        space = f"{format_bytes(needed)} needed in {settings.output}, {format_bytes(free)} free"
        lacks.append(f"disk space ({space}: free some, or give another --output)")
    no_tokens = None
    has_tokens = isinstance(settings, DataprepSettings) or planned.ready_tokens is not None
    if isinstance(settings, PretrainSettings) and not has_tokens:
        data = settings.data or settings.output
        if any(read_manifest(Folder(data) / step) is None for step in ("tokens", "tokenizer")):
            no_tokens = f"tokens (none in {data}; run flows.dataprep first)"
    return RunEstimate(fit, trained, needed, free, tuple(lacks), no_tokens)


def resource_estimate(run: PlannedRun[Settings], folder: Folder | None) -> ResourceEstimate:
    """Estimate the resources of the training, whose run folder may exist, on this machine."""
    settings = _training_settings(run)
    launch = settings.launch
    return estimate_resources(
        settings.train,
        vocabulary_of(run),
        find_gpus(),
        processes=launch.processes,
        nodes=launch.machines,
        threads=launch.threads,
        cores=usable_cores(),
        per_epoch=_samples_per_epoch(run) if settings.train.epochs else None,
        done=() if folder is None else newest_state(folder.path()).done,
    )


def _samples_per_epoch(run: PlannedRun[Settings]) -> int | None:
    """Samples until the first corpus repeats; None if the tokens of the data flow are still to be made."""
    train, ready = _training_settings(run).train, run.ready_tokens
    if ready is not None:
        weights = None if ready.split is None else split_weights(ready.split)
        corpora = [(corpus.weight, len(open_tokens(corpus.prefix, weights).tokens)) for corpus in ready.corpora]
    else:
        if "train_tokens" not in (facts := token_facts(run)):
            return None
        corpora = [(train.mixture.weight, facts["train_tokens"])]
        corpora += [(corpus.weight, len(open_tokens(corpus.prefix).tokens)) for corpus in train.mixture.corpora]
    counts = [(weight, samples_in(tokens, train.sample_length)) for weight, tokens in corpora]
    used = [(weight, samples) for weight, samples in counts if weight] or counts[:1]  # a weight alone says nothing
    return Mixture([weight or 1.0 for weight, _ in used]).per_epoch([samples for _, samples in used])


def token_facts(run: PlannedRun[Settings]) -> Mapping[str, int]:
    """Return the counts of the tokens that exist already; empty if they are still to be made."""
    if run.ready_tokens is not None:
        return run.ready_tokens.facts
    settings = _training_settings(run)
    tokens = read_manifest(Folder(settings.data or settings.output) / "tokens")
    return tokens.outcome.facts if tokens else {}


def _training_settings(run: PlannedRun[Settings]) -> PretrainSettings:
    assert isinstance(run.settings, PretrainSettings)
    return run.settings


def check_resources(run: PlannedRun[PretrainSettings]) -> None:
    """Check that this machine has the resources for the training, and log a note about the vocabulary size.

    Raises:
        MissingResourcesError: the machine lacks resources; the message lists them and the remedies.
    """
    settings = run.settings
    if not settings.launch.skip_resource_check and (estimate := estimate_run(run)).lacks:
        remedy = "" if settings.preset == "tiny" else "use --preset tiny (the deployment pretrain/tiny), or "
        raise MissingResourcesError(
            f"{settings.preset} cannot be trained on this machine, which lacks {', '.join(estimate.missing)}; {remedy}"
            "use another machine, or set launch.skip_resource_check to start anyway (--dry-run shows the plan)"
        )
    if not settings.dry_run and (note := vocabulary_note(run)):  # the plan of a dry run has a row for it
        log.warning("%s", note)


def _needed_bytes(settings: OutputSettings, sources: Sources, fit: ResourceEstimate | None, run: Folder | None) -> int:
    """Estimated bytes that the run still has to write."""
    needed = 0
    if isinstance(settings, DataprepSettings) and read_manifest(Folder(settings.output) / "tokens") is None:
        # The output of archives and texts is about as large as they are, with the same compression.
        needed += BYTES_PER_PAGE * (sources.url_count or 0) + sum(item.bytes or 0 for item in sources.warcs)
    if fit is not None:
        merged = isinstance(settings, PipelineSettings) or getattr(settings, "score", False)
        needed += fit.checkpoints + (fit.model if merged else 0)
        needed = max(0, needed - (_checkpoint_bytes(run) if run is not None else 0))
    return needed


def _free_bytes(root: Folder) -> int | None:
    if not root.is_local:
        return None
    path = Path(root.path())
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _existing_run(run: PlannedRun[Settings]) -> Folder | None:
    """Run folder of the training, whether it exists or not; None if its data are not there yet."""
    settings = _training_settings(run)
    if run.ready_tokens is not None:
        counted = step_of(run.root, run.ready_tokens).finished()
        return run.root / run_folder(counted, None, settings.train, settings.preset) if counted else None
    root, data = Folder(settings.output), Folder(settings.data or settings.output)
    tokens, bpe = read_manifest(data / "tokens"), read_manifest(data / "tokenizer")
    if tokens is None or bpe is None or not root.is_local:
        return None
    return root / run_folder(tokens, bpe, settings.train, settings.preset)


def _checkpoint_bytes(run: Folder) -> int:
    """Bytes of this run's existing checkpoints, which later ones replace."""
    return sum(file.stat().st_size for file in Path(run.path()).glob("checkpoints/**/*") if file.is_file())


def vocabulary_note(run: PlannedRun[Settings]) -> str | None:
    """Return a warning if a preset of GPT-2's vocabulary has another size due to that of the tokens; else None."""
    settings = _training_settings(run)
    vocabulary = vocabulary_of(run)
    own = isinstance(settings, DataprepSettings) and settings.tokenizer.name == "folder"
    if settings.preset in PRESET_TOKENIZERS or vocabulary == GPT2_VOCAB or own:
        return None
    model = settings.train.model
    actual, published = (parameter_count(model.shape(size)) for size in (vocabulary, GPT2_VOCAB))
    if isinstance(settings, DataprepSettings):
        remedy = "give --tokenizer.name gpt2"
    elif run.ready_tokens is not None:
        remedy = "give tokens made with GPT-2's tokenizer"
    else:
        remedy = "make the tokens with flows.dataprep --tokenizer.name gpt2"
    return (
        f"preset {settings.preset} with a vocabulary of {vocabulary:,} tokens has {actual:,} parameters, with GPT-2's "
        f"{GPT2_VOCAB:,} it has {published:,}; for GPT-2's vocabulary {remedy}"
    )


def vocabulary_of(run: PlannedRun[Settings]) -> int:
    """Return the vocabulary size of the existing tokenizer, or of the one that the settings will produce."""
    if run.ready_tokens is not None:
        return run.ready_tokens.vocab
    settings = _training_settings(run)
    if isinstance(settings, DataprepSettings) and settings.tokenizer.name == "gpt2":
        return GPT2_VOCAB
    bpe = read_manifest(Folder(settings.data or settings.output) / "tokenizer")
    if bpe is not None and (size := bpe.outcome.facts.get("vocab_size")):
        return size
    if isinstance(settings, DataprepSettings) and settings.tokenizer.name == "train":
        return settings.tokenizer.vocab_size
    if isinstance(settings, DataprepSettings) and settings.tokenizer.name == "folder":
        return own_files(settings.tokenizer)[1]
    own = PRESET_TOKENIZERS.get(settings.preset)  # what the data flow would make for this preset, as `plan` counts
    return GPT2_VOCAB if own is None else TokenizerSettings.model_validate(own).vocab_size
