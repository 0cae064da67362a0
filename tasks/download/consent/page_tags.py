"""Meta tags and license links of a page, found without building its tree.

Most pages have none of the words in question: a search in the bytes answers for them, and only the others are parsed.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lxml import etree

from tasks.download.consent.headers import words_of

MAX_PARSED = 2**20  # bytes of a page; the tags belong into its head
MAX_TAGS = 256  # of each kind
MAX_CONTENT = 2000  # characters of an attribute
LINKS = ("link", "a")
_WORDS = (b"noai", b"noimageai", b"tdm-reservation")
_LICENSE = re.compile(rb"""rel\s*=\s*["']?[^"'>]{0,100}license""")
_WIDE = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16


@dataclass(frozen=True)
class PageTags:
    """Tags of a page that state a consent signal."""

    metas: Mapping[str, list[str]] = field(default_factory=dict)  # content of the meta tags by their name in lower case
    licenses: tuple[str, ...] = ()  # targets of links with the relation `license`

    def directives(self, agents: Collection[str]) -> set[str]:
        """Return the directives for all robots or for one of the agents, whose names are in lower case."""
        contents = [text for name, texts in self.metas.items() if name in ("robots", *agents) for text in texts]
        return set[str]().union(*map(words_of, contents))

    @property
    def reservation(self) -> bool | None:
        """Reservation of text and data mining; None if no tag states one."""
        stated = {text.strip() for text in self.metas.get("tdm-reservation", [])} & {"0", "1"}
        return "1" in stated if stated else None


def page_tags(body: bytes, charset: str | None = None) -> PageTags:
    """Return the tags of a page, from its first `MAX_PARSED` bytes."""
    body = body[:MAX_PARSED]
    if body.startswith(_WIDE) or (charset or "").startswith("utf-16"):
        codec = "utf-16" if body.startswith(_WIDE) else "utf-16-be" if charset == "utf-16be" else "utf-16-le"
        body = body.decode(codec, "replace").encode("utf-8", "replace")
    lower = body.lower()
    if not (any(word in lower for word in _WORDS) or (b"license" in lower and _LICENSE.search(lower))):
        return PageTags()  # in microseconds
    target = _Target()
    # Tag names and the words are ASCII; a wrong encoding spoils nothing but the letters of a license's address.
    parser = etree.HTMLParser(target=target, encoding="utf-8", recover=True, huge_tree=False)
    try:
        parser.feed(body)
        parser.close()
    except (etree.LxmlError, ValueError):
        pass  # what was found before the fault counts
    return PageTags(target.metas, tuple(target.licenses))


class _Target:
    """Receiver of the parser's events."""

    def __init__(self) -> None:
        self.metas: dict[str, list[str]] = {}
        self.licenses: list[str] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Take down a meta tag or a license link."""
        if tag == "meta":
            name = (attributes.get("name") or "").strip().lower()[:MAX_CONTENT]
            if name and sum(map(len, self.metas.values())) < MAX_TAGS:
                self.metas.setdefault(name, []).append((attributes.get("content") or "")[:MAX_CONTENT])
        elif tag in LINKS and "license" in (attributes.get("rel") or "").lower().split():
            link = (attributes.get("href") or "").strip()
            if link and len(self.licenses) < MAX_TAGS:
                self.licenses.append(link[:MAX_CONTENT])

    def close(self) -> None:
        """End of the page."""
