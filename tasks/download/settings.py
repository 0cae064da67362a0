"""Settings of the download step."""

import functools
import ipaddress
from typing import Any

from pydantic import Field, field_validator

from gpt2train import __version__
from gpt2train.settings import Settings
from tasks.download.consent.settings import ConsentSettings

PACE = {
    *("concurrency", "per_host", "delay", "max_crawl_delay", "attempts", "backoff", "max_wait", "max_host_failures"),
    *("shards_at_once", "seed", "skip_fresh", "shared_rate_limit_dir"),
}


@functools.lru_cache(maxsize=16)
def _networks_of(texts: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


class DownloadSettings(Settings):
    """Settings of the download: rate limits, deadlines, size limits, and allowed addresses."""

    user_agent: str = Field(f"gpt2train/{__version__} (research crawler; respects robots.txt)", min_length=1)
    """User-Agent header; the name before the slash selects the rules of robots.txt. Include a contact address."""
    obey_robots: bool = True
    """Obey each host's robots.txt, including its Crawl-delay."""
    consent: ConsentSettings = ConsentSettings()
    """What sites say about the use of their pages for training."""
    concurrency: int = Field(64, ge=1, le=1000)
    """Requests in flight over all hosts."""
    per_host: int = Field(1, ge=1, le=100)
    """Requests in flight to one host."""
    delay: float = Field(1.0, ge=0, le=600)
    """Seconds between the starts of two requests to one host; a longer Crawl-delay in robots.txt takes precedence."""
    max_crawl_delay: float = Field(30.0, ge=0, le=3600)
    """Maximum Crawl-delay that is obeyed, in seconds."""
    deadline: float = Field(30.0, gt=0, le=600)
    """Seconds for all requests of one page, including redirects and retries, excluding waits for rate limits."""
    body_deadline: float = Field(20.0, gt=0, le=600)
    """Seconds from the head of a response to the end of its body. Limits slow-drip responses."""
    attempts: int = Field(3, ge=1, le=10)
    """Maximum requests for one page if the server is busy, fails or drops the connection; redirects not counted."""
    backoff: float = Field(1.0, ge=0, le=60)
    """Seconds before the second attempt, doubled for each further one, times a random 0.5 to 1.5."""
    max_wait: float = Field(60.0, ge=0, le=3600)
    """Maximum Retry-After that is obeyed, in seconds; a longer one ends the attempts."""
    max_host_failures: int = Field(5, ge=1)
    """Consecutive temporary failures of one host after which its remaining pages are skipped in this run. With
    `deadline` it bounds the time that a dead host can take."""
    shards_at_once: int = Field(16, ge=1, le=256)
    """URL shards in flight. A slow host delays only the shards that name it."""
    max_redirects: int = Field(5, ge=0, le=20)
    """Maximum redirects of one page."""
    max_wire_bytes: int = Field(8 * 2**20, ge=1)
    """Maximum bytes of one response as sent."""
    max_bytes: int = Field(16 * 2**20, ge=1)
    """Maximum bytes of one page when decoded."""
    max_ratio: float = Field(100.0, ge=1)
    """Maximum ratio of decoded bytes to bytes sent, above 1 MiB. Limits compression bombs."""
    content_types: tuple[str, ...] = ("text/html", "application/xhtml+xml")
    """Media types that are kept; `*/*` keeps all."""
    ports: tuple[int, ...] = (80, 443)
    """Allowed ports."""
    allow_private: tuple[str, ...] = ()
    """Networks that are allowed although they are not public, such as `127.0.0.0/8`."""
    shared_rate_limit_dir: str = Field("auto", min_length=1)
    """Folder through which concurrent downloads share the limits per_host and delay: `auto` is the user's cache folder,
    a folder on a shared disk covers several machines, `off` gives each process its own limits."""
    skip_fresh: bool = False
    """At a refresh, do not request pages that their server still declares fresh (RFC 9111: Cache-Control, Expires). A
    page that has changed before that time is then found only after it."""
    seed: int = 0
    """Seed of the random part of the waiting times."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Settings that the outputs depend on.

        Rate limits are left out, since changing them must not restart a crawl, and so is `skip_fresh`, which only
        decides which pages a refresh asks for.
        """
        return self.model_dump(mode="json", exclude=PACE if self.consent.enabled else PACE | {"consent"})

    def accepts(self, content_type: str) -> bool:
        """Return True if pages of a media type are kept."""
        return content_type in self.content_types or "*/*" in self.content_types

    @property
    def agent(self) -> str:
        """Name by which robots.txt addresses the crawler."""
        return self.user_agent.partition("/")[0].strip()

    @field_validator("allow_private")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ipaddress.ip_network(text)  # raises a ValueError with the reason
        return value

    @property
    def allowed(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """`allow_private`, parsed."""
        return _networks_of(self.allow_private)
