"""Resources that a run needs and that this machine lacks, estimated before the run starts."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from flows.settings import PRESET_TOKENIZERS, PretrainSettings
from flows.token_source import EarlierTokens
from gpt2train.errors import UserError
from gpt2train.model.families import parameter_count
from gpt2train.plan.devices import find_gpus, usable_cores
from gpt2train.plan.fit import ResourceEstimate, estimate_resources, missing_resources
from gpt2train.store.files import format_bytes
from gpt2train.store.folder import Folder
from gpt2train.training.train_state import newest_state
from tasks.ready_tokens.tokens import GPT2_VOCAB
from tasks.train.launch.launchers import runs_here


@dataclass(frozen=True)
class TrainingEstimate:
    """Estimate of a training before it starts. GPUs are queried once, when it is created."""

    fit: ResourceEstimate  # resources of the training
    trained: bool  # whether the training on the data of this run is already finished and needs nothing more
    needed: int  # estimated bytes that it still has to write; negative if it replaces larger checkpoints
    lacks: tuple[str, ...]  # resources that this machine lacks for it. Machines of a scheduler are not checked.
    no_tokens: str | None  # message that there are no tokens to train on; None if there are, or if the run makes them


@dataclass(frozen=True)
class RunEstimate:
    """Estimate of a run before it starts."""

    training: TrainingEstimate | None  # estimate of the training; None if the flow has none
    needed: int  # estimated bytes that the run still has to write
    free: int | None  # free bytes of the output; None if unknown
    lacks: tuple[str, ...]  # resources that this machine lacks

    @property
    def missing(self) -> tuple[str, ...]:
        """All missing resources and inputs."""
        no_tokens = self.training.no_tokens if self.training else None
        return (*self.lacks, *([no_tokens] if no_tokens else []))


class MissingResourcesError(UserError):
    """This machine lacks resources for the run; the plan of the run lists them."""


def estimate_run(output: str, data_bytes: int, training: TrainingEstimate | None) -> RunEstimate:
    """Estimate the resources that a run needs, and find those that are missing."""
    needed = data_bytes if training is None else max(0, data_bytes + training.needed)
    free = _free_bytes(Folder(output))
    lacks = list(training.lacks) if training else []
    if free is not None and needed > free:
        space = f"{format_bytes(needed)} needed in {output}, {format_bytes(free)} free"
        lacks.append(f"disk space ({space}: free some, or give another --output)")
    return RunEstimate(training, needed, free, tuple(lacks))


def estimate_training(
    settings: PretrainSettings, tokens: EarlierTokens, folder: Folder | None, *, trained: bool, merged: bool
) -> TrainingEstimate:
    """Estimate the resources of a training on this machine.

    Args:
        settings: settings of the training.
        tokens: its tokens.
        folder: its run folder, which may exist; None if its data are not there yet.
        trained: it is already finished.
        merged: the model is merged at the end.
    """
    launch = settings.launch
    fit = estimate_resources(
        settings.train,
        tokens.vocabulary,
        find_gpus(),
        processes=launch.processes,
        nodes=launch.machines,
        threads=launch.threads,
        cores=usable_cores(),
        per_epoch=tokens.samples_per_epoch() if settings.train.epochs else None,
        done=() if folder is None else newest_state(folder.path()).done,
    )
    needed = 0 if trained else fit.checkpoints + (fit.model if merged else 0) - _checkpoint_bytes(folder)
    lacks = missing_resources(fit, settings.train) if runs_here(launch) and not trained else []
    return TrainingEstimate(fit, trained, needed, tuple(lacks), tokens.missing)


def _free_bytes(root: Folder) -> int | None:
    if not root.is_local:
        return None
    path = Path(root.path())
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _checkpoint_bytes(run: Folder | None) -> int:
    """Bytes of a run's existing checkpoints, which later ones replace."""
    files = Path(run.path()).glob("checkpoints/**/*") if run is not None else ()
    return sum(file.stat().st_size for file in files if file.is_file())


def vocabulary_note(settings: PretrainSettings, tokens: EarlierTokens) -> str | None:
    """Return a warning if a preset of GPT-2's vocabulary has another size due to that of the tokens; else None."""
    vocabulary = tokens.vocabulary
    if settings.preset in PRESET_TOKENIZERS or vocabulary == GPT2_VOCAB or tokens.keeps_vocabulary:
        return None
    model = settings.train.model
    actual, published = (parameter_count(model.shape(size)) for size in (vocabulary, GPT2_VOCAB))
    return (
        f"preset {settings.preset} with a vocabulary of {vocabulary:,} tokens has {actual:,} parameters, with GPT-2's "
        f"{GPT2_VOCAB:,} it has {published:,}; for GPT-2's vocabulary {tokens.vocabulary_remedy}"
    )
