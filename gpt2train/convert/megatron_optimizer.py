"""State of Megatron's optimizers: hyperparameters and step, and the moments in the files of format `torch`.

    {"state": {0: {"exp_avg", "exp_avg_sq", "step"}, …}, "param_groups": […]}               all in float32
    {"optimizer": {as above}, "fp32_from_fp16_params": [[…], […]], "grad_scaler": …}        weights in half precision

Parameters are numbered group by group: first those with weight decay, the matrices, then biases and norms; within a
group in the order of the modules, which is that of the weights in the same file. The step is in the state of each
parameter (torch's AdamW), in the groups (Apex, Transformer Engine), or in `common_step` (format torch_dist).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gpt2train.convert.megatron_args import args_of
from gpt2train.convert.optimizer_state import OptimizerState
from gpt2train.training.adamw import STATE

MASTER = "master"  # float32 copy of a weight
SCHEDULE_KEYS = (
    *("max_lr", "min_lr", "lr_warmup_steps", "num_steps", "lr_decay_style", "lr_decay_steps"),
    *("start_wd", "end_wd", "wd_incr_style", "wd_incr_steps"),
)


class NotConvertedError(Exception):
    """Reason why the optimizer's state of a checkpoint cannot be converted; its weights can."""


def progress(saved: Mapping[str, Any]) -> OptimizerState:
    """Read the state of an optimizer, without tensors, from the content of a rank's file or of `common.pt`.

    Raises:
        NotConvertedError: the step of AdamW is not there.
    """
    inner = inner_state(saved)
    groups = [group for group in inner.get("param_groups", ()) if isinstance(group, Mapping)]
    state = _mapping(inner, "state")
    entries = [*groups, *(entry for entry in state.values() if isinstance(entry, Mapping))]
    steps = [state.get("common_step"), *(entry.get("step") for entry in entries)]
    known = [value for value in (_number(found) for found in steps) if value is not None]
    if not known:
        raise NotConvertedError("it has no step")
    scheduler = _mapping(saved, "opt_param_scheduler") or _mapping(saved, "lr_scheduler")
    group = {key: groups[0][key] for key in ("lr", "betas", "eps") if groups and key in groups[0]}
    decay = max((_number(found.get("weight_decay")) or 0.0 for found in groups), default=0.0)
    return OptimizerState(
        {},
        updates=int(known[0]),
        iteration=int(_number(saved.get("iteration")) or known[0]),
        samples=int(_number(args_of(saved).get("consumed_train_samples")) or 0),
        group=group,
        weight_decay=decay,
        schedule={key: scheduler[key] for key in SCHEDULE_KEYS if key in scheduler},
    )


def inner_state(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `state_dict` of torch's optimizer in a saved file; empty if there is none."""
    found = _mapping(saved, "optimizer")
    for key in ("optimizer", "optimizer_state_dict"):
        found = _mapping(found, key) or found
    return found


def rank_moments(saved: Mapping[str, Any], weights: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """Return moments of a rank's parameters, and float32 copies of them if there are any, in the order of the weights.

    Raises:
        NotConvertedError: they do not fit the weights.
    """
    inner = inner_state(saved)
    state, groups = _mapping(inner, "state"), inner.get("param_groups", ())
    outer = _mapping(saved, "optimizer")
    masters = outer.get("fp32_from_fp16_params", outer.get("fp32_from_fp16"))
    found: dict[str, list[Tensor | None]] = {key: [None] * len(weights) for key in (*STATE, MASTER)}
    numbers = {
        decayed: iter([number for number, weight in enumerate(weights) if (weight.dim() > 1) == decayed])
        for decayed in (True, False)
    }
    if len(groups) == 1:
        numbers = dict.fromkeys((True, False), iter(range(len(weights))))
    for index, group in enumerate(groups):
        multiplier = group.get("wd_mult", group.get("pre_wd_mult", 1.0 if index == 0 else 0.0))
        for place, param in enumerate(group.get("params", ())):
            at = next(numbers[bool(multiplier)], None)
            if at is None or not isinstance(state.get(param), Mapping):
                raise NotConvertedError("its parameter groups are not those of a GPT-2")
            for key in STATE:
                found[key][at] = _fitting(state[param].get(key), weights[at])
            if masters is not None:
                found[MASTER][at] = _fitting(masters[index][place], weights[at])
    kept = {key: [value for value in values if value is not None] for key, values in found.items()}
    if any(len(kept[key]) != len(weights) for key in STATE):
        raise NotConvertedError("it lacks the moments of some weights")
    if masters is None:
        del kept[MASTER]
    elif not all(map(same_value, kept[MASTER], weights)):
        raise NotConvertedError("its float32 copies of the weights are not those of the weights")
    return kept


def same_value(master: Tensor, weight: Tensor) -> bool:
    """Return True if a weight is its float32 copy, rounded; equal bits show that both are the same parameter."""
    return torch.equal(master.to(weight.dtype), weight)


def _fitting(value: Any, weight: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != weight.shape:
        raise NotConvertedError("its tensors have other sizes than the weights")
    return value


def _mapping(tree: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    found = tree.get(key)
    return found if isinstance(found, Mapping) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
