"""A run's settings, complete, and how they are read and written."""

from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gpt2train.config.batch import BatchSettings
from gpt2train.config.checkpoints import CheckpointSettings
from gpt2train.config.data import Corpus, DataSettings, MixSettings, SampleSettings, ValidationSettings
from gpt2train.config.logging import LoggingSettings
from gpt2train.config.model import ModelSettings
from gpt2train.config.optimizer import OptimizerSettings, ScalerSettings, ScheduleSettings, SkipSettings
from gpt2train.config.parallel import ParallelSettings
from gpt2train.config.presets import preset
from gpt2train.config.speed import SpeedSettings
from gpt2train.model.shape import Shape
from gpt2train.settings import Settings, build, layer, read_toml

CONFIG_FILE = "config.toml"


class TrainSettings(Settings):
    """What a person chooses about a training run."""

    model: ModelSettings = ModelSettings()
    """Shape of the model."""
    batch: BatchSettings = BatchSettings()
    """Samples per step."""
    steps: PositiveInt = 20_000
    """Optimizer steps."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """AdamW."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Learning rate over the steps."""
    validation: ValidationSettings = ValidationSettings()
    """Loss on held-out data."""
    checkpoints: CheckpointSettings = CheckpointSettings()
    """Saving."""
    parallel: ParallelSettings = ParallelSettings()
    """Layout over the processes."""
    mix: MixSettings = MixSettings()
    """Further corpora; in a run's own file they stand in `data.train`."""
    samples: SampleSettings = SampleSettings()
    """Documents within a sample."""
    scaler: ScalerSettings = ScalerSettings()
    """Loss scale of fp16."""
    skip: SkipSettings = SkipSettings()
    """Steps that are not used."""
    speed: SpeedSettings = SpeedSettings()
    """Compiling and prefetching."""
    logging: LoggingSettings = LoggingSettings()
    """Screen and files."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """bf16, fp16: matrix products in half precision, weights and optimizer in float32. On a CPU without AVX512-BF16
    or AMX bf16 is about 3 times slower than fp32, and fp16 20 times."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU for each process where there is one."""
    seed: NonNegativeInt = 1234
    """Seeds the first weights, the order of the data and dropout."""

    @model_validator(mode="after")
    def _schedule_fits(self) -> "TrainSettings":
        if self.schedule.warmup >= self.steps:
            raise ValueError(f"schedule.warmup {self.schedule.warmup} must be below steps {self.steps}")
        if self.schedule.min_lr > self.optimizer.lr:
            raise ValueError(f"schedule.min_lr {self.schedule.min_lr:g} is above optimizer.lr {self.optimizer.lr:g}")
        return self


class RunConfig(TrainSettings):
    """A run, complete: what was chosen, what the data decides, where it lives."""

    data: DataSettings
    """Token files."""
    vocab: int = Field(ge=2)
    """Tokens of the tokenizer; every id in the data is below it."""
    tokenizer_hash: str | None = None
    """Identity of the tokenizer that made the tokens; checkpoints carry it, and a run with another one is refused."""
    output: str
    """The run folder, on a local or shared disk."""

    @model_validator(mode="after")
    def _mixed_once(self) -> "RunConfig":
        if self.mix.corpora:
            raise ValueError("mix.corpora is for the flows; give data.train as a list of {prefix, weight}")
        return self

    @property
    def shape(self) -> Shape:
        """The sizes that fix the model's parameters."""
        model = self.model
        return Shape(self.vocab, model.layers, model.heads, model.hidden, model.context)


def read_run_config(path: str | Path, preset_name: str | None = None) -> RunConfig:
    """Read a run's TOML file, on top of a preset where one is named.

    Raises:
        UserError: a file is missing, is not TOML, or holds a wrong setting.
    """
    return build(RunConfig, preset(preset_name) if preset_name else {}, read_toml(path), source=str(path))


def run_config(
    settings: TrainSettings, *, train: str, valid: str | None, vocab: int, tokenizer_hash: str | None, output: str
) -> RunConfig:
    """Join what a person chose with what the data decides."""
    corpora = (Corpus(prefix=train, weight=settings.mix.weight), *settings.mix.corpora)
    mixed = [corpus.model_dump() for corpus in corpora] if settings.mix.corpora else train
    data = {"data": {"train": mixed, "valid": valid}, "vocab": vocab, "output": output}
    chosen = settings.model_dump(exclude={"mix"})
    return build(RunConfig, layer(chosen, data, {"tokenizer_hash": tokenizer_hash}))


def to_toml(settings: Settings) -> str:
    """Settings as TOML, complete; a None is left out, which reads back as None."""
    return tomli_w.dumps(_without_none(settings.model_dump(mode="json")))


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in mapping.items()
        if value is not None
    }
