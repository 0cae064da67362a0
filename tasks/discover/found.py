"""URLs found for one domain: in order, without repeats, within the domain, with how each was found."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from yarl import URL

from tasks.core.document import strip_unstorable
from tasks.core.forgotten import REASON, Forgotten, name_of
from tasks.core.shards import rejected_row
from tasks.core.url_lists import LONGEST
from tasks.discover.domains import Domain
from tasks.download.response_body import FetchRejectedError
from tasks.download.urls import join, parse

DISCOVERED = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("method", pa.string(), nullable=False),  # sitemap, feed, link
        pa.field("found_in", pa.string(), nullable=False),  # address of the sitemap, feed or page
        pa.field("depth", pa.int32(), nullable=False),  # files between this one and the start
        pa.field("modified", pa.string()),  # as the sitemap or feed states it
    ]
)
MAX_REJECTED = 10_000  # rows of one domain; further ones are only counted


@dataclass
class FoundUrls:
    """URLs of one domain."""

    domain: Domain
    subdomains: bool  # True if URLs of subdomains are taken too
    max_urls: int  # number of URLs after which no more are taken
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # rows of schema `DISCOVERED` by URL, in order
    rejected: list[dict[str, Any]] = field(default_factory=list)  # rows of schema `REJECTED`
    reasons: Counter[str] = field(default_factory=Counter)  # number of rejected URLs and files by reason code

    @property
    def full(self) -> bool:
        """True if no more URLs are taken."""
        return len(self.rows) >= self.max_urls

    def add(self, text: str, method: str, base: URL, depth: int, scope: str = "/", modified: str = "") -> URL | None:
        """Take a URL that a file at `base` states; return it unless it is refused.

        `scope` is the path below which the file may name URLs.
        """
        try:
            if len(text) > LONGEST:
                raise FetchRejectedError("too_long", f"more than {LONGEST} characters")
            url = join(base, text.strip())
            if not self.domain.contains(url, self.subdomains):
                raise FetchRejectedError("other_host", f"{url.raw_host or 'no host'}, {self.domain.name} expected")
            if not url.raw_path.startswith(scope):
                raise FetchRejectedError("outside_scope", f"a sitemap below {scope} may not name it")
        except FetchRejectedError as error:
            self.reject(text, base, error.reason, error.detail)
            return None
        plain = str(url)
        if plain not in self.rows:
            if self.full:
                self.reject(plain, base, "max_urls", f"the domain has more than {self.max_urls:,} URLs")
                return None
            named = {"url": plain, "domain": self.domain.name, "method": method, "found_in": str(base)}
            self.rows[plain] = {**named, "depth": depth, "modified": strip_unstorable(modified)[:40] or None}
        return url

    def add_capture(self, text: str) -> str:
        """Check the URL of a page in an archive, and return it as the archive has it.

        Raises:
            FetchRejectedError: `other_host`, `too_long` or `malformed`.
        """
        if len(text) > LONGEST:
            raise FetchRejectedError("too_long", f"more than {LONGEST} characters")
        if not self.domain.contains(parse(text), self.subdomains):
            raise FetchRejectedError("other_host", f"{text[:100]}, {self.domain.name} expected")
        return text

    def reject(self, url: str, base: URL | str, reason: str, detail: str) -> None:
        """Record a URL, or a file with URLs, that is not used."""
        self.reasons[reason] += 1
        if len(self.rejected) < MAX_REJECTED:
            row = {"url": strip_unstorable(url[:LONGEST]), "source": str(base)}
            self.rejected.append(rejected_row(row, reason, strip_unstorable(detail)))

    def drop_forgotten(self, forgotten: Forgotten) -> None:
        """Reject the URLs of forgotten pages, and name none of them as the place where another URL was found."""

        def shown(url: str) -> str:
            return name_of(url) if forgotten.matches(url) else url

        for number, row in enumerate(self.rejected):
            self.rejected[number] = {**row, "source": shown(row["source"])}
            if forgotten.matches(row["url"]):
                self.reasons.subtract([row["reason"]])
                self.reasons[REASON] += 1
                self.rejected[number] = rejected_row({"url": name_of(row["url"])}, REASON)
        self.rows = {
            url: {**row, "found_in": shown(row["found_in"])}
            for url, row in self.rows.items()
            if not self.is_dropped(row, forgotten)
        }

    def is_dropped(self, row: dict[str, Any], forgotten: Forgotten) -> bool:
        """Reject the row of a forgotten page, and return True if it is one."""
        if not forgotten.matches(row["url"]):
            return False
        self.reject(name_of(row["url"]), "", REASON, "")
        return True
