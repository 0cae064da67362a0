"""Performance settings, which change the speed of a run and its results only by rounding: with fp8 by a coarse one."""

from typing import Literal

from pydantic import Field

from gpt2train.model.shape import COMPILED_CHUNK
from gpt2train.settings import Settings


class PerformanceSettings(Settings):
    """Performance options. They change the speed of a run, and its results only by rounding; `fp8` rounds to 3 bits."""

    compile: Literal["auto", "on", "blocks", "off"] = "auto"
    """torch.compile; auto compiles on a GPU. A model on a single process is compiled as a whole, otherwise or with
    blocks block by block, in a time that does not grow with depth, and the loss too unless its vocabulary is split."""
    prefetch: bool = True
    """Prepare the next batches while the current one is computed."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Start the next step before the loss of the current one is read, so that the device never waits for the host; auto
    does so on a GPU. Not possible in fp16, since the loss scale depends on the previous step."""
    tf32: bool = True
    """On a GPU, use TensorFloat-32 for fp32 matrix products."""
    attention: Literal["cudnn", "flash", "efficient", "math"] = "cudnn"
    """On a GPU, the attention kernel to try first; the others follow in this order."""
    max_autotune: bool = False
    """Compile with a search for the fastest kernels, which takes some minutes at the start. Since the processes wait
    for each other meanwhile, one that hangs is detected after 30 minutes at the earliest."""
    # Left out of a run's files by default, as `fp8` is.
    stream: Literal["auto", "fp32", "bf16"] = Field("auto", exclude_if=lambda stream: stream == "auto")
    """Precision of the residual stream, the input and output of every block; bf16 needs precision bf16. It saves an
    eighth of the memory traffic of a compiled step on a GPU; sums over many blocks become coarser. auto: bf16 on a GPU
    with precision bf16, but for T5."""
    loss_chunk: int = Field(COMPILED_CHUNK, ge=128, le=2**20, exclude_if=lambda rows: rows == COMPILED_CHUNK)
    """Rows of logits that compiled code on a GPU has at a time, two bytes for each token of the vocabulary and twice.
    `gpt2train plan` halves it where memory is short."""
    # Left out of a run's files when off, so that files and fingerprints of older runs stay the same.
    fp8: Literal["off", "tensorwise", "rowwise"] = Field("off", exclude_if=lambda fp8: fp8 == "off")
    """Matrix products of the blocks in 8-bit floating point, with one scale per matrix or per row; needs precision
    bf16, sizes that are multiples of 16, and a GPU of compute capability 8.9 or newer. A CPU computes it slowly, for
    tests. The rounding is coarse: compare the loss with bf16 first."""
