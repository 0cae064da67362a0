"""Settings of the download."""

import ipaddress
from typing import Any

from pydantic import Field, field_validator

from gpt2train import __version__
from gpt2train.settings import Settings

PACE = {
    "concurrency",
    "per_host",
    "delay",
    "max_crawl_delay",
    "attempts",
    "backoff",
    "max_wait",
    "give_up",
    "shards_at_once",
    "seed",
    "manners",
}


class DownloadSettings(Settings):
    """How pages are fetched: how politely, how long, how much, and from where."""

    user_agent: str = Field(f"gpt2train/{__version__} (research crawler; respects robots.txt)", min_length=1)
    """Sent with each request; robots.txt is read for the name before the slash. Put a contact address in."""
    obey_robots: bool = True
    """Read each host's robots.txt and keep to it, its Crawl-delay included."""
    concurrency: int = Field(64, ge=1, le=1000)
    """Requests in flight over all hosts."""
    per_host: int = Field(1, ge=1, le=100)
    """Requests in flight to one host."""
    delay: float = Field(1.0, ge=0, le=600)
    """Seconds between the starts of two requests to one host; a longer Crawl-delay of its robots.txt counts."""
    max_crawl_delay: float = Field(30.0, ge=0, le=3600)
    """Longest Crawl-delay that is kept to, in seconds."""
    deadline: float = Field(30.0, gt=0, le=600)
    """Seconds for one page: all its requests together, redirects and retries included, waiting for turns excluded."""
    body_deadline: float = Field(20.0, gt=0, le=600)
    """Seconds from the head of a response to the end of its body: a server may think long, but not drip."""
    attempts: int = Field(3, ge=1, le=10)
    """Requests for one page at most, when the server is busy, errs or drops the connection; redirects not counted."""
    backoff: float = Field(1.0, ge=0, le=60)
    """Seconds before the second attempt, doubled for each further one, times a random 0.5 to 1.5."""
    max_wait: float = Field(60.0, ge=0, le=3600)
    """Longest Retry-After that is waited for, in seconds; a longer one ends the attempts."""
    give_up: int = Field(5, ge=1)
    """Pages of one host that fail in a row, for a reason that may pass, before the rest of its pages are left alone
    for this run. With `deadline` it bounds the time that a dead host can take."""
    shards_at_once: int = Field(16, ge=1, le=256)
    """URL shards in flight: a slow host holds back its own shards, and so many of them."""
    max_redirects: int = Field(5, ge=0, le=20)
    """Redirects followed for one page."""
    max_wire_bytes: int = Field(8 * 2**20, ge=1)
    """Bytes of one response as sent."""
    max_bytes: int = Field(16 * 2**20, ge=1)
    """Bytes of one page when decoded."""
    max_ratio: float = Field(100.0, ge=1)
    """Decoded bytes for each byte sent, above 1 MiB: what makes far more is a compression bomb."""
    content_types: tuple[str, ...] = ("text/html", "application/xhtml+xml")
    """Media types that are kept."""
    ports: tuple[int, ...] = (80, 443)
    """Ports that may be asked."""
    allow_private: tuple[str, ...] = ()
    """Networks that may be asked although they are not public, as `127.0.0.0/8`."""
    manners: str = Field("auto", min_length=1)
    """Folder by which downloads that run at the same time keep to per_host and delay together: `auto` is the user's
    cache folder, a folder on a shared disk covers several machines, `off` lets each process keep its own count."""
    seed: int = 0
    """Of the random part of the waiting times."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What the outputs depend on. The pace is no part of it: to slow a crawl down must not begin it anew."""
        return self.model_dump(mode="json", exclude=PACE)

    @field_validator("allow_private")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ipaddress.ip_network(text)  # a ValueError says what is wrong
        return value

    @property
    def allowed(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """`allow_private`, parsed."""
        return tuple(ipaddress.ip_network(text) for text in self.allow_private)
