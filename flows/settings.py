"""The settings of the flows: what each room declares, put together, and nothing declared twice.

Precedence: defaults < preset < `--config FILE.toml` < flags, or the parameters of a deployment's run. Without any
source the embedded demo runs, with the preset `deployments/demo.toml`.
"""

import importlib.resources
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, PositiveInt, field_validator

from gpt2train.config import TrainSettings, preset, presets
from gpt2train.errors import UserError
from gpt2train.settings import Settings, build, layer, nearest, read_toml
from tasks.blacklist import BlacklistSettings
from tasks.clean import CleanSettings
from tasks.cloze import ClozeSettings
from tasks.decontaminate import DecontaminateSettings
from tasks.dedup import DedupSettings
from tasks.download import DownloadSettings
from tasks.extract import ExtractSettings
from tasks.lambada import EvaluateSettings
from tasks.launch.settings import LaunchSettings
from tasks.limits import LimitSettings
from tasks.merge import MergeSettings
from tasks.report import ReportSettings
from tasks.shuffle import ShuffleSettings
from tasks.sources.texts import TextsSettings
from tasks.sources.warcs import WarcSettings
from tasks.sources.webpages import WebpagesSettings
from tasks.tokenize import TokenizeSettings
from tasks.tokenizer import TokenizerSettings

S = TypeVar("S", bound=Settings)
SOURCES = ("urls", "warcs", "documents")


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OutputSettings(Settings):
    """Where the work lies and how it is run; nothing here changes a result."""

    output: str = Field("out", min_length=1)
    """Folder, or any fsspec URL, that holds everything: pages, documents, tokens, runs, report."""
    workers: PositiveInt = Field(default_factory=usable_cores)
    """Worker processes, and batches in flight at a time. The outputs do not depend on it."""
    runner: Literal["local", "ray", "dask"] = "local"
    """Where batches run: in processes of this machine, or in the workers of a Ray or Dask cluster (docs/scale.md)."""
    cluster: str | None = None
    """Address of a running cluster: ray://host:10001, tcp://host:8786. None starts one on this machine."""
    shared_disk: bool = False
    """The output's local path is the same disk on every machine of the cluster."""
    verify: bool = False
    """Compare the hashes of finished outputs too, not only their names and sizes."""
    dry_run: bool = False
    """Tell what would be done, and what it takes, and do nothing."""


class DataprepSettings(OutputSettings):
    """From lists of URLs, web archives or texts to token shards."""

    urls: tuple[str, ...] = ()
    """Lists of URLs, one a line: files, globs, fsspec URLs; .gz .bz2 .xz .zst too. Without any source: the embedded
    demo."""
    warcs: tuple[str, ...] = ()
    """Web archives (.warc, .warc.gz, .warc.zst), as Common Crawl publishes them: files, folders, globs, fsspec URLs."""
    documents: tuple[str, ...] = ()
    """Text of your own: JSON lines, Parquet, WET, and .txt .md .html files of one document each; files, folders, globs,
    fsspec URLs; packed or not."""
    json_key: str = Field("text", min_length=1)
    """Name of the text in JSON lines and Parquet."""
    connect_to: dict[str, str] = {}
    """Host pattern -> address:port that is asked instead, as curl's --connect-to: for a mirror, a proxy of your own, a
    test. No part of any fingerprint, and no way around `download.allow_private`."""
    retry_failed: bool = False
    """Ask once more for the pages of a finished download that failed for a reason that may pass; keep the others."""
    lambada: str | None = None
    """LAMBADA test file ({"text": …} lines): kept out of the training text, and scored. None: a cloze set in
    LAMBADA's format is drawn from the held-out test documents."""
    blacklist: BlacklistSettings = BlacklistSettings()
    """Which URLs are not worth a request."""
    download: DownloadSettings = DownloadSettings()
    """How pages are fetched."""
    warc: WarcSettings = WarcSettings()
    """Which pages of web archives are taken."""
    webpages: WebpagesSettings = WebpagesSettings()
    """Which HTML files are taken."""
    texts: TextsSettings = TextsSettings()
    """How texts are read from files."""
    extract: ExtractSettings = ExtractSettings()
    """How the text is taken out of a page."""
    clean: CleanSettings = CleanSettings()
    """Repair, language, length, split."""
    cloze: ClozeSettings = ClozeSettings()
    """The evaluation set that is drawn from held-out documents."""
    decontaminate: DecontaminateSettings = DecontaminateSettings()
    """Keeping the evaluation set out of the training text."""
    dedup: DedupSettings = DedupSettings()
    """Exact and near duplicates."""
    shuffle: ShuffleSettings = ShuffleSettings()
    """Order of the documents."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """Which byte-level BPE."""
    tokenize: TokenizeSettings = TokenizeSettings()
    """Documents to token shards."""
    report: ReportSettings = ReportSettings()
    """The report."""
    limits: LimitSettings = LimitSettings()
    """Share of its rows that each step may reject before the run stops. No part of any fingerprint."""

    @field_validator("connect_to")
    @classmethod
    def _addresses(cls, value: dict[str, str]) -> dict[str, str]:
        for host, target in value.items():
            address, _, port = target.rpartition(":")
            try:
                ipaddress.ip_address(address.strip("[]"))
            except ValueError:
                address = ""
            if not address or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"{host!r} leads to {target!r}, expected address:port as '127.0.0.1:8080'")
        return value

    @property
    def has_source(self) -> bool:
        """Whether any source is given; without one the embedded demo runs."""
        return any(getattr(self, name) for name in SOURCES)


class PretrainSettings(OutputSettings):
    """From token shards to checkpoints."""

    data: str | None = None
    """Output folder of a finished dataprep; from an object store the tokens are first fetched to `output`. None takes
    `output` itself."""
    preset: str = Field("tiny", json_schema_extra={"enum": [*presets()]})
    """Model and recipe: tiny, 117m, 345m, 762m, 1542m; `train` changes single values of it."""
    train: TrainSettings = TrainSettings()
    """The training run."""
    launch: LaunchSettings = LaunchSettings()
    """How the torchrun job is started."""


class JudgeSettings(Settings):
    """What is made of a finished run."""

    merge: MergeSettings = MergeSettings()
    """The Hugging Face folder."""
    evaluate: EvaluateSettings = EvaluateSettings()
    """LAMBADA, perplexity, samples."""
    wikitext: str | None = None
    """WikiText in its tokenised form (wiki.test.tokens), scored besides."""


class ScoreSettings(JudgeSettings):
    """From the last checkpoint of a run to a merged model and its scores."""

    run: str
    """Run folder, as `out/runs/tiny-0123abcd`."""
    lambada: str | None = None
    """LAMBADA test file; None takes the cloze set that the data flow drew."""
    workers: PositiveInt = Field(default_factory=usable_cores)
    """Worker processes."""
    verify: bool = False
    """Compare the hashes of finished outputs too."""
    dry_run: bool = False
    """Tell what would be done, and do nothing."""


class PipelineSettings(DataprepSettings, PretrainSettings, JudgeSettings):
    """The main job: from lists of URLs, web archives or texts to an evaluated model and a report."""


def demo_layer() -> dict[str, Any]:
    """The preset of the embedded demo."""
    with importlib.resources.as_file(importlib.resources.files("deployments") / "demo.toml") as path:
        return read_toml(path)


def read_config(name: str) -> dict[str, Any]:
    """The settings of a TOML file, or of a deployment by its name (`pretrain/345m`).

    Raises:
        UserError: there is no such file and no such name.
    """
    if Path(name).suffix == ".toml" or Path(name).exists():
        return read_toml(name)
    names = deployed()
    if name not in names:
        raise UserError(
            f"{name!r} is neither a settings file (NAME.toml) nor the settings of a deployment; {nearest(name, names)}"
        )
    with importlib.resources.as_file(importlib.resources.files("deployments").joinpath(f"{name}.toml")) as path:
        return read_toml(path)


def deployed() -> list[str]:
    """Names of the deployments that have settings of their own, `deployments/<flow>/<name>.toml`."""
    folders = [entry for entry in importlib.resources.files("deployments").iterdir() if entry.is_dir()]
    files = [(folder.name, file.name) for folder in folders for file in folder.iterdir()]
    return sorted(f"{flow}/{name.removesuffix('.toml')}" for flow, name in files if name.endswith(".toml"))


def resolve(model: type[S], config: str | None = None, flags: Mapping[str, Any] | None = None) -> S:
    """Put the layers of settings together and check them.

    Args:
        model: the settings of the command.
        config: TOML file of settings, or the name of one in `deployments/`, as `pretrain/345m`.
        flags: settings given on the command line or through the API, nested.

    Raises:
        UserError: a wrong, unknown or contradictory setting, in one line.
    """
    given = layer(_concerning(model, read_config(config)) if config else {}, flags or {})
    source = config if config and not flags else "settings"
    below: dict[str, Any] = {}
    if issubclass(model, DataprepSettings) and not any(map(given.get, SOURCES)):
        below = _concerning(model, demo_layer())
    if issubclass(model, PretrainSettings):
        chosen = layer(below, given).get("preset", PretrainSettings.model_fields["preset"].default)
        below = layer({"train": preset(str(chosen))}, below)
    return build(model, below, given, source=source)


def _concerning(model: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """A file's settings without those of the pipeline's other flows: one file serves them all.

    What no flow knows stays, and is refused by name.
    """
    return {key: value for key, value in values.items() if key in model.model_fields or not _of_pipeline(key)}


def _of_pipeline(key: str) -> bool:
    return key in PipelineSettings.model_fields
