"""Items of a JSON Feed, version 1 or 1.1 (https://www.jsonfeed.org/version/1.1/)."""

import json
import re
from typing import Any

from tasks.download.response_body import FetchRejectedError

# Unlike XML, JSON is read into a tree, which takes up to 30 times the size of the file.
MAX_JSON = 8 * 2**20  # bytes
ADDRESSES = ("url", "external_url")  # of an item: its page, or the one that it is about
DATES = ("date_modified", "date_published")
_VERSION = re.compile(r"https?://(?:www\.)?jsonfeed\.org/version/1(?:\.\d+)?/?")


def read_json_feed(body: bytes) -> tuple[list[tuple[str, str]], str]:
    """Return the items of a feed in UTF-8, and its `next_url` as stated or empty.

    An item is its URL as stated, and the time of its last change as stated or empty.

    Raises:
        FetchRejectedError: `too_large`, or `not_a_sitemap` for any other JSON.
    """
    if len(body) > MAX_JSON:
        raise FetchRejectedError("too_large", f"more than {MAX_JSON:,} bytes of JSON")
    try:
        feed = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise FetchRejectedError("not_a_sitemap", f"not JSON: {error}"[:100]) from error
    if not isinstance(feed, dict) or not _VERSION.fullmatch(_text(feed, "version")):
        raise FetchRejectedError("not_a_sitemap", "JSON without the version of JSON Feed 1")
    items = feed.get("items")
    if not isinstance(items, list):
        raise FetchRejectedError("not_a_sitemap", "a JSON Feed whose items are no list")
    found = [(_first(item, ADDRESSES), _first(item, DATES)) for item in items if isinstance(item, dict)]
    return [(url, date) for url, date in found if url], _text(feed, "next_url")


def _first(item: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return the first of some fields that is a text and not empty."""
    return next((text for name in names if (text := _text(item, name))), "")


def _text(item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    return value.strip() if isinstance(value, str) else ""
