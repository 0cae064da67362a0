"""What makes a run faster and, but for rounding, not different: compiling, choice of kernels, garbage collection."""

import contextlib
import gc
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpt2train.config import RunConfig, SpeedSettings
from gpt2train.model.gpt2 import GPT2

# Attention on a GPU, the first that can do it. Torch prefers flash; cuDNN's is faster on Hopper (1.7 to 2.3 times by
# others' measurements, not by ours) but takes no mask with holes in it: masked documents go to the efficient one.
KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def compile_part(part: GPT2, settings: SpeedSettings, device: torch.device, whole: bool) -> None:
    """Compile what a part computes, in place; after activation checkpointing, before FSDP. Names stay as they are.

    Args:
        part: the model, or one stage of a pipeline.
        device: where it will run; "auto" compiles on a GPU alone. A CPU gains 0 to 6 % and waits 40 s for it.
        whole: as one piece, which fuses most, and only where nothing communicates within the forward. Otherwise block
            by block, all of which share one compilation.
    """
    if settings.compile == "off" or (settings.compile == "auto" and device.type != "cuda"):
        return
    for module in [part] if whole else part.blocks.values():
        # The forward alone: what FSDP does around a block stays outside. Shapes never change in a run.
        module.forward = torch.compile(
            module.forward, dynamic=False, mode="max-autotune-no-cudagraphs" if settings.max_autotune else None
        )


@contextlib.contextmanager
def fast_kernels(settings: SpeedSettings, device: torch.device) -> Iterator[None]:
    """Prefer the fast kernels of a GPU, in forward and backward; nothing on a CPU."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    order = [KERNELS[settings.attention], *(kernel for name, kernel in KERNELS.items() if name != settings.attention)]
    try:
        with sdpa_kernel(order, set_priority=True):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def overlaps(config: RunConfig, device: torch.device, step: int) -> bool:
    """Whether the next step may begin before the numbers of this one are known.

    Its data, weights and dropout do not depend on them, only its learning rate does, and that is needed later. Not
    behind a step that validates, saves or is the last, and not in fp16, where the loss scale depends on them.
    """
    wanted, every = config.speed.overlap, [config.checkpoints.every]
    if config.data.valid:
        every.append(config.validation.every)
    if wanted == "off" or (wanted == "auto" and device.type != "cuda") or config.precision == "fp16":
        return False
    return step < config.steps and all(step % some for some in every)


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Spare the garbage collector all that is there now.

    Torch and the engine are 300,000 Python objects that live as long as the run; to walk through them takes 0.2 s of a
    processor each time, while the other ranks wait.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
