"""Links and feeds of a page, and the search by links from the start page of a domain, breadth first."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from lxml import etree
from yarl import URL

from tasks.core.forgotten import REASON
from tasks.discover.found import FoundUrls
from tasks.discover.session import Session
from tasks.discover.settings import DiscoverSettings
from tasks.discover.sitemaps import SiteFile, read_files
from tasks.download.ledger import Fetched
from tasks.download.mime import HTML_TYPES
from tasks.download.response_body import FetchRejectedError
from tasks.download.urls import join, join_or_none

# JSON Feed has had `application/json` in its first version.
FEED_TYPES = (
    *("application/rss+xml", "application/atom+xml", "application/rdf+xml"),
    *("application/feed+json", "application/json"),
)
# WordPress names the interface of each site, which is no feed, by a link of the same kind (rest_output_link_wp_head).
_WP_JSON = re.compile(r"/wp-json(?:/|$)|[?&]rest_route=")
MAX_PAGE = 4 * 2**20  # bytes of a page that are read for links
MAX_LINKS = 5000  # of one page


@dataclass
class PageLinks:
    """Links of one page, as stated, in order."""

    base: str = ""  # address of the page's `base` element; empty without one
    links: list[str] = field(default_factory=list)  # targets of `a` without `rel="nofollow"`
    feeds: list[str] = field(default_factory=list)  # targets of `link rel="alternate"` with the type of a feed
    nofollow: bool = False  # True if a meta tag for robots forbids to follow links

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Take an element; called by the parser."""
        target, words = (attributes.get("href") or "").strip(), (attributes.get("rel") or "").lower().split()
        kind = (attributes.get("type") or "").partition(";")[0].strip().lower()
        if tag == "base" and target and not self.base:
            self.base = target
        elif tag == "a" and target and "nofollow" not in words and len(self.links) < MAX_LINKS:
            self.links.append(target)
        elif tag == "link" and "alternate" in words and kind in FEED_TYPES:
            if kind != "application/json" or not _WP_JSON.search(target):
                self.feeds.append(target)
        elif tag == "meta" and (attributes.get("name") or "").lower() == "robots":
            content = (attributes.get("content") or "").lower()
            self.nofollow |= "nofollow" in content or "none" in content.replace(",", " ").split()

    def close(self) -> None:
        """End of the page; called by the parser."""


def read_links(body: bytes) -> PageLinks:
    """Return the links of an HTML page."""
    found = PageLinks()
    parser = etree.HTMLParser(target=found, recover=True, huge_tree=False)
    try:
        parser.feed(body[:MAX_PAGE])
        parser.close()
    except (etree.LxmlError, ValueError):
        pass  # the links before the fault count
    return found


async def find_in_feeds(session: Session, start: Fetched, found: FoundUrls, settings: DiscoverSettings) -> None:
    """Add the URLs of the feeds that the start page names."""
    links = await session.read(read_links, start.body or b"")
    base = join_or_none(URL(start.final_url), links.base) or URL(start.final_url)
    queue: deque[SiteFile] = deque()
    for text in links.feeds[: settings.max_sitemaps]:
        try:
            # The site itself names its feed, which may lie on a service's host.
            queue.append(SiteFile(join(base, text), URL(start.final_url), is_proven=True))
        except FetchRejectedError as error:
            found.reject(text, base, error.reason, error.detail)
    await read_files(session, queue, found, settings, "feed")


async def find_by_links(session: Session, start: Fetched, found: FoundUrls, settings: DiscoverSettings) -> None:
    """Add the URLs that can be reached by at most `link_depth` links; pages are requested in the order of finding."""
    first = found.add(start.final_url, "link", URL(start.final_url), 0)
    queue = deque([(first, 0)] if first is not None else [])
    seen, requests = {first}, 0
    while queue and not found.full and requests < settings.max_link_pages:
        url, depth = queue.popleft()
        page = start if url == first else await session.fetch(str(url))
        requests += 1
        if page.reason == REASON:
            continue  # it is rejected as the URL that was found
        if page.body is None or page.content_type not in HTML_TYPES:
            found.reject(str(url), str(url), page.reason or "content_type", page.detail or page.content_type)
            continue
        links = await session.read(read_links, page.body)
        address = URL(page.final_url)
        base = join_or_none(address, links.base) or address
        if links.nofollow or not found.domain.contains(address, found.subdomains):
            continue
        for text in links.links:
            target = join_or_none(base, text)
            if target is None or target in seen or not found.domain.contains(target, found.subdomains):
                continue  # links to other sites are not worth a row each
            seen.add(target)
            if found.add(str(target), "link", address, depth + 1) and depth + 1 < settings.link_depth:
                queue.append((target, depth + 1))
