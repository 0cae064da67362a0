"""Values of another system that need arithmetic, or other values, to become settings of a run.

Each function takes the conversion so far, a value and the setting of its row, and returns settings. The order of
`CONVERSIONS` is the order of their execution: sizes of the batch come first, since samples and tokens are counted in
them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpt2train.config.batch import RampUp
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.errors import UserError

OFF = 1e9  # of optimizer.max_grad_norm
# Blocks, width and heads of ColossalAI's model zoo; gpt2_medium to gpt2_xl are not those of OpenAI.
COLOSSALAI_MODELS = {
    "gpt2_small": (12, 768, 12),
    "gpt2_medium": (24, 1024, 8),
    "gpt2_large": (36, 1536, 12),
    "gpt2_xl": (48, 1600, 16),
    "gpt2_8B": (72, 3072, 24),
    "gpt3": (96, 12288, 96),
    "GPT2_small_pipeline_hybrid": (12, 768, 12),
}


@dataclass
class Converted:
    """Settings of a run that were another system's."""

    settings: dict[str, Any] = field(default_factory=dict)  # settings by their dotted names
    sources: dict[str, str] = field(default_factory=dict)  # what each of them was there
    left: dict[str, str] = field(default_factory=dict)  # what has no counterpart, as it was given, and the reason
    values: dict[str, Any] = field(default_factory=dict)  # all values as they were given, by their names there
    defaults: set[str] = field(default_factory=set)  # settings that its user did not give

    def processes(self) -> int | None:
        """Number of processes of the job, if it is known."""
        per_machine, machines = self.settings.get("launch.processes"), self.settings.get("launch.nodes", 1)
        known = isinstance(per_machine, int) and isinstance(machines, int)
        return per_machine * machines if known else None

    def global_batch(self) -> int:
        """Samples of a step; UserError if they are not known."""
        settings = self.settings
        if whole := settings.get("batch.global_batch", 0):
            return int(whole)
        micro, processes = settings.get("batch.micro_batch", 0), self.processes()
        if not micro or processes is None:
            raise UserError("the samples of a step are not known")
        data = max(1, processes // int(settings.get("parallel.tp", 1) * settings.get("parallel.pp", 1)))
        return int(micro) * data * int(settings.get("batch.gradient_accumulation_steps") or 1)

    def put(self, found: Mapping[str, Any], source: str, *, default: bool = False, follows: bool = False) -> None:
        """Set some settings; a value that another one replaces is named, unless the new one follows from it."""
        for path, value in found.items():
            given = path in self.sources and path not in self.defaults
            if given and self.settings[path] != value and not default and not follows:
                self.left[self.sources[path]] = f"replaced by {source}"
            self.settings[path], self.sources[path] = value, source
            (self.defaults.add if default else self.defaults.discard)(path)


Settings = dict[str, Any]
Conversion = Callable[[Converted, Any, str], Settings]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{str(value)[:40]!r} is no number")
    return value


def _listed(value: Any, names: tuple[str, ...], what: str) -> Settings:
    if not isinstance(value, list) or len(value) != len(names):
        raise UserError(f"{what} were expected")
    return dict(zip(names, value, strict=True))


def _steps_of_samples(made: Converted, value: Any, key: str) -> Settings:
    ramp = made.settings.get("batch.ramp_up")
    plan = BatchPlan(made.global_batch(), RampUp.model_validate(ramp) if ramp else None)
    return {key: plan.steps_until(int(_number(value)))}


def _colossalai_batch(made: Converted, value: Any, key: str) -> Settings:
    parts = int(_number(made.values.get("NUM_MICRO_BATCHES", 1)))
    if parts == 1:
        return {key: value}
    return {key: int(_number(value)) // max(parts, 1), "batch.gradient_accumulation_steps": parts}


def _all_accumulation(made: Converted, value: Any, key: str) -> Settings:
    """Batch of nanoGPT, which divides its accumulation by the number of processes."""
    return {key: int(_number(value)) * made.settings["batch.micro_batch"], "batch.gradient_accumulation_steps": 0}


def _samples_of_tokens(made: Converted, value: Any, key: str) -> Settings:
    tokens = int(_number(value))
    return {} if tokens < 0 else {key: max(1, tokens // made.settings["model.context"])}


def _steps_of_tokens(made: Converted, value: Any, key: str) -> Settings:
    return {key: max(1, math.ceil(_number(value) / (made.global_batch() * made.settings["model.context"])))}


def _blend(made: Converted, value: Any, key: str) -> Settings:
    """One prefix, or weights and prefixes in turn."""
    parts = value if isinstance(value, list) else [value]
    if len(parts) == 1:
        return {key: str(parts[0])}
    if len(parts) % 2:
        raise UserError("a weight before each prefix was expected")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {key: [{"prefix": str(prefix), "weight": _number(weight)} for weight, prefix in pairs]}


def _global_batches(made: Converted, value: Any, key: str) -> Settings:
    if not _number(value):
        raise UserError("without data.valid and data.split there is no validation")
    return {key: int(value) * made.global_batch()}


def _placement(made: Converted, value: Any, key: str) -> Settings:
    zero_3 = {"parallel.zero": 3, "precision": "fp16", "parallel.cpu_offload": value != "cuda"}
    return zero_3 if value == "cuda" else zero_3 | {"parallel.offload_placement": "auto" if value == "auto" else "all"}


def _offload(made: Converted, value: Any, key: str) -> Settings:
    """The optimizer on the CPU, unless the weights are there too."""
    if not value or made.settings.get("parallel.cpu_offload"):
        return {}
    return {"parallel.cpu_offload": True, "parallel.offload_placement": "optimizer"}


def _offload_device(placement: str) -> Conversion:
    def convert(made: Converted, value: Any, key: str) -> Settings:
        if value not in ("cpu", "none"):
            raise UserError(f"only cpu is there, not {value}")
        if value == "none" or made.settings.get("parallel.offload_placement") == "all":
            return {}
        return {"parallel.cpu_offload": True, "parallel.offload_placement": placement}

    return convert


def _colossalai_model(made: Converted, value: Any, key: str) -> Settings:
    if value not in COLOSSALAI_MODELS:
        raise UserError(f"the sizes of {value} are not known; give --train.model its sizes")
    return dict(zip(("model.layers", "model.hidden", "model.heads"), COLOSSALAI_MODELS[value], strict=True))


def _depth(made: Converted, value: Any, key: str) -> Settings:
    """Sizes of nanochat's model: the width is depth x aspect ratio, rounded up to whole heads."""
    ratio, head = made.values.get("aspect_ratio", 64), int(_number(made.values.get("head_dim", 128)))
    heads = max(1, -(-int(_number(value)) * int(_number(ratio)) // max(head, 1)))
    return {"model.layers": value, "model.hidden": heads * head, "model.heads": heads}


def _virtual_stages(made: Converted, value: Any, key: str) -> Settings:
    per_stage = made.settings["model.layers"] // made.settings.get("parallel.pp", 1)
    return {key: per_stage // max(1, int(_number(value))), "parallel.schedule": "interleaved"}


def _unless(usual: Callable[[Settings], float]) -> Conversion:
    """A size that is left out where it is the usual one."""

    def convert(made: Converted, value: Any, key: str) -> Settings:
        plain = made.settings.get("model.family", "gpt2") == "gpt2" and value == usual(made.settings)
        return {} if plain else {key: value}

    return convert


def _decay_lr(made: Converted, value: Any, key: str) -> Settings:
    if value:
        return {key: "cosine"}
    return {key: "constant", "schedule.warmup": 0, "schedule.decay_steps": 0, "schedule.min_lr": 0.0}


def _init_from(made: Converted, value: Any, key: str) -> Settings:
    if value in ("scratch", "resume"):
        return {}
    raise UserError(f"get the weights of {value} as a folder, and give it to checkpoints.init_from")


def _fraction_of_epochs(made: Converted, value: Any, key: str) -> Settings:
    epochs = made.settings.get("epochs", 0)
    return {"schedule.warmup": 0, key: value / epochs} if epochs > value else {}


def _fraction_of_decay(made: Converted, value: Any, key: str) -> Settings:
    return {key: _number(value) / (made.settings.get("schedule.decay_steps") or made.settings["steps"])}


def _fraction_of_lr(made: Converted, value: Any, key: str) -> Settings:
    lr = made.settings.get("optimizer.lr")
    if lr is None:
        raise UserError("a fraction of the learning rate, which is not given")
    return {key: _number(value) * lr}


def _include(made: Converted, value: Any, key: str) -> Settings:
    """DeepSpeed's `node1:4,5,6,7@node2:0,1`: the machines, and the GPUs of the first one."""
    machines = str(value).split("@")
    _, colon, gpus = machines[0].partition(":")
    return {key: len(gpus.split(",")), "launch.nodes": len(machines)} if colon else {}


def _nothing(made: Converted, value: Any, key: str) -> Settings:
    return {}


CONVERSIONS: Mapping[str, Conversion] = {
    "ignored": _nothing,
    "hosts": _nothing,  # of the flow; a run file knows no machines
    "include": _include,
    "auto_is_unset": lambda made, value, key: {key: value} if isinstance(value, int) else {},
    "colossalai_model": _colossalai_model,
    "depth": _depth,
    "colossalai_batch": _colossalai_batch,
    "all_accumulation": _all_accumulation,
    "ramp_up": lambda made, value, key: {
        key: _listed(value, ("start", "increment", "samples"), "start, increment and samples")
    },
    "inner": _unless(lambda settings: 4 * settings.get("model.hidden", 0)),
    "head_dim": _unless(lambda settings: settings.get("model.hidden", 0) / settings.get("model.heads", 1)),
    "bias": lambda made, value, key: {} if value else {key: False},
    "virtual_stages": _virtual_stages,
    "zero_3": lambda made, value, key: {key: 3, "precision": "fp16"},
    "placement": _placement,
    "offload_param_device": _offload_device("all"),
    "offload_optimizer_device": _offload_device("optimizer"),
    "offload": _offload,
    "fp16": lambda made, value, key: {"precision": "fp16"},
    "static_scale": lambda made, value, key: {key: value, "scaler.static": True} if _number(value) else {},
    "power_of_two": lambda made, value, key: {"scaler.initial": 2.0 ** min(_number(value), 1000)},
    "minus_one_is_unset": lambda made, value, key: {key: value} if _number(value) > 0 else {},
    "zero_is_off": lambda made, value, key: {key: value or OFF},
    "betas": lambda made, value, key: _listed(value, ("optimizer.beta1", "optimizer.beta2"), "two numbers"),
    "epochs_or_steps": lambda made, value, key: {} if made.values.get("max_steps", -1) > 0 else {key: value},
    "total_steps": lambda made, value, key: {} if key in made.settings else {key: value},
    "steps_or_fraction": lambda made, value, key: {
        "schedule.warmup_fraction" if 0 < _number(value) < 1 else key: value
    },
    "fraction_of_epochs": _fraction_of_epochs,
    "fraction_of_decay": _fraction_of_decay,
    "wsd_fraction": lambda made, value, key: {"schedule.kind": "wsd", key: value},
    "fraction_of_lr": _fraction_of_lr,
    "decay_lr": _decay_lr,
    "on_off": lambda made, value, key: {key: "on" if value else "off"},
    "fp8_recipe": lambda made, value, key: {"performance.fp8": value} if made.values.get("fp8") else {},
    "device": lambda made, value, key: {key: str(value).partition(":")[0] or "auto"},
    "wandb": lambda made, value, key: {key: value} if made.values.get("wandb_log") else {},
    "wandb_run": _nothing,
    "init_from": _init_from,
    "both": lambda made, value, key: {"validation.interval": value, "checkpoints.interval": value},
    "blend": _blend,
    "one_path": lambda made, value, key: {key: str(value[-1] if isinstance(value, list) else value)},
    "steps_of_samples": _steps_of_samples,
    "samples_of_tokens": _samples_of_tokens,
    "steps_of_tokens": _steps_of_tokens,
    "micro_batches": lambda made, value, key: {key: int(_number(value)) * made.settings["batch.micro_batch"]},
    "global_batches": _global_batches,
}
