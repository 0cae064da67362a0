"""The header Retry-After of HTTP (RFC 9110), by which a server says when it may be asked again."""

import datetime
import email.utils

MAX_RETRY_AFTER = 64  # characters; a date has 29


def retry_after(value: str | None) -> float | None:
    """Parse a Retry-After header, a number or a date, into seconds; None if it is missing or malformed."""
    value = (value or "").strip()
    if len(value) > MAX_RETRY_AFTER:
        return None
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
        if date.tzinfo is None:
            date = date.replace(tzinfo=datetime.UTC)
        return max(0.0, (date - datetime.datetime.now(datetime.UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
