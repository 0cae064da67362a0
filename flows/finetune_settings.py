"""Settings of the fine-tuning flow, and its defaults: those of fine-tuning, never those of a preset's pretraining."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from flows.settings import OutputSettings
from gpt2train.config import ScheduleSettings, TrainSettings
from gpt2train.convert.settings import MergeSettings
from gpt2train.errors import UserError
from gpt2train.settings import NaturalNumber, Place, build, layer
from tasks.finetune.base_model import open_base_model
from tasks.finetune.settings import read_task
from tasks.report.settings import ReportSettings
from tasks.train.launch.settings import LaunchSettings

CLASSIFICATION_LENGTH, MAX_LENGTH = 128, 1024  # default tokens of a sample
MICRO_BATCH = 8
# The recipe of the fine-tuning tutorials for GPT-2 on GLUE: 3 epochs of batches of 32 at 2.4e-5, 10 % warm-up, linear.
DEFAULTS: dict[str, Any] = {
    "epochs": 3.0,
    "batch": {"global_batch": 32},
    "optimizer": {"lr": 2.4e-5, "beta2": 0.999, "weight_decay": 0.01},
    "schedule": {"kind": "linear", "warmup": 0, "warmup_fraction": 0.1, "min_lr": 0.0},
    "checkpoints": {"restore": "weights", "select": "best"},
    "precision": "fp32",
}
OF_KINDS: dict[str, dict[str, Any]] = {
    "classification": {"checkpoints": {"best_metric": "accuracy"}},
    "answers": {"optimizer": {"lr": 5e-5}},
    "text": {"optimizer": {"lr": 5e-5}, "epochs": 1.0},
}


class TuningSchedule(ScheduleSettings):
    """Learning rate schedule: warm-up over 10 % of the steps, then linear decay to 0, unless chosen otherwise."""

    warmup: NaturalNumber = 0
    """Warm-up in steps, until the peak learning rate."""
    min_lr: float = Field(0.0, ge=0, le=1)
    """Learning rate at the end of the decay; inverse_sqrt: lower bound; constant: not used."""


class TuningSettings(TrainSettings):
    """Settings of the training; flags alone are checked against these defaults, before all layers are merged."""

    schedule: TuningSchedule = TuningSchedule()
    """Learning rate schedule."""

    @model_validator(mode="after")
    def _metric_fits(self) -> "TuningSettings":
        """Leave the check to `flows.finetune`, which derives the objective from the kind of the task."""
        return self


class FinetuneFlowSettings(OutputSettings):
    """Settings of fine-tuning: from a model and a task file to a tuned, merged and scored model."""

    model: Place
    """Model to start from: a Hugging Face folder, a run, a checkpoint, a checkpoint of Megatron-LM; or a preset (tiny,
    117m, …) with random weights."""
    task: Place
    """Task file: kind of task, files and columns, as docs/train/finetune.md describes them."""
    tokenizer: Place | None = None
    """Tokenizer of the model, a folder or a file; None takes the one in its folder."""
    validations: NaturalNumber = 1
    """Validations of the whole validation set in an epoch. 0: as `train.validation` says."""
    train: TuningSettings = TuningSettings()
    """Training run, over the settings [train] of the task file: optimizer, parallelism, checkpoints."""
    launch: LaunchSettings = LaunchSettings()
    """Launcher, processes and restarts of the torchrun job."""
    merge: MergeSettings = MergeSettings()
    """Hugging Face folder of the tuned model."""
    report: ReportSettings = ReportSettings()
    """Self-contained HTML report of the fine-tuning."""

    base_source: ClassVar[str] = "task"

    @classmethod
    def base_layer(cls, given: Mapping[str, Any], file: Mapping[str, Any], below: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of fine-tuning, of the model, and of the task file; see `LayeredSettings`."""
        if not isinstance(given.get("model"), str) or not isinstance(given.get("task"), str):
            return below  # reported as missing
        task, base = read_task(given["task"]), open_base_model(given["model"], given.get("tokenizer"))
        own = given.get("train") if isinstance(given.get("train"), Mapping) else {}
        chosen = layer(task.train, own or {})
        if task.kind != "classification" and base.classes:
            raise UserError(f"{given['model']} is a classifier, which a task of the kind {task.kind} cannot start from")
        context = int(base.model["max_positions"])
        length = task.max_length or min(context, CLASSIFICATION_LENGTH if task.kind == "classification" else MAX_LENGTH)
        if length > context:
            raise UserError(f"{given['task']}: max_length {length:,} is above the context of the model, {context:,}")
        sizes = {name: value for name, value in base.model.items() if name != "labels"} | {"context": length}
        source = None if base.source is None else str(base.source)
        defaults = layer(DEFAULTS, OF_KINDS[task.kind], {"model": sizes, "checkpoints": {"init_from": source}})
        return layer(below, {"train": layer(_without_rivals(defaults, chosen, given), task.train)})


def _without_rivals(defaults: dict[str, Any], chosen: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out defaults that contradict what was chosen: one way to give length, warm-up and batch is enough."""
    if "steps" in chosen and "epochs" not in chosen:
        defaults = {name: value for name, value in defaults.items() if name != "epochs"}
    schedule = chosen.get("schedule")
    if isinstance(schedule, Mapping) and any(
        schedule.get(name) for name in ("warmup", "warmup_tokens", "warmup_epochs")
    ):
        defaults = layer(defaults, {"schedule": {"warmup_fraction": 0.0}})
    batch = chosen.get("batch") if isinstance(chosen.get("batch"), Mapping) else {}
    if not (batch or {}).get("micro_batch"):
        defaults = layer(defaults, {"batch": {"micro_batch": _micro_batch(chosen, given, batch or {})}})
    return defaults


def _micro_batch(chosen: Mapping[str, Any], given: Mapping[str, Any], batch: Mapping[str, Any]) -> int:
    """Largest micro-batch up to 8 that divides the batch over all processes, with as many as pipeline stages."""

    def number(table: Any, key: str, default: int) -> int:
        value = table.get(key, default) if isinstance(table, Mapping) else default
        return value if type(value) is int and value > 0 else default

    if batch.get("gradient_accumulation_steps"):
        return 0  # it follows
    parallel = chosen.get("parallel")
    tp, pp = number(parallel, "tp", 1), number(parallel, "pp", 1)
    launch = given.get("launch")
    world = build(LaunchSettings, launch if isinstance(launch, Mapping) else {}, source="launch").world
    share = number(batch, "global_batch", DEFAULTS["batch"]["global_batch"]) // max(1, world // (tp * pp))
    sizes = [size for size in range(1, MICRO_BATCH + 1) if share % size == 0 and share // size >= pp]
    return max(sizes, default=1)
