"""Performance options: torch.compile, attention kernels, step overlap and garbage collection."""

import contextlib
import gc
import os
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpt2train.config import PerformanceSettings, RunConfig
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import MODELS
from gpt2train.store.files import private_folder

# Attention kernels on a GPU; the first one that supports the input is used. torch prefers flash. cuDNN's is faster on
# Hopper (1.7 to 2.3 times in published measurements, not our own). Flash takes no masks.
KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


# Ranks finish autotuning minutes apart; the first one waits in a collective. As long as torch's default for gloo.
AUTOTUNE_TIMEOUT = timedelta(minutes=30)


def collective_timeout(settings: PerformanceSettings, requested: timedelta) -> timedelta:
    """Return the timeout of collectives: with `max_autotune` at least `AUTOTUNE_TIMEOUT`, otherwise as requested."""
    return max(requested, AUTOTUNE_TIMEOUT) if settings.max_autotune and settings.compile != "off" else requested


BLACKWELL = (10, 0)  # compute capability of a B200
FP8_CAPABILITY = (8, 9)  # lowest compute capability with products in 8-bit floating point


def check_fp8(settings: PerformanceSettings, device: torch.device) -> None:
    """Check that a device has products in 8-bit floating point, if the settings ask for them; a CPU has, slowly.

    Raises:
        UserError: it has none. AMD's GPUs have formats of their own.
    """
    if settings.fp8 == "off" or device.type == "cpu":
        return
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        needed = ".".join(map(str, FP8_CAPABILITY))
        raise UserError(
            f"performance.fp8 {settings.fp8!r} needs an NVIDIA GPU of compute capability {needed} or newer, which "
            f'{torch.cuda.get_device_name(device)} is not; set performance.fp8 = "off"'
        )


def check_mps(config: RunConfig, device: torch.device) -> None:
    """Raise a UserError with the setting to change if Apple's MPS has not what the settings ask for."""
    if device.type != "mps":
        return
    settings = config.performance
    checkpointing = config.parallel.activation_checkpointing
    lacking = {
        f'performance.fp8 {settings.fp8!r}: set "off"': settings.fp8 != "off",
        f'performance.compile {settings.compile!r}: set "auto"': settings.compile in ("on", "blocks"),
        "parallel.cpu_offload, whose memory is the CPU's: unset it": config.parallel.cpu_offload,
        # torch.utils.checkpoint asks torch.mps for a context of the device, which it has not.
        f'parallel.activation_checkpointing {checkpointing!r} with dropout: set model.dropout = 0, or "none"': (
            checkpointing != "none" and config.model.dropout > 0
        ),
        'precision "bf16" before macOS 14: set "fp32"': (
            config.precision == "bf16" and not torch.backends.mps.is_macos_or_newer(14, 0)
        ),
    }
    for what, asked in lacking.items():
        if asked:
            raise UserError(f"device mps has no {what}, or use device cpu")


def is_compiled(settings: PerformanceSettings, device: torch.device) -> bool:
    """Return True if models are compiled on this device."""
    return settings.compile in ("on", "blocks") or (settings.compile == "auto" and device.type == "cuda")


def casts_once(config: RunConfig, device: torch.device) -> bool:
    """Return True if the weights are cast to half precision once a step; a CPU keeps less memory without copies."""
    return device.type == "cuda" and config.precision != "fp32"


def without_compilation(
    settings: PerformanceSettings, device: torch.device
) -> contextlib.AbstractContextManager[object]:
    """Run compiled modules as they were written in a block, for tensors of other shapes than those of the steps."""
    # The context imports torch's compiler (1-2 s), which a run without compilation never needs.
    return torch.compiler.set_stance("force_eager") if is_compiled(settings, device) else contextlib.nullcontext()


def compile_module(
    part: CausalLM, settings: PerformanceSettings, device: torch.device, whole: bool, loss: bool = False
) -> None:
    """Compile the forward of a model part in place, after activation checkpointing and before FSDP.

    Parameter names do not change.

    Args:
        part: the model, or one pipeline stage.
        settings: performance settings.
        device: device of the model; "auto" compiles only on a GPU. A CPU gains 0 to 6 % for 40 s of compilation.
        whole: compile the part as a whole, which fuses most but requires a forward without communication. Otherwise
            block by block; all blocks share one compilation.
        loss: compile the loss as well, which makes several passes over each chunk of logits. It requires a loss
            without communication, as `whole` does.
    """
    if not is_compiled(settings, device):
        return
    # Compiled code is loaded from this folder. torch's default is a predictable name in a folder shared by all users.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private_folder() / "compiled"))
    mode = "max-autotune-no-cudagraphs" if settings.max_autotune else None
    whole = whole and settings.compile != "blocks"
    if loss:
        part.cross_entropy = partial(part.cross_entropy, compiled_chunk=settings.loss_chunk)
    for module in [part] if whole else part.blocks.values():
        # Only the forward: the hooks of FSDP around a block stay outside. Shapes never change in a run.
        module.forward = torch.compile(module.forward, dynamic=False, mode=mode)
    if loss and not whole:
        part.cross_entropy = torch.compile(part.cross_entropy, dynamic=False, mode=mode)


def cudnn_is_wrong(config: RunConfig, device: torch.device) -> bool:
    """Return True if cuDNN's attention is known to be wrong for a run, without an error.

    With masks, since torch 2.11, it has gradients of NaN where the length is 64 more than a multiple of 128 and logits
    are below -88 (pytorch#196678). With fewer than 8 heads of keys and values on Blackwell, generated texts differ
    (pytorch#193893). What it does not support (float32, large heads) torch knows, and takes the next kernel.
    """
    family = MODELS[config.model.family]
    if config.documents.mask_documents or len(family.lengths(config.shape)) > 1:  # with position biases
        return True
    heads = family.kv_heads(config.shape) / config.parallel.tp
    return device.type == "cuda" and heads < 8 and torch.cuda.get_device_capability(device) >= BLACKWELL


@contextlib.contextmanager
def fast_kernels(settings: PerformanceSettings, device: torch.device, without_cudnn: bool = False) -> Iterator[None]:
    """Prefer the fast kernels of a GPU, in forward and backward; no effect on a CPU."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    names = dict.fromkeys((settings.attention, *KERNELS))
    if without_cudnn:
        names.pop("cudnn")
    try:
        with sdpa_kernel([KERNELS[name] for name in names], set_priority=True):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def can_start_next_step(config: RunConfig, device: torch.device, step: int) -> bool:
    """Return True if the next step may start before the loss and gradient norm of this step are read.

    The data, weights and dropout of the next step do not depend on them; its learning rate does, but is needed later.
    Never after a step that validates or saves, after the last step, or in fp16, whose loss scale depends on the norm.
    """
    overlap, intervals = config.performance.overlap, [config.checkpoints.interval]
    if config.data.may_validate:
        intervals.append(config.validation.interval)
    if overlap == "off" or (overlap == "auto" and device.type != "cuda") or config.precision == "fp16":
        return False
    return step < config.steps and all(step % interval for interval in intervals)


@contextlib.contextmanager
def freeze_gc() -> Iterator[None]:
    """Exclude all existing objects from garbage collection.

    torch and the engine have 300,000 Python objects that live as long as the run. Each full collection would traverse
    them in 0.2 s of CPU time, while the other ranks wait. What a caller has excluded stays excluded.
    """
    excluded = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not excluded:
            gc.unfreeze()
