"""Settings of the shuffle."""

from pydantic import Field

from gpt2train.settings import Settings


class ShuffleSettings(Settings):
    """Seed of the shuffle, and size of its cells."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of the order."""
    rows_per_cell: int = Field(default=8192, ge=1, le=2**22)
    """Average documents of a cell, which is sorted in memory and written to one file; cells grow above 1,024 files. The
    order does not depend on it."""
    bytes_per_cell: int = Field(default=256 << 20, ge=1)
    """Maximum average bytes of a cell in Parquet (about a third of its text). With large documents a cell has fewer
    than `rows_per_cell`."""
