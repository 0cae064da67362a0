"""Resources that a run needs and that this machine lacks, estimated before the run starts."""

import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.dry_run.cached_steps import cached_steps
from flows.settings import DataprepSettings, OutputSettings, PipelineSettings, PretrainSettings, usable_cores
from gpt2train.errors import UserError
from gpt2train.io.files import format_bytes
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import parameter_count
from gpt2train.plan.devices import find_gpus
from gpt2train.plan.fit import ResourceEstimate, estimate_resources, missing_resources
from gpt2train.settings import Settings
from tasks.core.input_files import InputFile
from tasks.core.step import read_manifest
from tasks.core.storage import Folder
from tasks.core.url_lists import find_url_lists, read_urls
from tasks.sources.warcs import find_warcs
from tasks.tokenizer.step import own_files
from tasks.train.launch.launchers import runs_here
from tasks.train.step import run_folder

log = logging.getLogger("gpt2train")

GPT2_VOCAB = 50257
PUBLISHED_SIZE = re.compile(r"\d+m")  # presets named after the published models
MAX_COUNTED_BYTES = 2**26  # URL lists of more bytes are not counted
BYTES_PER_PAGE = 110_000  # a fetched page and all data derived from it


@dataclass(frozen=True)
class RunEstimate:
    """Estimate of a run before it starts. Sources are listed and GPUs queried once, when it is created.

    Attributes:
        fit: resources of the training; None if the flow has none.
        trained: whether the training on the data of this run is already finished and needs nothing more.
        lists: files of the URL lists.
        urls: number of URLs in the lists; None if there are no lists or they are too long to count.
        archives: files of the web archives.
        needed: estimated bytes that the run still has to write.
        free: free bytes of the output; None if unknown.
        lacks: resources that this machine lacks for the training. Machines of a scheduler are not checked.
        no_tokens: message that there are no tokens to train on; None if there are, or if the run makes them.
    """

    fit: ResourceEstimate | None
    trained: bool
    lists: tuple[InputFile, ...]
    urls: int | None
    archives: tuple[InputFile, ...]
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


def estimate_run(settings: Settings) -> RunEstimate:
    """Estimate the resources that a run with these settings needs, and find those that are missing."""
    fit = resource_estimate(settings) if isinstance(settings, PretrainSettings) else None
    run = _existing_run(settings) if isinstance(settings, PretrainSettings) else None
    # With finished data that other settings would recreate, the training counts as done only if every step is cached.
    trained = run is not None and read_manifest(run) is not None
    if trained and isinstance(settings, DataprepSettings):
        trained = dict(cached_steps(settings))["train"] is not None
    lists: tuple[InputFile, ...] = ()
    archives: tuple[InputFile, ...] = ()
    if isinstance(settings, DataprepSettings):
        lists = tuple(find_url_lists(settings.urls)) if settings.urls else ()
        archives = tuple(find_warcs(settings.warcs)) if settings.warcs else ()
    urls = count_urls(lists) if lists else None
    needed, free = 0, None
    if isinstance(settings, OutputSettings):
        needed = _needed_bytes(settings, urls, archives, None if trained else fit, run)
        free = _free_bytes(Folder(settings.output))
    lacks: list[str] = []
    if fit is not None and not trained and isinstance(settings, PretrainSettings):
        lacks += missing_resources(fit, settings.train) if runs_here(settings.launch) else []
    if isinstance(settings, OutputSettings) and free is not None and needed > free:
        space = f"{format_bytes(needed)} needed in {settings.output}, {format_bytes(free)} free"
        lacks.append(f"disk space ({space}: free some, or give another --output)")
    no_tokens = None
    if isinstance(settings, PretrainSettings) and not isinstance(settings, DataprepSettings):
        data = settings.data or settings.output
        if any(read_manifest(Folder(data) / step) is None for step in ("tokens", "tokenizer")):
            no_tokens = f"tokens (none in {data}; run flows.dataprep first)"
    return RunEstimate(fit, trained, lists, urls, archives, needed, free, tuple(lacks), no_tokens)


def resource_estimate(settings: PretrainSettings) -> ResourceEstimate:
    """Estimate the resources of the training on this machine."""
    launch = settings.launch
    return estimate_resources(
        settings.train,
        vocabulary_of(settings),
        find_gpus(),
        processes=launch.processes,
        nodes=launch.machines,
        threads=launch.threads,
        cores=usable_cores(),
    )


def check_resources(settings: PretrainSettings) -> None:
    """Check that this machine has the resources for the training, and log a note about the vocabulary size.

    Raises:
        MissingResourcesError: the machine lacks resources; the message lists them and the remedies.
    """
    if not settings.launch.skip_resource_check and (estimate := estimate_run(settings)).lacks:
        remedy = "" if settings.preset == "tiny" else "use --preset tiny (the deployment pretrain/tiny), or "
        raise MissingResourcesError(
            f"{settings.preset} cannot be trained on this machine, which lacks {', '.join(estimate.missing)}; {remedy}"
            "use another machine, or set launch.skip_resource_check to start anyway (--dry-run shows the plan)"
        )
    if not settings.dry_run and (note := vocabulary_note(settings)):  # the plan of a dry run has a row for it
        log.warning("%s", note)


def count_urls(lists: Sequence[InputFile]) -> int | None:
    """Count the URLs in the lists; None if the lists are larger than `MAX_COUNTED_BYTES`."""
    if sum(item.bytes or MAX_COUNTED_BYTES for item in lists) > MAX_COUNTED_BYTES:
        return None
    return sum(1 for item in lists for _ in read_urls(item.location))


def _needed_bytes(
    settings: OutputSettings,
    urls: int | None,
    archives: Sequence[InputFile],
    fit: ResourceEstimate | None,
    run: Folder | None,
) -> int:
    """Estimated bytes that the run still has to write."""
    needed = 0
    if isinstance(settings, DataprepSettings) and read_manifest(Folder(settings.output) / "tokens") is None:
        # The output of archives and texts is about as large as they are, with the same compression.
        needed += BYTES_PER_PAGE * (urls or 0) + sum(item.bytes or 0 for item in archives)
    if fit is not None:
        needed += fit.checkpoints + (fit.model if isinstance(settings, PipelineSettings) else 0)
        needed = max(0, needed - (_checkpoint_bytes(run) if run is not None else 0))
    return needed


def _free_bytes(root: Folder) -> int | None:
    if not root.is_local:
        return None
    path = Path(root.path())
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _existing_run(settings: PretrainSettings) -> Folder | None:
    """Run folder of the training, whether it exists or not; None if its data are not there yet."""
    root, data = Folder(settings.output), Folder(settings.data or settings.output)
    tokens, bpe = read_manifest(data / "tokens"), read_manifest(data / "tokenizer")
    if tokens is None or bpe is None or not root.is_local:
        return None
    return root / run_folder(tokens, bpe, settings.train, settings.preset)


def _checkpoint_bytes(run: Folder) -> int:
    """Bytes of this run's existing checkpoints, which later ones replace."""
    return sum(file.stat().st_size for file in Path(run.path()).glob("checkpoints/**/*") if file.is_file())


def vocabulary_note(settings: PretrainSettings) -> str | None:
    """Return a warning if a preset named after a published GPT-2 has another size due to its vocabulary; else None."""
    vocabulary = vocabulary_of(settings)
    own = isinstance(settings, DataprepSettings) and settings.tokenizer.name == "folder"
    if not PUBLISHED_SIZE.fullmatch(settings.preset) or vocabulary == GPT2_VOCAB or own:
        return None
    model = settings.train.model
    actual, published = (
        parameter_count(Shape(size, model.layers, model.heads, model.hidden, model.context))
        for size in (vocabulary, GPT2_VOCAB)
    )
    if isinstance(settings, DataprepSettings):
        remedy = "give --tokenizer.name gpt2"
    else:
        remedy = "make the tokens with flows.dataprep --tokenizer.name gpt2"
    return (
        f"preset {settings.preset} with a vocabulary of {vocabulary:,} tokens has {actual:,} parameters, with GPT-2's "
        f"{GPT2_VOCAB:,} it has {published:,}; for GPT-2's vocabulary {remedy}"
    )


def vocabulary_of(settings: PretrainSettings) -> int:
    """Return the vocabulary size of the existing tokenizer, or of the one that the settings will produce."""
    bpe = read_manifest(Folder(settings.data or settings.output) / "tokenizer")
    if bpe is not None and (size := bpe.outcome.facts.get("vocab_size")):
        return size
    if isinstance(settings, DataprepSettings) and settings.tokenizer.name == "train":
        return settings.tokenizer.vocab_size
    if isinstance(settings, DataprepSettings) and settings.tokenizer.name == "folder":
        return own_files(settings.tokenizer)[1]
    return GPT2_VOCAB
