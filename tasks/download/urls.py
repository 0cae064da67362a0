"""URLs as the crawler requests them: encoded, without user name, password and fragment."""

from yarl import URL

from tasks.download.response_body import FetchRejectedError

MAX_URL = 8192  # characters of a redirect target; longer ones are crawler traps


def parse(url: str) -> URL:
    """Parse a URL into the form that is requested.

    Raises:
        FetchRejectedError: `malformed`.
    """
    try:
        return _bare(URL(url))
    except ValueError as error:
        raise FetchRejectedError("malformed", str(error)[:200]) from error


def join(base: URL, location: str) -> URL:
    """Resolve the target of a redirect.

    Raises:
        FetchRejectedError: `malformed`.
    """
    if len(location) > MAX_URL:
        raise FetchRejectedError("malformed", f"a redirect of {len(location)} characters")
    try:
        return _bare(base.join(URL(location)))
    except ValueError as error:
        raise FetchRejectedError("malformed", f"redirect: {error}"[:200]) from error


def _bare(url: URL) -> URL:
    return (url if url.raw_user is None and url.raw_password is None else url.with_user(None)).with_fragment(None)
