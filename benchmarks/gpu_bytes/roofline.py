"""Time of a kernel at rates that cards were seen to reach."""

import math
from dataclasses import dataclass

from benchmarks.gpu_bytes.kernels import Kernel

# Tiles of a product's result, one per multiprocessor at a time, and their speed: a small one reads more for its FLOPs.
TILES = {(128, 256): 1.0, (256, 128): 1.0, (128, 128): 0.9}
MULTIPROCESSORS = 132
SEEN = (8192, 8192, 8192)  # product whose rate was seen


@dataclass(frozen=True)
class Rates:
    """Rates of a card.

    Attributes:
        products: FLOP/s of the product SEEN.
        attention: FLOP/s of attention without the upper triangle, heads of 64, 1,024 tokens.
        copies: bytes per second, read and written.
        peak: FLOP/s of the data sheet.
        start: inner columns of a product that take as long as the start and the end of a tile.
        launch: seconds of a kernel beside its work.
    """

    products: float
    attention: float
    copies: float
    peak: float = 989e12
    start: int = 128
    launch: float = 2e-6

    def seconds(self, kernel: Kernel) -> float:
        """Time of a kernel: of its bytes or its FLOPs, whichever takes longer."""
        compute = 0.0
        if kernel.kind == "product":
            compute = kernel.flops / (self.products * self._share(kernel.shape) / self._share(SEEN))
        elif kernel.kind == "attention":
            compute = kernel.flops / self.attention
        return max(compute, kernel.bytes / self.copies) + self.launch

    def _share(self, shape: tuple[int, ...]) -> float:
        """Share of the multiprocessors' time that a product uses: the last wave of tiles, and each tile's start."""
        rows, inner, columns = shape
        best = 0.0
        for (m, n), speed in TILES.items():
            waves = math.ceil(math.ceil(rows / m) * math.ceil(columns / n) / MULTIPROCESSORS)
            best = max(best, speed * rows * columns / (waves * MULTIPROCESSORS * m * n))
        return best * inner / (inner + self.start)


# Products and copies were seen on one H100 and one H200; attention, start and launch are assumed.
CARDS = {"H100": Rates(798e12, 350e12, 3.0e12), "H200": Rates(790e12, 350e12, 4.3e12)}
