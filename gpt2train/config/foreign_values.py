"""Values of another system that need arithmetic, or other values, to become settings of a run.

Each function takes the conversion and a value, and returns settings. The order of `CONVERSIONS` is the order of their
execution: sizes of the batch come first, since samples and tokens are counted in them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

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


class Known(Protocol):
    """Context of a conversion: the settings so far, the values as they were given, and the processes."""

    settings: dict[str, Any]
    values: dict[str, Any]

    def processes(self) -> int | None:
        """Number of processes of the job, if it is known."""


Settings = dict[str, Any]
Converted = Callable[[Known, Any], Settings]


def global_batch(known: Known) -> int:
    """Samples of a step.

    Raises:
        UserError: they are not known.
    """
    settings = known.settings
    whole, micro = settings.get("batch.global_batch", 0), settings.get("batch.micro_batch", 0)
    if whole:
        return int(whole)
    processes, layout = known.processes(), settings.get("parallel.tp", 1) * settings.get("parallel.pp", 1)
    if not micro or processes is None:
        raise UserError("the samples of a step are not known")
    return int(micro) * max(1, processes // int(layout)) * int(settings.get("batch.gradient_accumulation_steps") or 1)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{str(value)[:40]!r} is no number")
    return value


def _pair(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise UserError("two numbers were expected")
    return value


def _steps_of_samples(key: str) -> Converted:
    def convert(known: Known, value: Any) -> Settings:
        ramp = known.settings.get("batch.ramp_up")
        plan = BatchPlan(global_batch(known), RampUp.model_validate(ramp) if ramp else None)
        return {key: plan.steps_until(int(_number(value)))}

    return convert


def _colossalai_batch(known: Known, value: Any) -> Settings:
    parts = int(_number(known.values.get("NUM_MICRO_BATCHES", 1)))
    if parts == 1:
        return {"batch.micro_batch": value}
    return {"batch.micro_batch": int(_number(value)) // max(parts, 1), "batch.gradient_accumulation_steps": parts}


def _all_accumulation(known: Known, value: Any) -> Settings:
    """Batch of nanoGPT, which divides its accumulation by the number of processes."""
    micro = known.settings["batch.micro_batch"]
    return {"batch.global_batch": int(_number(value)) * micro, "batch.gradient_accumulation_steps": 0}


def _samples_of_tokens(key: str) -> Converted:
    def convert(known: Known, value: Any) -> Settings:
        tokens = int(_number(value))
        return {} if tokens < 0 else {key: max(1, tokens // known.settings["model.context"])}

    return convert


def _steps_of_tokens(known: Known, value: Any) -> Settings:
    return {"steps": max(1, math.ceil(_number(value) / (global_batch(known) * known.settings["model.context"])))}


def _ramp_up(known: Known, value: Any) -> Settings:
    if not isinstance(value, list) or len(value) != 3:
        raise UserError("start, increment and samples were expected")
    return {"batch.ramp_up": dict(zip(("start", "increment", "samples"), value, strict=True))}


def _blend(known: Known, value: Any) -> Settings:
    """One prefix, or weights and prefixes in turn."""
    parts = value if isinstance(value, list) else [value]
    if len(parts) == 1:
        return {"data.train": str(parts[0])}
    if len(parts) % 2:
        raise UserError("a weight before each prefix was expected")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {"data.train": [{"prefix": str(prefix), "weight": _number(weight)} for weight, prefix in pairs]}


def _one_path(known: Known, value: Any) -> Settings:
    return {"data.valid": str(value[-1] if isinstance(value, list) else value)}


def _global_batches(known: Known, value: Any) -> Settings:
    if not _number(value):
        raise UserError("without data.valid and data.split there is no validation")
    return {"validation.samples": int(value) * global_batch(known)}


def _micro_batches(known: Known, value: Any) -> Settings:
    return {"validation.samples": int(_number(value)) * known.settings["batch.micro_batch"]}


def _placement(known: Known, value: Any) -> Settings:
    if value == "cuda":
        return _zero_3(known, value) | {"parallel.cpu_offload": False}
    placement = "auto" if value == "auto" else "all"
    return _zero_3(known, value) | {"parallel.cpu_offload": True, "parallel.offload_placement": placement}


def _zero_3(known: Known, value: Any) -> Settings:
    return {"parallel.zero": 3, "precision": "fp16"}


def _offload(known: Known, value: Any) -> Settings:
    """The optimizer on the CPU, unless the weights are there too."""
    if not value or known.settings.get("parallel.cpu_offload"):
        return {}
    return {"parallel.cpu_offload": True, "parallel.offload_placement": "optimizer"}


def _offload_device(placement: str) -> Converted:
    def convert(known: Known, value: Any) -> Settings:
        if value not in ("cpu", "none"):
            raise UserError(f"only cpu is there, not {value}")
        if value == "none" or known.settings.get("parallel.offload_placement") == "all":
            return {}
        return {"parallel.cpu_offload": True, "parallel.offload_placement": placement}

    return convert


def _static_scale(known: Known, value: Any) -> Settings:
    return {"scaler.initial": value, "scaler.static": True} if _number(value) else {}


def _colossalai_model(known: Known, value: Any) -> Settings:
    if value not in COLOSSALAI_MODELS:
        raise UserError(f"the sizes of {value} are not known; give --train.model its sizes")
    layers, hidden, heads = COLOSSALAI_MODELS[value]
    return {"model.layers": layers, "model.hidden": hidden, "model.heads": heads}


def _depth(known: Known, value: Any) -> Settings:
    """Sizes of nanochat's model: the width is depth x aspect ratio, rounded up to whole heads."""
    ratio, head = known.values.get("aspect_ratio", 64), int(_number(known.values.get("head_dim", 128)))
    heads = max(1, -(-int(_number(value)) * int(_number(ratio)) // max(head, 1)))
    return {"model.layers": value, "model.hidden": heads * head, "model.heads": heads}


def _virtual_stages(known: Known, value: Any) -> Settings:
    per_stage = known.settings["model.layers"] // known.settings.get("parallel.pp", 1)
    stages = per_stage // max(1, int(_number(value)))
    return {"parallel.virtual_pipeline_stages": stages, "parallel.schedule": "interleaved"}


def _unless(key: str, usual: Callable[[Settings], float]) -> Converted:
    """A size that is left out where it is the usual one."""

    def convert(known: Known, value: Any) -> Settings:
        plain = known.settings.get("model.family", "gpt2") == "gpt2" and value == usual(known.settings)
        return {} if plain else {key: value}

    return convert


def _epochs_or_steps(known: Known, value: Any) -> Settings:
    return {} if known.values.get("max_steps", -1) > 0 else {"epochs": value}


def _total_steps(known: Known, value: Any) -> Settings:
    return {} if "steps" in known.settings else {"steps": value}


def _steps_or_fraction(known: Known, value: Any) -> Settings:
    return {"schedule.warmup_fraction" if 0 < _number(value) < 1 else "schedule.warmup": value}


def _decay_lr(known: Known, value: Any) -> Settings:
    if value:
        return {"schedule.kind": "cosine"}
    return {"schedule.kind": "constant", "schedule.warmup": 0, "schedule.decay_steps": 0, "schedule.min_lr": 0.0}


def _init_from(known: Known, value: Any) -> Settings:
    if value in ("scratch", "resume"):
        return {}
    raise UserError(f"get the weights of {value} as a folder, and give it to checkpoints.init_from")


def _fraction_of(whole: Callable[[Settings], float], key: str) -> Converted:
    def convert(known: Known, value: Any) -> Settings:
        return {key: _number(value) / whole(known.settings)}

    return convert


def _fraction_of_lr(known: Known, value: Any) -> Settings:
    lr = known.settings.get("optimizer.lr")
    if lr is None:
        raise UserError("a fraction of the learning rate, which is not given")
    return {"schedule.min_lr": _number(value) * lr}


def _positive(key: str) -> Converted:
    return lambda known, value: {key: value} if _number(value) > 0 else {}


def _wandb(known: Known, value: Any) -> Settings:
    return {"logging.wandb": value} if known.values.get("wandb_log") else {}


def _nothing(known: Known, value: Any) -> Settings:
    return {}


def _include(known: Known, value: Any) -> Settings:
    """DeepSpeed's `node1:4,5,6,7@node2:0,1`: the machines, and the GPUs of the first one."""
    machines = str(value).split("@")
    _, colon, gpus = machines[0].partition(":")
    return {"launch.processes": len(gpus.split(",")), "launch.nodes": len(machines)} if colon else {}


CONVERSIONS: Mapping[str, Converted] = {
    "ignored": _nothing,
    "hosts": _nothing,  # of the flow; a run file knows no machines
    "include": _include,
    "auto_is_unset": lambda known, value: {"launch.processes": value} if isinstance(value, int) else {},
    "colossalai_model": _colossalai_model,
    "depth": _depth,
    "colossalai_batch": _colossalai_batch,
    "all_accumulation": _all_accumulation,
    "ramp_up": _ramp_up,
    "inner": _unless("model.options.inner", lambda settings: 4 * settings.get("model.hidden", 0)),
    "head_dim": _unless(
        "model.options.head_dim", lambda settings: settings.get("model.hidden", 0) / settings.get("model.heads", 1)
    ),
    "bias": lambda known, value: {} if value else {"model.options.bias": False},
    "virtual_stages": _virtual_stages,
    "zero_3": _zero_3,
    "placement": _placement,
    "offload_param_device": _offload_device("all"),
    "offload_optimizer_device": _offload_device("optimizer"),
    "offload": _offload,
    "fp16": lambda known, value: {"precision": "fp16"},
    "static_scale": _static_scale,
    "power_of_two": lambda known, value: {"scaler.initial": 2.0 ** min(_number(value), 1000)},
    "minus_one_is_unset": _nothing,  # replaced by the setting's own name, below
    "zero_is_off": lambda known, value: {"optimizer.max_grad_norm": value or OFF},
    "betas": lambda known, value: dict(zip(("optimizer.beta1", "optimizer.beta2"), _pair(value), strict=True)),
    "epochs_or_steps": _epochs_or_steps,
    "total_steps": _total_steps,
    "steps_or_fraction": _steps_or_fraction,
    "fraction_of_epochs": lambda known, value: (
        {"schedule.warmup": 0, "schedule.warmup_fraction": value / known.settings["epochs"]}
        if known.settings.get("epochs", 0) > value
        else {}
    ),
    "fraction_of_decay": _fraction_of(
        lambda settings: settings.get("schedule.decay_steps") or settings["steps"], "schedule.decay_fraction"
    ),
    "wsd_fraction": lambda known, value: {"schedule.kind": "wsd", "schedule.decay_fraction": value},
    "fraction_of_lr": _fraction_of_lr,
    "decay_lr": _decay_lr,
    "on_off": lambda known, value: {"performance.compile": "on" if value else "off"},
    "fp8_recipe": lambda known, value: {"performance.fp8": value} if known.values.get("fp8") else {},
    "device": lambda known, value: {"device": str(value).partition(":")[0] or "auto"},
    "wandb": _wandb,
    "wandb_run": _nothing,
    "init_from": _init_from,
    "both": lambda known, value: {"validation.interval": value, "checkpoints.interval": value},
    "blend": _blend,
    "one_path": _one_path,
    "steps_of_samples": _nothing,
    "samples_of_tokens": _nothing,
    "steps_of_tokens": _steps_of_tokens,
    "micro_batches": _micro_batches,
    "global_batches": _global_batches,
}
# Conversions that set the row's own setting.
OF_SETTING: Mapping[str, Callable[[str], Converted]] = {
    "minus_one_is_unset": _positive,
    "steps_of_samples": _steps_of_samples,
    "samples_of_tokens": _samples_of_tokens,
}
