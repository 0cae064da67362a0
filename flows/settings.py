"""Settings of the flows, composed from the settings of each step.

Precedence: defaults < preset < `--config FILE.toml` < flags (or the parameters of a deployment's run). Without any
source the embedded demo runs, with the settings of `deployments/demo.toml` as its preset.
"""

import importlib.resources
import ipaddress
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, PositiveInt, field_validator, model_validator

from gpt2train.config import TrainSettings, preset, presets
from gpt2train.config.data import Split, TaskSelection
from gpt2train.config.recipe import MAX_DEPTH, SMALL_DEPTH
from gpt2train.convert.settings import MergeSettings
from gpt2train.errors import UserError
from gpt2train.plan.budget import Rate, Recipe, given_recipe, machine_rate
from gpt2train.plan.devices import find_gpus, usable_cores
from gpt2train.settings import MAX_COUNT, Location, Place, Settings, build, layer, nearest, read_toml, source_of
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import read_manifest
from tasks.blacklist.settings import BlacklistSettings
from tasks.boilerplate.settings import BoilerplateSettings
from tasks.clean.settings import CleanSettings
from tasks.cloze.settings import ClozeSettings
from tasks.core.step import Environment
from tasks.data_steps.registry import DATA_STEPS, limit_settings, settings_groups
from tasks.decontaminate.settings import DecontaminateSettings
from tasks.dedup.settings import DedupSettings
from tasks.discover.settings import DiscoverSettings
from tasks.download.settings import DownloadSettings
from tasks.evaluate.settings import EvaluateSettings
from tasks.extract.settings import ExtractSettings
from tasks.report.settings import ReportSettings
from tasks.shuffle.settings import ShuffleSettings
from tasks.sources.settings import TextsSettings, WarcSettings, WebpagesSettings
from tasks.substrings.settings import SubstringSettings
from tasks.tokenize.settings import TokenizeSettings
from tasks.tokenizer.settings import TokenizerSettings
from tasks.train.launch.settings import LaunchSettings

if TYPE_CHECKING:  # the fields that plug-ins add are known at run time alone
    from gpt2train.settings import Settings as DataStepSettings
    from tasks.core.reject_limits import LimitSettings
else:
    DataStepSettings, LimitSettings = settings_groups(__name__), limit_settings(__name__)

S = TypeVar("S", bound="LayeredSettings")
MAX_WORKERS = 4_096  # processes that start at once: a number with some digits too many would start them until none can
SOURCES = ("urls", "domains", "warcs", "documents")
Source = Annotated[str, Field(min_length=1)]  # empty, as of a shell variable that is not set, it is this folder
# Tokenizer of a preset, where it is not the published one of GPT-2, whose vocabulary is part of the model's size.
PRESET_TOKENIZERS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "modern-tiny": {},
    **{f"modern-{depth}": {} for depth in range(1, SMALL_DEPTH)},
    "cpm-gpt2": {"vocab_size": 30_000},
    "t5-cpm": {"vocab_size": 30_191, "sentinels": 190},
}
ONLY_OF_PRETRAINING = "score"  # in the files of pretraining's deployments; the pipeline always scores
TRAINED = ("vocab_size", "min_frequency", "sample_characters")  # settings that only a trained tokenizer has


class LayeredSettings(Settings):
    """Settings of a flow, over layers of its own below those that the user gives; see `resolve`."""

    base_source: ClassVar[str] = ""
    """Setting that names the file of the base layer, if it is read from one."""

    @classmethod
    def of_file(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a file without those that only other flows have, so that one file serves all flows.

        Keys that no flow has are kept: validation rejects them by name.
        """
        others = {*PipelineSettings.model_fields, ONLY_OF_PRETRAINING} - cls.model_fields.keys()
        return {key: value for key, value in values.items() if key not in others}

    @classmethod
    def base_layer(cls, given: Mapping[str, Any], file: Mapping[str, Any], below: dict[str, Any]) -> dict[str, Any]:
        """Return the settings below the given ones.

        Args:
            given: settings that the user gives, by file or flag.
            file: the whole file, with the settings of other flows.
            below: layer of the classes before this one in the order of inheritance.

        Raises:
            UserError: what the layer is read from is missing or wrong.
        """
        return below

    def worker_module(self) -> str | None:
        """Return the module that workers import while the command starts; None if no worker is to start early."""
        return None


class OutputSettings(LayeredSettings):
    """Output folder and execution settings; none of them changes a result."""

    output: Place = "out"
    """Folder, or any fsspec URL, that holds everything: pages, documents, tokens, runs, report."""
    workers: PositiveInt = Field(default_factory=usable_cores, le=MAX_WORKERS)
    """Worker processes, and batches in flight at a time. The outputs do not depend on it."""
    runner: Literal["local", "ray", "dask"] = "local"
    """Executor of the batches: processes of this machine, or a Ray or Dask cluster."""
    cluster: str | None = None
    """Address of a running cluster: ray://host:10001, tcp://host:8786. None starts one on this machine."""
    shared_disk: bool = False
    """The output's local path is the same disk on every machine of the cluster."""
    verify: bool = False
    """Compare the hashes of finished outputs too, not only their names and sizes."""
    environment: Environment = "redo"
    """Finished outputs that were made with other versions of the packages that shape them: redo them and what follows,
    refuse to run, or accept them as they are. Batches of an unfinished step are redone unless it is refuse."""
    dry_run: bool = False
    """Show the steps that would run and the resources they need; run nothing."""


class DataprepSettings(OutputSettings, DataStepSettings):
    """Settings of data preparation: from lists of URLs, web archives or texts to token shards."""

    urls: tuple[Source, ...] = ()
    """Lists of URLs, one per line: files, globs, fsspec URLs; .gz .bz2 .xz .zst too. Without any source: the embedded
    demo."""
    domains: tuple[Source, ...] = ()
    """Domains whose pages are searched for: names, start pages, or files with one per line."""
    warcs: tuple[Source, ...] = ()
    """Web archives (.warc, .warc.gz, .warc.zst), as Common Crawl publishes them: files, folders, globs, fsspec URLs."""
    documents: tuple[Source, ...] = ()
    """Local texts: JSON lines, Parquet, WET, and .txt .md .html files of one document each; files, folders, globs,
    fsspec URLs; compressed or not."""
    json_key: str = Field("text", min_length=1)
    """Key of the text in JSON lines, and name of its column in Parquet."""
    connect_to: dict[str, str] = {}
    """Host pattern -> address:port to connect to instead, as curl's --connect-to: for a mirror, a proxy or a test.
    It changes no fingerprint and does not bypass `download.allow_private`."""
    retry_failed: bool = False
    """Fetch again the pages that failed for a transient reason."""
    refresh: bool = False
    """Ask for all pages again; take those that have changed (docs/data/refresh.md)."""
    lambada: Place | None = None
    """LAMBADA test file, kept out of the training text. None: one drawn from test documents."""
    discover: DiscoverSettings = DiscoverSettings()
    """Search for the URLs of `domains`: sitemaps, feeds, links, Common Crawl."""
    blacklist: BlacklistSettings = BlacklistSettings()
    """Rules for URLs that are not requested."""
    download: DownloadSettings = DownloadSettings()
    """Download of pages: rate limits, timeouts, retries."""
    warc: WarcSettings = WarcSettings()
    """Selection of pages from web archives."""
    webpages: WebpagesSettings = WebpagesSettings()
    """Selection of local HTML files."""
    texts: TextsSettings = TextsSettings()
    """Reading of texts from files."""
    extract: ExtractSettings = ExtractSettings()
    """Extraction of text from HTML."""
    boilerplate: BoilerplateSettings = BoilerplateSettings()
    """Removal of lines that many documents of a host share; off by default."""
    clean: CleanSettings = CleanSettings()
    """Repair, language, length, split."""
    cloze: ClozeSettings = ClozeSettings()
    """Evaluation set drawn from held-out documents."""
    decontaminate: DecontaminateSettings = DecontaminateSettings()
    """Removal of evaluation passages from the training text."""
    dedup: DedupSettings = DedupSettings()
    """Exact and near deduplication."""
    substrings: SubstringSettings = SubstringSettings()
    """Removal of runs of words that repeat exactly; off by default."""
    shuffle: ShuffleSettings = ShuffleSettings()
    """Order of the documents."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """Byte-level BPE: published, trained, or from a folder."""
    tokenize: TokenizeSettings = TokenizeSettings()
    """Documents to token shards."""
    report: ReportSettings = ReportSettings()
    """Report of the run."""
    limits: LimitSettings = LimitSettings()
    """Share of its rows that each step may reject before the run stops. It changes no fingerprint."""

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
                raise ValueError(f"{host!r} maps to {target!r}, expected address:port as '127.0.0.1:8080'")
        return value

    @classmethod
    def base_layer(cls, given: Mapping[str, Any], file: Mapping[str, Any], below: dict[str, Any]) -> dict[str, Any]:
        """Return the demo's settings, if no source is given, and the tokenizer of the preset; see `LayeredSettings`."""
        demo = {} if any(map(given.get, SOURCES)) else cls.of_file(demo_layer())
        lower = super().base_layer(given, file, layer(below, demo))
        chosen = lower.get("preset", file.get("preset"))  # the file's: of the training that it is for too
        return lower if chosen is None else layer({"tokenizer": _tokenizer_of(str(chosen), given)}, lower)

    def worker_module(self) -> str | None:
        """Return the module of the data steps, for a run on this machine whose tokens are not finished."""
        if self.dry_run or self.runner != "local" or read_manifest(Folder(self.output) / "tokens") is not None:
            return None
        return "flows.worker_imports"

    @property
    def has_source(self) -> bool:
        """True if any source is given; without one the embedded demo runs."""
        return any(getattr(self, name) for name in SOURCES)


class PretrainSettings(OutputSettings):
    """Settings of pretraining that the pipeline has too: from token shards to checkpoints."""

    data: Place | None = None
    """Output folder of a finished dataprep; tokens in an object store are first copied to `output`. None uses `output`
    itself."""
    preset: str = Field("tiny", json_schema_extra={"enum": [*presets()]})
    """Model size and training settings: tiny, 117m, 345m, 762m, 1542m, modern-12, modern-24, or those of a tutorial
    (megatron-345m, …). `train` overrides single values."""
    recipe: Literal["modern"] | None = None
    """Rules that give model size and training settings from `depth` or `budget`, in place of a preset
    (docs/train/modern.md)."""
    depth: int | None = Field(None, ge=1, le=MAX_DEPTH)
    """Blocks of the recipe's model."""
    budget: str | None = None
    """Budget of the recipe, in place of `depth`: time on the machines of `launch` (90m, 8h, 2d), FLOPs (1e18), or the
    goal gpt2 (docs/guides/gpt2.md)."""
    train: TrainSettings = TrainSettings()
    """Training run: model, data, optimizer, parallelism, checkpoints."""
    launch: LaunchSettings = LaunchSettings()
    """Launcher, processes and restarts of the torchrun job."""

    @classmethod
    def base_layer(cls, given: Mapping[str, Any], file: Mapping[str, Any], below: dict[str, Any]) -> dict[str, Any]:
        """Return preset and training settings of the preset or recipe that is chosen; see `LayeredSettings`."""
        if recipe := _recipe_of(given):
            name, train = recipe.name, recipe.settings
        else:
            name = str(layer(below, given).get("preset", cls.model_fields["preset"].default))
            train = preset(name)
        return super().base_layer(given, file, layer({"train": train}, below, {"preset": name}))


class MergeAndScoreSettings(LayeredSettings):
    """Settings of the merge of a finished run and of its scores."""

    merge: MergeSettings = MergeSettings()
    """Hugging Face folder of the merged model."""
    evaluate: EvaluateSettings = EvaluateSettings()
    """LAMBADA, perplexity, samples."""
    wikitext: Place | None = None
    """WikiText in its tokenised form (wiki.test.tokens), scored in addition."""
    evals: dict[str, Place] = {}
    """Name of an evaluation of a plug-in (docs/develop/add-an-evaluation.md) or of a task (docs/train/evaluate.md) ->
    its data file, scored in addition."""
    tasks: TaskSelection = TaskSelection()
    """Tasks and suites that are scored in addition (docs/train/evaluate.md)."""

    @field_validator("evals")
    @classmethod
    def _other_than(cls, value: dict[str, str]) -> dict[str, str]:
        for name in ("lambada", "wikitext"):
            if name in value:
                raise ValueError(f"{name} has a setting of its own; give --{name}")
        return value


class PretrainFlowSettings(PretrainSettings, MergeAndScoreSettings):
    """Settings of pretraining: from token shards, or token files that were made elsewhere, to checkpoints or scores."""

    tokens: Place | None = None
    """Token files made elsewhere, in place of `data`: PREFIX of a pair .bin/.idx, PREFIX,PREFIX for equal weights, or
    "0.3 PREFIX 0.7 PREFIX" (docs/train/ready-tokens.md). mock: a million tokens in no file, to try a layout."""
    split: Split | None = None
    """Weights by which the documents of `tokens` are split into training, validation and test data, as 949,50,1
    (Megatron-LM's `--split`). None trains on all, without validation unless `valid` is given."""
    valid: Place | None = None
    """PREFIX of the validation tokens of `tokens`, in place of `split`."""
    tokenizer: Place | None = None
    """Tokenizer of `tokens`, a folder or a file; None takes `tokenizer/` beside them."""
    vocab: int | None = Field(None, ge=2, le=MAX_COUNT)
    """Size of the vocabulary: number of tokens of the tokenizer of `tokens`, if that is not at hand. A larger one gives
    the model rows that stand for no token, as Megatron-LM's 50,304 for GPT-2's 50,257."""
    score: bool = False
    """Merge the trained model and score it, as the flow of evaluation does."""
    lambada: Place | None = None
    """LAMBADA test file for `score`; None uses the cloze set that the data flow drew."""

    @model_validator(mode="after")
    def _one_source(self) -> "PretrainFlowSettings":
        if self.tokens is not None and self.data is not None:
            raise ValueError("--tokens and --data both name the tokens; give one of them")
        for name in ("split", "valid", "tokenizer", "vocab"):
            if self.tokens is None and getattr(self, name) is not None:
                raise ValueError(f"--{name} is for token files made elsewhere; give --tokens PREFIX, or leave it out")
        if self.valid is not None and self.split is not None:
            raise ValueError("--valid and --split both name validation data; give one of them")
        return self

    @classmethod
    def of_file(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out the table [tokenizer] too: it is for the data flow, that of this flow is a path."""
        kept = super().of_file(values)
        return {key: value for key, value in kept.items() if key != "tokenizer" or not isinstance(value, Mapping)}


class EvaluateFlowSettings(MergeAndScoreSettings):
    """Settings of evaluation: from the selected checkpoint of a run to a merged model and its scores."""

    run: Place
    """Run folder, as `out/runs/tiny-0123abcd`."""
    lambada: Place | None = None
    """LAMBADA test file; None uses the cloze set that the data flow drew."""
    workers: PositiveInt = Field(default_factory=usable_cores, le=MAX_WORKERS)
    """Worker processes."""
    verify: bool = False
    """Compare the hashes of finished outputs too."""
    environment: Environment = "redo"
    """Finished outputs that were made with other versions of the packages that shape them: redo them and what follows,
    refuse to run, or accept them as they are. Batches of an unfinished step are redone unless it is refuse."""
    dry_run: bool = False
    """Show the steps that would run; run nothing."""

    @property
    def output(self) -> str:
        """Output folder that holds the run folder."""
        return str(PurePosixPath(Folder(self.run).path()).parent.parent)


class PipelineSettings(DataprepSettings, PretrainSettings, MergeAndScoreSettings):
    """Settings of the main flow: from lists of URLs, web archives or texts to an evaluated model and a report."""


FlowSettings = OutputSettings | EvaluateFlowSettings

for _name, _step in DATA_STEPS.items():
    if PipelineSettings.model_fields[_name].annotation is not _step.settings:
        raise UserError(f"the data step {_name} of a plug-in has the name of a setting; rename it")


def demo_layer() -> dict[str, Any]:
    """Return the preset of the embedded demo, `deployments/demo.toml`."""
    with importlib.resources.as_file(importlib.resources.files("deployments") / "demo.toml") as path:
        return read_toml(path)


def read_config(name: str) -> dict[str, Any]:
    """Read the settings of a TOML file, or of a deployment by its name (`pretrain/345m`).

    Raises:
        UserError: the name is neither a file nor a deployment.
    """
    if name and (Path(name).suffix == ".toml" or Path(name).exists()):
        return read_toml(name)
    names = deployment_names()
    if name not in names:
        raise UserError(
            f"{name!r} is neither a settings file (NAME.toml) nor the settings of a deployment; {nearest(name, names)}"
        )
    with importlib.resources.as_file(importlib.resources.files("deployments").joinpath(f"{name}.toml")) as path:
        return read_toml(path)


def deployment_names() -> list[str]:
    """Return the names of the deployments that have a settings file `deployments/<flow>/<name>.toml`."""
    folders = [entry for entry in importlib.resources.files("deployments").iterdir() if entry.is_dir()]
    files = [(folder.name, file.name) for folder in folders for file in folder.iterdir()]
    return sorted(f"{flow}/{name.removesuffix('.toml')}" for flow, name in files if name.endswith(".toml"))


def resolve(model: type[S], config: str | None = None, flags: Mapping[str, Any] | None = None) -> S:
    """Merge the layers of settings and validate the result.

    Args:
        model: settings model of the flow.
        config: TOML file of settings, or the name of one in `deployments/`, as `pretrain/345m`.
        flags: nested settings from the command line or the API.

    Raises:
        UserError: a setting is wrong, unknown or contradicts another; the message is one line.
    """
    file = {} if config is None else read_config(config)
    from_file = model.of_file(file)
    given = layer(from_file, flags or {})
    base = model.base_layer(given, file, {})

    def source(location: Location, message: str) -> str:
        if not location and not config:  # a check of several settings: the message names them
            return ""
        rest = config if config and not flags else "settings"
        base_source = str(given.get(model.base_source) or rest)
        layers = (base_source, base), (config or rest, from_file), ("settings", flags or {})
        return source_of(model, location, message, *layers) or rest

    return build(model, base, given, source=source)


def _recipe_of(given: Mapping[str, Any]) -> Recipe | None:
    """Recipe that the user chose, if any.

    Raises:
        UserError: its options contradict each other, or one is out of bounds.
    """

    def rate() -> Rate:
        launch = build(LaunchSettings, given.get("launch", {}))
        size = {"processes": launch.processes, "nodes": launch.machines, "threads": launch.threads}
        return machine_rate(find_gpus(), **size, cores=usable_cores())

    name, preset_name, depth, budget = (given.get(key) for key in ("recipe", "preset", "depth", "budget"))
    return given_recipe(name, preset_name, None if depth is None else int(depth), budget, rate)


def _tokenizer_of(preset_name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the tokenizer that belong to a preset; none if the user chose how to train one."""
    chosen = given.get("tokenizer")
    if isinstance(chosen, Mapping) and "name" not in chosen and any(name in chosen for name in TRAINED):
        return {}
    return PRESET_TOKENIZERS.get(preset_name, {"name": "gpt2"})
