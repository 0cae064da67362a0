"""What changes how fast a run is and (but for rounding) not what it learns."""

from typing import Literal

from gpt2train.settings import Settings


class SpeedSettings(Settings):
    """What changes how fast a run is and (but for rounding) not what it learns."""

    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile: auto compiles on a GPU. Where one process has the model alone, it is compiled whole, else block by
    block."""
    prefetch: bool = True
    """Make the next batches ready while the present one is computed."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Begin the next step before this step's numbers are read, so that the device never waits for us: auto does so on a
    GPU. Not in fp16, whose loss scale follows from those numbers."""
    tf32: bool = True
    """On a GPU, let fp32 matrix products use TensorFloat-32."""
    attention: Literal["cudnn", "flash", "efficient", "math"] = "cudnn"
    """On a GPU, the attention kernel to try first; the others follow in this order."""
    max_autotune: bool = False
    """Compile with a search for the fastest kernels: some minutes more at the start."""
