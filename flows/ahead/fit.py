"""What a run takes of this machine, and the sum of what is missing, found before anything starts."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.ahead.steps import look_through
from flows.settings import DataprepSettings, OutputSettings, PipelineSettings, PretrainSettings, usable_cores
from gpt2train.errors import UserError
from gpt2train.files import size_words
from gpt2train.plan.devices import find_gpus
from gpt2train.plan.fit import Fit, lacking, weigh
from gpt2train.settings import Settings
from tasks.inputs import InputFile
from tasks.sources.warcs import find_warcs
from tasks.steps import read_manifest
from tasks.storage import Folder
from tasks.train import run_folder
from tasks.urls import find_url_lists, read_urls

GPT2_VOCAB = 50257
COUNTED = 2**26  # bytes of URL lists up to which their lines are counted
PAGE = 110_000  # bytes of a fetched page and all that is made of it


@dataclass(frozen=True)
class Outlook:
    """What is known of a run before it starts; each source is listed, counted, and each GPU asked for once.

    Attributes:
        fit: what the training takes; None where the flow has none.
        trained: the training is done, on the very data that the run comes to, and takes nothing more.
        lists: of URLs.
        urls: in the lists; None where there are none, or they are too long to be counted now.
        archives: of the web.
        needed: bytes that the run still has to write, as far as can be told.
        free: bytes that are free for them; None where the output does not tell.
        missing: all that this machine lacks. Machines of a scheduler are not looked at; it knows them.
    """

    fit: Fit | None
    trained: bool
    lists: tuple[InputFile, ...]
    urls: int | None
    archives: tuple[InputFile, ...]
    needed: int
    free: int | None
    missing: tuple[str, ...]


def outlook(settings: Settings) -> Outlook:
    """Look ahead at a run with these settings."""
    fit = fit_of(settings) if isinstance(settings, PretrainSettings) else None
    run = _run(settings) if isinstance(settings, PretrainSettings) else None
    # The data may be there and yet be made anew, by other settings; only then does it take a look at every step.
    trained = run is not None and read_manifest(run) is not None
    if trained and isinstance(settings, DataprepSettings):
        trained = dict(look_through(settings))["train"] is not None
    lists: tuple[InputFile, ...] = ()
    archives: tuple[InputFile, ...] = ()
    if isinstance(settings, DataprepSettings):
        lists = tuple(find_url_lists(settings.urls)) if settings.urls else ()
        archives = tuple(find_warcs(settings.warcs)) if settings.warcs else ()
    urls = count_urls(lists) if lists else None
    needed, free = 0, None
    if isinstance(settings, OutputSettings):
        needed = _needed(settings, urls, archives, None if trained else fit, run)
        free = _free(Folder(settings.output))
    lacks: list[str] = []
    if fit is not None and not trained and isinstance(settings, PretrainSettings):
        lacks += lacking(fit, settings.train) if settings.launch.launcher == "torchrun" else []
    if isinstance(settings, OutputSettings) and free is not None and needed > free:
        space = f"{size_words(needed)} needed in {settings.output}, {size_words(free)} free"
        lacks.append(f"disk space ({space}: free some, or give another --output)")
    if lacks and isinstance(settings, PretrainSettings) and not isinstance(settings, DataprepSettings):
        data = settings.data or settings.output
        if read_manifest(Folder(data) / "tokens") is None:
            lacks.append(f"tokens (none in {data}; run flows.dataprep first)")
    return Outlook(fit, trained, lists, urls, archives, needed, free, tuple(lacks))


def fit_of(settings: PretrainSettings) -> Fit:
    """What the training takes on this machine."""
    launch = settings.launch
    return weigh(
        settings.train,
        vocabulary_of(settings),
        find_gpus(),
        processes=launch.processes,
        nodes=launch.machines,
        threads=launch.threads,
        cores=usable_cores(),
    )


def check_fit(settings: PretrainSettings) -> None:
    """Stop at once what this machine cannot do.

    Raises:
        UserError: the sum of what is missing, and what would do.
    """
    if settings.launch.anyway or settings.dry_run:
        return
    if lacks := outlook(settings).missing:
        remedy = "" if settings.preset == "tiny" else "take --preset tiny (the deployment pretrain/tiny), or "
        raise UserError(
            f"{settings.preset} cannot be trained here, for it lacks {', '.join(lacks)}; {remedy}"
            "another machine, or set launch.anyway to start all the same (--dry-run shows the plan)"
        )


def count_urls(lists: Sequence[InputFile]) -> int | None:
    """URLs in the lists; None where they are too long to be counted now."""
    if sum(item.bytes or COUNTED for item in lists) > COUNTED:
        return None
    return sum(1 for item in lists for _ in read_urls(item.place))


def _needed(
    settings: OutputSettings, urls: int | None, archives: Sequence[InputFile], fit: Fit | None, run: Folder | None
) -> int:
    """Bytes that the run still has to write."""
    needed = 0
    if isinstance(settings, DataprepSettings) and read_manifest(Folder(settings.output) / "tokens") is None:
        # What comes out of archives and texts is about as large as they are, packed like them.
        needed += PAGE * (urls or 0) + sum(item.bytes or 0 for item in archives)
    if fit is not None:
        needed += fit.checkpoints + (fit.model if isinstance(settings, PipelineSettings) else 0)
        needed = max(0, needed - (_written(run) if run is not None else 0))
    return needed


def _free(root: Folder) -> int | None:
    if not root.is_local:
        return None
    place = Path(root.path())
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _run(settings: PretrainSettings) -> Folder | None:
    """The run folder of the training, finished, begun or not; None as long as its data are not there."""
    root, data = Folder(settings.output), Folder(settings.data or settings.output)
    tokens, bpe = read_manifest(data / "tokens"), read_manifest(data / "tokenizer")
    if tokens is None or bpe is None or not root.is_local:
        return None
    return root / run_folder(tokens, bpe, settings.train, settings.preset)


def _written(run: Folder) -> int:
    """Bytes of the checkpoints that this very run has written: it goes on from them, and removes them in its turn."""
    return sum(file.stat().st_size for file in Path(run.path()).glob("checkpoints/**/*") if file.is_file())


def vocabulary_of(settings: PretrainSettings) -> int:
    """Tokens of the tokenizer: of the one that is there, else of the one that will be."""
    bpe = read_manifest(Folder(settings.data or settings.output) / "tokenizer")
    if bpe is not None and (size := bpe.outcome.facts.get("vocab_size")):
        return size
    if isinstance(settings, DataprepSettings) and settings.tokenizer.name == "train":
        return settings.tokenizer.vocab_size
    return GPT2_VOCAB
