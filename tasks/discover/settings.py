"""Settings of the discovery."""

from typing import Literal

from pydantic import Field, field_validator

from gpt2train.settings import Settings

Method = Literal["sitemaps", "feeds", "links", "commoncrawl"]


class DiscoverSettings(Settings):
    """Settings of the discovery: how the URLs of a domain are found, and how many. Rate limits: those of download."""

    methods: tuple[Method, ...] = Field(("sitemaps", "feeds"), min_length=1)
    """Ways to find URLs, in this order: sitemaps of robots.txt and /sitemap.xml; RSS, Atom and JSON feeds of the start
    page; links from the start page; Common Crawl's index, with pages of its archives and not of the site."""
    subdomains: bool = False
    """Take the URLs of subdomains too. `www.` and none are always one host."""
    max_urls: int = Field(100_000, ge=1, le=10_000_000)
    """URLs of one domain after which no more are taken."""
    sitemap_depth: int = Field(3, ge=0, le=10)
    """Levels of sitemap indexes within each other; a list of pages below a single index has depth 1."""
    max_sitemaps: int = Field(1000, ge=1)
    """Sitemaps and feeds of one domain that are read."""
    link_depth: int = Field(2, ge=1, le=20)
    """Links from the start page after which no further link is followed."""
    max_link_pages: int = Field(500, ge=1)
    """Pages of one domain that are read for their links."""
    index_server: str = "https://index.commoncrawl.org"
    """Address of the index of Common Crawl (a server of the CDX API)."""
    archive_server: str = "https://data.commoncrawl.org"
    """Address of the archives of Common Crawl."""
    crawls: tuple[str, ...] = ()
    """Crawls whose index is searched, as CC-MAIN-2024-10; none: the newest one that the index server lists."""
    max_captures: int = Field(10_000, ge=1, le=1_000_000)
    """Pages of one domain that are taken from Common Crawl."""

    @field_validator("index_server", "archive_server")
    @classmethod
    def _address(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} is no address; give it with http:// or https://")
        return value.rstrip("/")

    @property
    def requests_pages(self) -> bool:
        """True if URLs are found that the download requests."""
        return any(method != "commoncrawl" for method in self.methods)
