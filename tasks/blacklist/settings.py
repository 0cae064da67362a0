"""Settings of the blacklist step."""

from typing import Literal

from pydantic import Field, model_validator

from gpt2train.settings import Settings


class BlacklistSettings(Settings):
    """Settings of the blacklist: rules that drop URLs before any request."""

    head: int | None = Field(None, ge=1)
    """Rows that are read of each list, for a trial; all by default."""
    min_length: int = Field(9, ge=0)
    """Minimum length of a URL, in characters."""
    block_names: bool = True
    """Drop the built-in list of site names (media hosts, shops, social networks; tasks/blacklist/blocked_names.txt)."""
    block_extensions: bool = True
    """Drop paths with the extension of a file that is not a page (.pdf, .jpg, .zip, …)."""
    domain_lists: tuple[str, ...] = ()
    """Blocklists of your own, compressed or not: files with one domain per line, including its subdomains; or folders
    in UT1's layout (`<category>/domains`, `<category>/urls` with URL prefixes, or `<category>.txt`)."""
    credentials: Literal["strip", "reject"] = "strip"
    """URLs with a user name or password before the host: `strip` removes these, `reject` drops the URL. They are never
    written to the output or sent. Secrets in a query (`?token=…`) are part of the URL and stay."""
    parity: Literal["megatron"] | None = None
    """`megatron`: Megatron-LM's rules with their faults, to compare counts; cannot be combined with domain_lists."""
    shard_rows: int = Field(10_000, ge=1, le=100_000)
    """URLs per shard. A shard is one batch of the download, and is repeated after a kill."""

    @model_validator(mode="after")
    def _parity_alone(self) -> "BlacklistSettings":
        if self.parity and self.domain_lists:
            raise ValueError("parity compares with a run that knew no domain_lists; give one of the two")
        return self
