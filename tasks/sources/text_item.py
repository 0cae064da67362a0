"""One text record of the user's files, and the checks that every text must pass.

Reasons of unusable records: `invalid_utf8`, `wrong_type`, `no_text`, `empty`, `nul`, `lone_surrogate`, `too_large`.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpt2train.data.json_lines import find_value
from tasks.core.document import strip_unstorable

KEYS = ("url", "id", "title", "date")  # further keys that are read if present
# The same in the nested objects of dolma's and RedPajama's rows, which count where the row itself has none.
PATHS = {key: (key, f"metadata.{key}", f"meta.{key}") for key in KEYS}
SURROGATE = re.compile("[\ud800-\udfff]")


class Item(NamedTuple):
    """One text record."""

    location: str  # row (from 1) or byte in the file; empty for a file that is one record
    text: str = ""  # text of a usable record
    fields: Mapping[str, str] = {}  # values of `url`, `id`, `title`, `date`, if present
    reason: str | None = None  # reason code of an unusable record, else None
    detail: str = ""  # found and expected values


def make_item(location: str, record: Mapping[str, Any], key: str, max_bytes: int) -> Item:
    """Make a record from parsed fields."""
    try:
        text = find_value(record, key)
    except KeyError:
        return Item(location, reason="no_text", detail=f"no key {key!r}")
    if text is None:
        return Item(location, reason="no_text", detail=f"{key!r} is null")
    if not isinstance(text, str):
        return Item(location, reason="wrong_type", detail=f"{key!r} is {type(text).__name__}, a string expected")
    return checked(location, text, fields_of(record), max_bytes)


def fields_of(record: Any) -> dict[str, str]:
    """Return the values of `KEYS` that a record has."""
    found: dict[str, str] = {}
    for key, paths in PATHS.items():
        for path in paths:
            with contextlib.suppress(KeyError):
                if isinstance(value := find_value(record, path), str | int | float):
                    found[key] = strip_unstorable(str(value))
                    break
    return found


def checked(location: str, text: str, fields: Mapping[str, str], max_bytes: int) -> Item:
    """Make a record, with a reason if its text is unusable."""
    reason, detail = None, ""
    if "\0" in text:
        reason, detail = "nul", f"a NUL at character {text.index(chr(0)):,} of the text"
    elif found := SURROGATE.search(text):
        reason, detail = "lone_surrogate", f"half of a surrogate pair at character {found.start():,} of the text"
    elif not text.strip():
        reason, detail = "empty", "a text of nothing but spaces" if text else "a text of no characters"
    elif len(text) > max_bytes:
        reason, detail = "too_large", f"a text of {len(text):,} characters, at most {max_bytes:,} bytes expected"
    return Item(location, "" if reason else text, fields, reason, detail)
