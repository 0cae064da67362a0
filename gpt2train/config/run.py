"""Complete settings of a run, and reading and writing them."""

import glob
import math
from collections.abc import Mapping, Sequence
from operator import not_
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import Field, field_validator, model_validator

from gpt2train.config.batch import BatchSettings
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.config.callbacks import CallbacksSetting
from gpt2train.config.data import Corpus, DataSettings, DocumentSettings, MixtureSettings, ValidationSettings
from gpt2train.config.execution import CheckpointSettings, LoggingSettings, ParallelSettings, PerformanceSettings
from gpt2train.config.model import ModelSettings, ObjectiveSettings
from gpt2train.config.optimizer import OptimizerSettings, ScalerSettings, ScheduleSettings, SpikeSettings
from gpt2train.config.presets import preset
from gpt2train.model.families import MODELS
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.model.shape import PADDING, Shape
from gpt2train.plugins import load
from gpt2train.settings import MAX_COUNT, Location, Place, PositiveNumber, Settings, build, layer, read_toml, source_of

CONFIG_FILE = "config.toml"


def _is_next_token(objective: ObjectiveSettings) -> bool:
    return objective.model_dump() == ObjectiveSettings().model_dump()  # also of the flags' subclass


class TrainSettings(Settings):
    """User-chosen settings of a training run."""

    model: ModelSettings = ModelSettings()
    """Shape of the model."""
    # Left out of a run's files for next-token prediction, so that files and fingerprints of older runs stay the same.
    objective: ObjectiveSettings = Field(ObjectiveSettings(), exclude_if=_is_next_token)
    """Objective of the training: its data and its loss."""
    batch: BatchSettings = BatchSettings()
    """Samples per step."""
    steps: PositiveNumber = 20_000
    """Optimizer steps."""
    epochs: float = Field(0.0, ge=0, le=MAX_COUNT, exclude_if=not_)
    """Passes over the training tokens, in place of `steps`: above 0, `steps` is computed from them, rounded up. In a
    mixture they are those of the corpus that repeats first."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """AdamW optimizer."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Learning rate schedule."""
    validation: ValidationSettings = ValidationSettings()
    """Validation loss on held-out data."""
    checkpoints: CheckpointSettings = CheckpointSettings()
    """Checkpoints."""
    parallel: ParallelSettings = ParallelSettings()
    """Parallelism degrees and sharding."""
    mixture: MixtureSettings = MixtureSettings()
    """Additional corpora; in a run's own `config.toml` they are listed in `data.train`."""
    documents: DocumentSettings = DocumentSettings()
    """Document boundaries within a sample."""
    scaler: ScalerSettings = ScalerSettings()
    """Loss scale of fp16."""
    spikes: SpikeSettings = SpikeSettings()
    """Skipping of loss spikes."""
    performance: PerformanceSettings = PerformanceSettings()
    """Compilation, kernels and prefetching."""
    logging: LoggingSettings = LoggingSettings()
    """Console, trackers and profiler."""
    callbacks: CallbacksSetting = Field((), exclude_if=not_)
    """Callbacks that plug-ins add, in the order in which they are called: a list of names, or a table
    [callbacks.NAME] of options for each."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """bf16, fp16: matrix products in half precision, weights and optimizer in float32. On a CPU without AVX512-BF16
    or AMX, bf16 is about 3 times slower than fp32, and fp16 about 20 times."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto uses one GPU per process if there are enough, on a Mac its GPU (mps, for one process)."""
    seed: int = Field(1234, ge=0, le=2**53 - 1)
    """Seed of the initial weights, the order of the data and dropout."""

    @model_validator(mode="after")
    def _objective_fits(self) -> "TrainSettings":
        name, labels = self.objective.name, self.model.labels
        if labels and name in ("next_token", "answers"):
            raise ValueError(f"model.labels {labels} is for classifiers; the objective {name} predicts tokens")
        if self.objective.z_loss and (labels or OBJECTIVES[name].loss):
            raise ValueError(f"objective.z_loss is for the prediction of tokens, and {name} has another; set it to 0")
        return self

    @model_validator(mode="after")
    def _metric_fits(self) -> "TrainSettings":  # the settings of a fine-tuning, whose objective is not here, replace it
        name = self.objective.name
        metric, known = self.checkpoints.best_metric, ("loss", *OBJECTIVES[name].best_metrics)
        if metric not in known:
            raise ValueError(f"objective {name} has no checkpoints.best_metric {metric!r}; give {' or '.join(known)}")
        return self

    @model_validator(mode="after")
    def _performance_fits(self) -> "TrainSettings":
        placement = self.parallel.offload_placement
        if self.optimizer.name == "muon" and self.parallel.cpu_offload and placement != "all":
            raise ValueError(
                f"optimizer.name muon has no offload of its own (parallel.offload_placement {placement!r}); set "
                "offload_placement = 'all', or adamw"
            )
        if self.performance.fp8 != "off" and self.precision != "bf16":
            raise ValueError(
                f"performance.fp8 {self.performance.fp8!r} needs precision bf16, not {self.precision}; set "
                'precision = "bf16", or performance.fp8 = "off"'
            )
        if self.performance.stream == "bf16" and self.precision != "bf16":
            remedy = 'set precision = "bf16", or performance.stream = "fp32"'
            raise ValueError(f'performance.stream "bf16" needs precision bf16, not {self.precision}; {remedy}')
        if self.performance.stream == "bf16" and self.model.family == "t5":
            raise ValueError('performance.stream "bf16" is not for T5; set performance.stream = "fp32"')
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> "TrainSettings":
        warmup, decay = self.schedule.warmup, self.schedule.decay_steps
        if decay and warmup >= decay:
            raise ValueError(f"schedule.warmup {warmup} must be below schedule.decay_steps {decay}")
        if not decay and not self.epochs and warmup >= self.steps:  # with epochs, make_schedule checks it
            raise ValueError(f"schedule.warmup {warmup} must be below steps {self.steps}; lower it or train longer")
        if self.schedule.min_lr > self.optimizer.lr:
            raise ValueError(f"schedule.min_lr {self.schedule.min_lr:g} is above optimizer.lr {self.optimizer.lr:g}")
        return self

    @model_validator(mode="after")
    def _sequences_fit(self) -> "TrainSettings":
        family, name = self.model.family, self.objective.name
        both = len(MODELS[family].lengths(self.model.shape(PADDING))) > 1
        if both and OBJECTIVES[name].sequences == 1:
            raise ValueError(
                f"the model family {family} has an encoder and a decoder, and the objective {name} is for a decoder "
                'alone; set objective.name = "span_corruption"'
            )
        if not both and OBJECTIVES[name].sequences > 1:
            raise ValueError(
                f"the objective {name} needs an encoder and a decoder, but the model family {family} is a decoder "
                'alone; set model.family = "t5"'
            )
        _ = self.sample_length
        return self

    def has_half_stream(self, on_gpu: bool) -> bool:
        """Return True if the residual stream is in bf16."""
        if self.performance.stream != "auto":
            return self.performance.stream == "bf16"
        return on_gpu and self.precision == "bf16" and self.model.family != "t5"

    @property
    def sample_length(self) -> int:
        """Tokens that a sample takes from packed documents; ValueError if the model has another length."""
        length = OBJECTIVES[self.objective.name].length
        return self.model.context if length is None else int(load(length)(self))


S = TypeVar("S", bound=TrainSettings)


class RunConfig(TrainSettings):
    """Complete settings of a run: the user's choices, the properties of the data and the run folder."""

    data: DataSettings
    """Token files."""
    vocab: int = Field(ge=2, le=MAX_COUNT)
    """Vocabulary size of the tokenizer; every token id in the data is below it."""
    tokenizer_hash: str | None = None
    """Hash of the tokenizer that made the tokens, stored in checkpoints; a run with another tokenizer is refused."""
    output: Place = Field(min_length=1)
    """Run folder, on a local or shared disk."""

    @field_validator("output")
    @classmethod
    def _on_disk(cls, value: str) -> str:
        if "://" in value:
            raise ValueError("a run folder is on a local or shared disk; give a path")
        return value

    @model_validator(mode="after")
    def _mixed_once(self) -> "RunConfig":
        if self.mixture.corpora:
            raise ValueError("mixture.corpora is for the flows; give data.train as a list of {prefix, weight}")
        return self

    @property
    def shape(self) -> Shape:
        """Sizes that determine the model's parameters."""
        return self.model.shape(self.vocab)


def read_run_config(
    path: str | Path, preset_name: str | None = None, changes: Sequence[Mapping[str, Any]] = ()
) -> RunConfig:
    """Read a run's TOML file, on top of a preset if one is named, and below changes from a command line.

    Raises:
        UserError: a file is missing, is not TOML, or a setting is wrong.
    """
    base, given = layer(preset(preset_name) if preset_name else {}, read_toml(path)), layer(*changes)

    def source(setting: Location, message: str) -> str:
        return source_of(RunConfig, setting, message, (str(path), base), ("--set", given)) or str(path)

    return build(RunConfig, base, given, source=source)


def read_run_settings(run: str | Path) -> RunConfig:
    """Read the settings of a run folder, which may have been moved or copied since: alone, or with folders around it.

    What they name in a folder that was moved is named where it is now.

    Raises:
        UserError: a file is missing, is not TOML, or a setting is wrong.
    """
    config = read_run_config(Path(run) / CONFIG_FILE)
    then, now = Path(config.output), Path(run).resolve()
    while then.name and then.name == now.name:
        then, now = then.parent, now.parent

    def place(named: str) -> str:
        if not Path(named).is_relative_to(then):
            return named
        moved = now / Path(named).relative_to(then)
        is_there = any(moved.parent.glob(f"{glob.escape(moved.name)}*"))  # of a prefix there are only longer names
        return str(moved) if is_there else named

    def corpus(named: Corpus) -> Corpus:
        return named.model_copy(update={"prefix": place(named.prefix)})

    train, valid, start = config.data.train, config.data.valid, config.checkpoints.init_from
    train = place(train) if isinstance(train, str) else tuple(map(corpus, train))
    data = config.data.model_copy(update={"train": train, "valid": valid and place(valid)})
    checkpoints = config.checkpoints.model_copy(update={"init_from": start and place(start)})
    return config.model_copy(update={"output": str(run), "data": data, "checkpoints": checkpoints})


def run_config(
    settings: TrainSettings,
    *,
    train: str | tuple[Corpus, ...],
    valid: str | None,
    vocab: int,
    tokenizer_hash: str | None,
    output: str,
    split: str | None = None,
) -> RunConfig:
    """Combine user-chosen settings with the properties of the data.

    Corpora in `train` take the place of the mixture. The split has the weights by which the training tokens are split.
    """
    corpora = train
    if isinstance(corpora, str):
        corpora = (Corpus(prefix=corpora, weight=settings.mixture.weight), *settings.mixture.corpora)
    mixed = [corpus.model_dump() for corpus in corpora] if len(corpora) > 1 else corpora[0].prefix
    data = {"data": {"train": mixed, "valid": valid, "split": split}, "vocab": vocab, "output": output}
    chosen = settings.model_dump(exclude={"mixture"})
    return build(RunConfig, layer(chosen, data, {"tokenizer_hash": tokenizer_hash}))


def resolve_epochs(settings: S, per_epoch: int, batches: BatchPlan) -> S:
    """Compute `steps` from `epochs`; no change if `epochs` is 0.

    `per_epoch` counts the samples of an epoch; a run that resumes has the batches of the steps that are done.
    """
    if not settings.epochs:
        return settings
    steps = batches.steps_until(math.ceil(settings.epochs * per_epoch))
    return settings.model_copy(update={"steps": max(1, steps)})


def to_toml(settings: Settings) -> str:
    """Format settings as complete TOML. None values are left out and read back as None."""
    return tomli_w.dumps(_without_none(settings.model_dump(mode="json")))


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in mapping.items()
        if value is not None
    }
