"""Sitemaps of a domain: those of robots.txt and /sitemap.xml, with the indexes followed breadth first.

A sitemap that robots.txt names may state URLs of the whole host, and may lie on another host. Any other may state those
below its own folder, and an index only sitemaps below its own (https://www.sitemaps.org/protocol.html#location).
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

from yarl import URL

from tasks.discover.found import FoundUrls
from tasks.discover.session import Session
from tasks.discover.settings import DiscoverSettings
from tasks.discover.xml_entries import MAX_ENTRIES, Entries, Kind, read_entries
from tasks.download.response_body import FetchRejectedError
from tasks.download.urls import join

FIRST = "/sitemap.xml"
MAX_NAMED = 100  # sitemaps that one robots.txt names


@dataclass(frozen=True)
class SiteFile:
    """A sitemap or feed to read."""

    url: URL
    found_in: URL  # address of the file that names it
    depth: int = 0  # indexes above it
    is_proven: bool = False  # True if robots.txt of the domain names it or an index above it

    @property
    def scope(self) -> str:
        """Path below which the file may name URLs."""
        return "/" if self.is_proven else self.url.raw_path.rpartition("/")[0] + "/"


async def find_in_sitemaps(session: Session, start: URL, found: FoundUrls, settings: DiscoverSettings) -> None:
    """Add the URLs of all sitemaps of the site at `start`."""
    robots = start.origin() / "robots.txt"
    queue: deque[SiteFile] = deque()
    for text in (await session.named_sitemaps(start))[:MAX_NAMED]:
        try:
            queue.append(SiteFile(join(robots, text), robots, is_proven=True))
        except FetchRejectedError as error:
            found.reject(text, robots, error.reason, error.detail)
    queue.append(SiteFile(start.origin().join(URL(FIRST)), start))
    await read_files(session, queue, found, settings, "sitemap")


async def read_files(
    session: Session,
    queue: deque[SiteFile],
    found: FoundUrls,
    settings: DiscoverSettings,
    method: Literal["sitemap", "feed"],
) -> None:
    """Add the URLs of sitemaps or feeds, and of those that they name."""
    kinds: tuple[Kind, ...] = ("index", "pages", "feed") if method == "sitemap" else ("feed",)
    seen: set[URL] = set()
    while queue and not found.full:
        file = queue.popleft()
        if file.url in seen:
            if file.depth:
                found.reject(str(file.url), file.found_in, "sitemap_loop", "named again")
            continue
        if len(seen) >= settings.max_sitemaps:
            found.reject(str(file.url), file.found_in, "max_sitemaps", f"more than {settings.max_sitemaps:,}")
            continue
        seen.add(file.url)
        entries = await _read_file(session, file, found, kinds)
        if entries is not None and entries.kind == "index":
            queue.extend(_listed(file, entries, found, settings))
        elif entries is not None:
            scope = file.scope if method == "sitemap" else "/"
            for text, modified in entries.entries:
                found.add(text, method, entries.base, file.depth, scope, modified)
            if (following := _next_page(file, entries, found)) is not None:
                queue.append(following)


async def _read_file(session: Session, file: SiteFile, found: FoundUrls, kinds: tuple[Kind, ...]) -> Entries | None:
    """Fetch and read a sitemap or feed; None if it cannot be used, with the reason among the rejected rows."""
    page = await session.fetch(str(file.url))
    try:
        if page.body is None:
            raise FetchRejectedError(page.reason, page.detail)
        if not file.is_proven and not found.domain.contains(URL(page.final_url), found.subdomains):
            raise FetchRejectedError("other_host", f"a redirect to {page.final_url[:200]}")
        entries = await session.read(read_entries, page.body, session.max_ratio, page.final_url)
        if entries.kind not in kinds:
            raise FetchRejectedError("not_a_sitemap", f"{entries.kind}, {' or '.join(kinds)} expected")
    except FetchRejectedError as error:
        found.reject(str(file.url), file.found_in, error.reason, error.detail)
        return None
    entries.base = URL(page.final_url)
    if entries.left_out:
        detail = f"{entries.left_out:,} entries after the first {MAX_ENTRIES:,}"
        found.reject(str(file.url), file.found_in, "too_many_entries", detail)
    return entries


def _next_page(file: SiteFile, entries: Entries, found: FoundUrls) -> SiteFile | None:
    """Return the next page of a feed, with older items; None after a page without items, and on another host."""
    if not entries.next_page or not entries.entries:
        return None
    try:
        url = _join_in_host(file, entries.base, entries.next_page)
    except FetchRejectedError as error:
        found.reject(entries.next_page, entries.base, error.reason, error.detail)
        return None
    return SiteFile(url, entries.base, file.depth, file.is_proven)


def _join_in_host(file: SiteFile, base: URL, text: str) -> URL:
    """Resolve the address of a further file, on the host that was asked or on that to which it redirects."""
    if (url := join(base, text)).raw_host not in (base.raw_host, file.url.raw_host):
        raise FetchRejectedError("other_host", f"{url.raw_host}, {base.raw_host} expected")
    return url


def _listed(file: SiteFile, entries: Entries, found: FoundUrls, settings: DiscoverSettings) -> list[SiteFile]:
    """Return the sitemaps of an index that may be read."""
    listed = []
    for text, _ in entries.entries[: settings.max_sitemaps + 1]:
        try:
            url = _join_in_host(file, entries.base, text)
            if not url.raw_path.startswith(file.scope):
                raise FetchRejectedError("outside_scope", f"an index below {file.scope} may not name it")
            if file.depth >= settings.sitemap_depth:
                raise FetchRejectedError("sitemap_depth", f"below {file.depth + 1} indexes")
        except FetchRejectedError as error:
            found.reject(text, file.url, error.reason, error.detail)
            continue
        listed.append(SiteFile(url, file.url, file.depth + 1, file.is_proven))
    return listed
