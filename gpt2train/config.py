"""Every setting of a training run, once.

`TrainSettings` is what a person chooses (a preset, a TOML file, flags, the form in the UI); `RunConfig` adds what the
data decides (token files, vocabulary, tokenizer) and where the run lives. A run folder carries its `RunConfig` as
`config.toml`, complete, so that the same command goes on with the same numbers.
"""

import difflib
import importlib.resources
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gpt2train.errors import UserError
from gpt2train.model.shape import Shape
from gpt2train.settings import Settings, build, layer, read_toml

CONFIG_FILE = "config.toml"


class ModelSettings(Settings):
    """The shape of the GPT-2. The vocabulary comes with the data."""

    layers: PositiveInt = 12
    """Transformer blocks."""
    heads: PositiveInt = 12
    """Attention heads; must divide `hidden`."""
    hidden: PositiveInt = 768
    """Width of the residual stream."""
    context: int = Field(1024, ge=2)
    """Tokens that the model sees at once, and the length of a training sample."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout on embeddings, attention and both residual branches, as published; 0 is best for few epochs."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSettings":
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        return self


class BatchSettings(Settings):
    """How many samples make an optimizer step: global_batch = micro_batch x processes x accumulation."""

    micro_batch: PositiveInt = 8
    """Samples a process works on at once; bounds the memory."""
    global_batch: PositiveInt = 512
    """Samples of one optimizer step, over all processes."""

    def accumulation(self, processes: int) -> int:
        """Micro-batches that each process adds up before a step.

        Raises:
            UserError: the global batch does not divide; the message gives the sum and the nearest values that do.
        """
        unit = self.micro_batch * processes
        if self.global_batch % unit:
            below = self.global_batch // unit * unit
            near = f"{below} or {below + unit}" if below else f"{unit}"
            raise UserError(
                f"batch.global_batch {self.global_batch} is not a multiple of micro_batch {self.micro_batch} x "
                f"{processes} processes = {unit}; set it to {near}, or change micro_batch"
            )
        return self.global_batch // unit


class OptimizerSettings(Settings):
    """AdamW (Loshchilov and Hutter 2019)."""

    lr: float = Field(6e-4, gt=0)
    """Peak learning rate."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the running mean of gradients."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of the running mean of squared gradients."""
    eps: float = Field(1e-8, gt=0)
    """Keeps the division finite."""
    weight_decay: float = Field(0.1, ge=0)
    """Decay of matrices and embeddings; biases and LayerNorm are never decayed."""
    clip: float = Field(1.0, gt=0)
    """Largest global gradient norm; larger gradients are scaled down to it."""


class ScheduleSettings(Settings):
    """Linear warm-up, then a cosine down to `min_lr` at the last step."""

    warmup: NonNegativeInt = 100
    """Steps until the peak learning rate."""
    min_lr: float = Field(6e-5, ge=0)
    """Learning rate of the last step."""


class ValidationSettings(Settings):
    """Loss on a fixed set, the same at every validation and on every layout."""

    every: PositiveInt = 250
    """Steps between validations; the last step is always validated."""
    samples: PositiveInt = 256
    """Samples of the set; all there are when the data has fewer."""


class CheckpointSettings(Settings):
    """When to save, and what to keep."""

    every: PositiveInt = 500
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveInt = 3
    """Newest checkpoints that stay on the disk."""


class ParallelSettings(Settings):
    """How the model lies on the processes. All of them are data-parallel."""

    zero: Literal[0, 1, 2, 3] = 0
    """What is sharded over the processes (ZeRO): 0 nothing, 1 optimizer state, 2 + gradients, 3 + parameters."""


class LoggingSettings(Settings):
    """What is shown and written while training."""

    every: PositiveInt = 10
    """Steps between lines on the screen; metrics.jsonl and TensorBoard get every step."""
    tensorboard: bool = True
    """Write TensorBoard files."""


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
    logging: LoggingSettings = LoggingSettings()
    """Screen and files."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """bf16: matrix products in bfloat16, weights and optimizer in float32. On a CPU without AVX512-BF16 or AMX it is
    about 3 times slower than fp32."""
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


class DataSettings(Settings):
    """Token files (`.bin/.idx`), named without their ending."""

    train: str
    """Prefix of the training tokens."""
    valid: str | None = None
    """Prefix of the validation tokens; None trains without validation."""


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

    @property
    def shape(self) -> Shape:
        """The sizes that fix the model's parameters."""
        model = self.model
        return Shape(self.vocab, model.layers, model.heads, model.hidden, model.context)


def presets() -> list[str]:
    """Names of the presets, sorted."""
    folder = importlib.resources.files("gpt2train") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset, as a layer for `gpt2train.settings.build`.

    Raises:
        UserError: there is no such preset; the message names the nearest one.
    """
    if name not in presets():
        near = difflib.get_close_matches(name, presets(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(presets())}"
        raise UserError(f"unknown preset {name!r}; {hint}")
    with importlib.resources.as_file(importlib.resources.files("gpt2train") / "presets" / f"{name}.toml") as path:
        return read_toml(path)


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
    data = {"data": {"train": train, "valid": valid}, "vocab": vocab, "output": output}
    return build(RunConfig, layer(settings.model_dump(), data, {"tokenizer_hash": tokenizer_hash}))


def to_toml(settings: Settings) -> str:
    """Settings as TOML, complete; a None is left out, which reads back as None."""
    return tomli_w.dumps(_without_none(settings.model_dump(mode="json")))


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in mapping.items()
        if value is not None
    }
