"""URLs as the crawler requests them: encoded, without user name, password and fragment.

yarl decodes escapes that a URL need not have (`%27`, `%3A`, in a query `%2F`). Servers that compare the address with a
signature, or take such a sign for one of their own, then refuse it; so escapes stay as they are given, as in browsers.
"""

import re

from yarl import URL

from tasks.download.meta_tags import meta_tags
from tasks.download.response_body import FetchRejectedError

MAX_URL = 8192  # characters of a redirect target; longer ones are crawler traps
MAX_REFRESH_SECONDS = 10  # after which a page has been read
MAX_REFRESH_TEXT = 1000  # letters and signs of a page that is not to be read; most say "You are being redirected"

_REFRESH = re.compile(
    r"\s*(\d{1,9})[\d.]*\s*[;,\s]\s*(?:url\s*=\s*)?(?:'([^']*)|\"([^\"]*)|(.*))", re.IGNORECASE | re.DOTALL
)
_NO_TEXT = re.compile(rb"<(script|style)\b.*?(?:</\1\b|\Z)|<[^>]*(?:>|\Z)|\s+", re.IGNORECASE | re.DOTALL)
_BEFORE_PATH = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://[^/?#]*)?")
_ESCAPE = re.compile("%(?!2[Ee])(?=[0-9A-Fa-f]{2})")  # of any sign but a dot, which makes a segment of the path
_MASKED = re.compile("%25(?=[0-9A-Fa-f]{2})")
_RAW_BYTE = re.compile("[\udc80-\udcff]")  # of a header field that is not UTF-8


def parse(url: str) -> URL:
    """Parse a URL into the form that is requested.

    Raises:
        FetchRejectedError: `malformed`.
    """
    try:
        return _unmasked(_bare(URL(_masked(url))))
    except ValueError as error:
        raise FetchRejectedError("malformed", str(error)[:200]) from error


def join(base: URL, location: str) -> URL:
    """Resolve the target of a redirect; bytes that are not UTF-8 are percent-encoded.

    Raises:
        FetchRejectedError: `malformed`.
    """
    if len(location) > MAX_URL:
        raise FetchRejectedError("malformed", f"a redirect of {len(location)} characters")
    try:
        location = _RAW_BYTE.sub(lambda raw: f"%{ord(raw[0]) - 0xDC00:02X}", location)
        start, target = URL(_masked(str(base))), URL(_masked(location))
        if target.raw_path:  # `join` decodes the folders before a name
            start = start.with_path(f"{start.raw_path.rpartition('/')[0]}/", encoded=True)
        return _unmasked(_bare(start.join(target)))
    except ValueError as error:
        raise FetchRejectedError("malformed", f"redirect: {error}"[:200]) from error


def join_or_none(base: URL, location: str) -> URL | None:
    """Resolve an address; None if it is malformed."""
    try:
        return join(base, location)
    except FetchRejectedError:
        return None


def refresh_target(url: URL, field: str | None, body: bytes) -> URL | None:
    """Target of a page that sends its reader to another one, by a `Refresh` field or a meta tag.

    None if the page is there to be read: if it is shown for longer than a second and has more text than a notice, or
    the target is malformed.
    """
    metas = (tag for tag in meta_tags(body) if tag.get("http-equiv", "").strip().lower() == "refresh")
    tag = {"content": field} if field else next(metas, {})
    found = _REFRESH.match(tag.get("content", ""))
    if found is None or int(found[1]) > MAX_REFRESH_SECONDS:
        return None
    if int(found[1]) > 1 and len(_NO_TEXT.sub(b"", body)) > MAX_REFRESH_TEXT:
        return None
    stated = (found[2] or found[3] or found[4] or "").strip()
    base = join_or_none(url, tag.get("base", "")) or url
    return join_or_none(base, stated) if stated else None


def _masked(url: str) -> str:
    """Escape the escapes of path, query and fragment, so that `URL` keeps them."""
    if "%" not in url:
        return url
    at = _BEFORE_PATH.match(url).end()  # type: ignore[union-attr]
    return url[:at] + _ESCAPE.sub("%25", url[at:])


def _unmasked(url: URL) -> URL:
    """Return a URL with the escapes that `_masked` has escaped."""
    text = str(url)
    return URL(_MASKED.sub("%", text), encoded=True) if "%25" in text else url


def _bare(url: URL) -> URL:
    return (url if url.raw_user is None and url.raw_password is None else url.with_user(None)).with_fragment(None)
