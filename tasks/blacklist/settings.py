"""Settings of the blacklist."""

from typing import Literal

from pydantic import Field, model_validator

from gpt2train.settings import Settings


class BlacklistSettings(Settings):
    """Which URLs are dropped before anything is fetched."""

    min_length: int = Field(9, ge=0)
    """Shortest URL that is kept, in characters."""
    block_names: bool = True
    """Drop the built-in list of site names (media hosts, shops, social networks; tasks/data/blocked_names.txt)."""
    block_extensions: bool = True
    """Drop paths that end like a file that is no page (.pdf, .jpg, .zip, …)."""
    domain_lists: tuple[str, ...] = ()
    """Further lists of your own, packed or not: files of domains, one a line, sub-domains included; or folders as UT1
    lays them out (`<category>/domains`, `<category>/urls` with host and beginning of the path, or `<category>.txt`)."""
    parity: Literal["megatron"] | None = None
    """`megatron`: Megatron-LM's rules with their faults, to compare counts; your own lists do not go with it."""
    shard_rows: int = Field(10_000, ge=1, le=100_000)
    """URLs a file; a file is what the download fetches, and repeats when killed, at a time."""

    @model_validator(mode="after")
    def _parity_alone(self) -> "BlacklistSettings":
        if self.parity and self.domain_lists:
            raise ValueError("parity compares with a run that knew no domain_lists; give one of the two")
        return self
