"""The optimizer, its learning rate, the loss scale of fp16, and which steps are skipped."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gpt2train.settings import Settings


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
    """Decay of matrices; biases and LayerNorm are never decayed."""
    decay_embeddings: bool = True
    """Whether the token and position embeddings are decayed too."""
    clip: float = Field(1.0, gt=0)
    """Largest global gradient norm; larger gradients are scaled down to it."""


class ScheduleSettings(Settings):
    """Warm-up, then the learning rate falls (or not) down to `min_lr` at the last step.

    The warm-up is given in one of three ways; the other two are 0, and all three may be.
    """

    kind: Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"] = "cosine"
    """Shape after the warm-up. wsd: constant, then falling over the last `decay` of the steps."""
    warmup: NonNegativeInt = 100
    """Steps until the peak learning rate."""
    warmup_tokens: NonNegativeInt = 0
    """The warm-up in tokens; `warmup` must be 0 then."""
    warmup_fraction: float = Field(0.0, ge=0, lt=1)
    """The warm-up as a share of all steps; `warmup` must be 0 then."""
    min_lr: float = Field(6e-5, ge=0)
    """Learning rate of the last step; inverse_sqrt: the rate that it does not fall below; constant: not used."""
    decay: float = Field(0.2, gt=0, le=1)
    """wsd: share of the steps in which the learning rate falls."""
    fall: Literal["sqrt", "linear"] = "sqrt"
    """wsd: how it falls: as 1 - sqrt of the share done, or in a line."""

    @model_validator(mode="after")
    def _one_warmup(self) -> "ScheduleSettings":
        names = ("warmup", "warmup_tokens", "warmup_fraction")
        given = [f"{name} {getattr(self, name):g}" for name in names if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"the warm-up is given twice, as {' and '.join(given)}; set one of them to 0")
        return self


class ScalerSettings(Settings):
    """Loss scale of fp16 training; the other precisions have none."""

    initial: float = Field(65536.0, gt=0)
    """Scale of the first step."""
    window: PositiveInt = 1000
    """Good steps after which the scale doubles."""
    hysteresis: PositiveInt = 2
    """Overflows until the scale is halved."""
    minimum: float = Field(1.0, gt=0)
    """The scale never falls below it."""
    static: bool = False
    """Keep the initial scale always."""


class SkipSettings(Settings):
    """Steps whose gradient is not used."""

    limit: PositiveInt = 10
    """Skipped steps in a row at which training stops: a spike or two is survived, this many mean lost weights."""
    sigma: float = Field(0.0, ge=0)
    """Skip a step that lies this many standard deviations above the mean of `window`, a spike; 0 skips none. 6 is what
    OLMo 2 used. The decision needs the step's numbers at once, so that a GPU waits for each step."""
    window: int = Field(128, ge=8)
    """Steps over which mean and deviation are taken; before half of them are done nothing is judged."""
    watch: Literal["grad_norm", "loss"] = "grad_norm"
    """What is looked at for spikes."""
