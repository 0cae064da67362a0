"""Settings of the optimizer, learning rate schedule, fp16 loss scale and loss-spike skipping."""

from operator import not_
from typing import Literal

from pydantic import Field, model_validator

from gpt2train.settings import MAX_COUNT, NaturalNumber, PositiveNumber, Settings


class OptimizerSettings(Settings):
    """AdamW (Loshchilov and Hutter 2019), or Muon for the matrices of the blocks and AdamW for the rest."""

    # Left out of a run's files for AdamW, so that files and fingerprints of older runs stay the same.
    name: Literal["adamw", "muon"] = Field("adamw", exclude_if=lambda name: name == "adamw")
    """adamw, or muon: the momentum of each matrix of the blocks is orthogonalised (Jordan et al. 2024)."""
    muon_momentum: float = Field(0.95, ge=0, lt=1, exclude_if=lambda momentum: momentum == 0.95)
    """muon: decay of the momentum of the matrices."""
    lr: float = Field(6e-4, ge=1e-12, le=1)
    """Peak learning rate. A step of AdamW changes a weight by about this much; initial weights have a std of 0.02."""
    beta1: float = Field(0.9, ge=0, le=0.99999)
    """Decay of the running mean of gradients."""
    beta2: float = Field(0.95, ge=0, le=0.99999)
    """Decay of the running mean of squared gradients."""
    eps: float = Field(1e-8, ge=1e-20, le=1)
    """Term added to the denominator; the bounds keep the division finite in float32."""
    weight_decay: float = Field(0.1, ge=0, le=100)
    """Weight decay of matrices; biases and LayerNorm are never decayed."""
    decay_embeddings: bool = True
    """Apply weight decay to the token and position embeddings."""
    max_grad_norm: float = Field(1.0, ge=1e-9, le=1e9)
    """Maximum global gradient norm; larger gradients are clipped to it. 1e9 disables clipping."""

    @model_validator(mode="after")
    def _decay_shrinks(self) -> "OptimizerSettings":
        if self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"lr {self.lr:g} x weight_decay {self.weight_decay:g} must be below 1: it is the fraction by which a "
                "weight decays in a step"
            )
        return self


class ScheduleSettings(Settings):
    """Learning rate schedule: linear warm-up, then decay to `min_lr` at the last step, or after `decay_steps`.

    At most one of `warmup`, `warmup_tokens`, `warmup_epochs` and `warmup_fraction` may be above 0.
    """

    kind: Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"] = "cosine"
    """Shape after the warm-up. wsd: constant, then decay over the last `decay_fraction` of the steps."""
    warmup: NaturalNumber = 100
    """Warm-up in steps, until the peak learning rate."""
    warmup_tokens: int = Field(0, ge=0, le=2**53 - 1)
    """Warm-up in tokens; requires `warmup` = 0."""
    warmup_epochs: float = Field(0.0, ge=0, le=MAX_COUNT, exclude_if=not_)
    """Warm-up in passes over the training tokens; requires `warmup` = 0."""
    warmup_fraction: float = Field(0.0, ge=0, lt=1)
    """Warm-up as a fraction of all steps, or of `decay_steps`; requires `warmup` = 0."""
    decay_steps: NaturalNumber = Field(0, exclude_if=not_)
    """Steps until `min_lr` is reached, if other than the steps of the run (Megatron-LM's `--lr-decay-iters`): later
    steps stay at `min_lr`, and a shorter run ends before. 0: `steps`."""
    min_lr: float = Field(6e-5, ge=0, le=1)
    """Learning rate at the end of the decay; inverse_sqrt: lower bound; constant: not used."""
    decay_fraction: float = Field(0.2, gt=0, le=1)
    """wsd: fraction of the steps, or of `decay_steps`, in which the learning rate decays."""
    decay_shape: Literal["sqrt", "linear"] = "sqrt"
    """wsd: shape of the decay: 1 - sqrt of the decay's progress, or linear."""

    @model_validator(mode="after")
    def _one_warmup(self) -> "ScheduleSettings":
        names = ("warmup", "warmup_tokens", "warmup_epochs", "warmup_fraction")
        given = [f"{name} {getattr(self, name):g}" for name in names if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"the warm-up is given more than once, as {' and '.join(given)}; set all but one to 0")
        return self


class ScalerSettings(Settings):
    """Dynamic loss scale of fp16 training; not used in other precisions."""

    initial: float = Field(65536.0, ge=2.0**-126, le=2.0**32)
    """Loss scale of the first step."""
    window: PositiveNumber = 1000
    """Consecutive steps without overflow after which the scale doubles."""
    hysteresis: PositiveNumber = 2
    """Overflows before the scale is halved."""
    minimum: float = Field(1.0, ge=2.0**-126, le=2.0**32)
    """Lower bound of the scale."""
    static: bool = False
    """Keep the initial scale for the whole run."""

    @model_validator(mode="after")
    def _begins_above_minimum(self) -> "ScalerSettings":
        if self.minimum > self.initial:
            raise ValueError(f"minimum {self.minimum:g} is above initial {self.initial:g}")
        return self


class SpikeSettings(Settings):
    """Skipping of steps: gradients that are not finite, and loss spikes."""

    max_skipped_steps: PositiveNumber = 10
    """Consecutive skipped steps at which training stops with an error, since the loss has diverged."""
    threshold_sigma: float = Field(0.0, ge=0, le=1e6)
    """Skip a step whose metric lies this many standard deviations above the mean of `window`; 0 skips none. OLMo 2 used
    6. The decision needs the metric before the update, so that the host waits for the GPU at every step."""
    window: int = Field(128, ge=8, le=MAX_COUNT)
    """Steps over which mean and standard deviation are computed; spikes are detected once it is half full."""
    metric: Literal["grad_norm", "loss"] = "grad_norm"
    """Metric in which spikes are detected."""
