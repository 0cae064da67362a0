"""Fetching of one page: attempts, redirects, checks at each hop, a common deadline, and a reason if it fails."""

import asyncio
import contextlib
import datetime
import email.utils
import hashlib
import itertools
import logging
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
from aiohttp import http_exceptions
from yarl import URL

from gpt2train.errors import RunError, UserError
from tasks.download.host_scheduler import ROBOTS_BYTES, HostScheduler
from tasks.download.mime import UNKNOWN_TYPES, parse_content_type, sniff_html
from tasks.download.response_body import FetchRejectedError, read_body
from tasks.download.settings import DownloadSettings
from tasks.download.ssrf_guard import GuardedResolver, Lookup, NotPublicError, refuse, system_lookup, target_of

log = logging.getLogger("gpt2train")

T = TypeVar("T")

REDIRECTS = (301, 302, 303, 307, 308)
RETRYABLE_STATUS = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)  # the last five are Cloudflare's
ACCEPT = "text/html, application/xhtml+xml;q=0.9, */*;q=0.1"
LANGUAGES = re.compile(r"[A-Za-z0-9-]{1,40}(?:, ?[A-Za-z0-9-]{1,40}){0,9}")
MAX_URL = 8192  # characters of a redirect target; longer ones are crawler traps
MAX_RETRY_AFTER = 64  # characters; a date has 29


@dataclass
class Fetched:
    """Result of fetching one URL: its ledger row, and the page if it is kept.

    Attributes:
        url: URL as in the URL list.
        source: Name of the URL list.
        final_url: Last URL that was requested.
        reason: Code of the failure; empty if the page is kept.
        detail: Found and expected values.
        retryable: True if a later run may succeed.
        http_status: Status of the last response; None without a response.
        content_type: Media type of the last response, sniffed from the body if the server sent none.
        charset: Charset of the last response.
        content_language: Content-Language of the last response.
        ip: Address of the server.
        body: Decoded page; None if it is not kept.
        sha256: Hash of the body, hex.
        fetched_at: Time of the fetch, UTC, ISO 8601.
        elapsed_ms: Time of the requests, without waiting for the host's rate limit.
        attempts: Number of requests for the page, redirects not counted.
    """

    url: str
    source: str
    final_url: str = ""
    reason: str = ""
    detail: str = ""
    retryable: bool = False
    http_status: int | None = None
    content_type: str = ""
    charset: str | None = None
    content_language: str = ""
    ip: str = ""
    body: bytes | None = field(default=None, repr=False)
    sha256: str = ""
    fetched_at: str = ""
    elapsed_ms: int = 0
    attempts: int = 0

    def fail(self, reason: str, detail: str, retryable: bool = False) -> None:
        """Record the reason for dropping the page."""
        self.reason, self.detail, self.retryable = reason, detail, retryable
        self.body, self.sha256 = None, ""


class RetryableFetchError(FetchRejectedError):
    """A failure after which another attempt may succeed; `wait` is the server's Retry-After in seconds, if any."""

    def __init__(self, reason: str, detail: str, wait: float | None = None) -> None:
        super().__init__(reason, detail, retryable=True)
        self.wait = wait


class TimeBudget:
    """Time limit on the sum of several requests.

    Args:
        budget: Seconds.
        what: Name of the limited work, for the message.
    """

    def __init__(self, budget: float, what: str) -> None:
        self.budget, self.what = budget, what
        self.left = budget
        self.used = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Count the time inside the context.

        Raises:
            FetchRejectedError: `deadline`.
        """
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self.left):
                yield
        except TimeoutError as error:
            raise FetchRejectedError(
                "deadline", f"more than {self.budget:g} s for {self.what}", retryable=True
            ) from error
        finally:
            spent = time.monotonic() - begin
            self.used += spent
            self.left = max(0.0, self.left - spent)


class Response(aiohttp.ClientResponse):
    """A response that records the address of its server.

    The address must be read early: the connection of a short response is released before the caller sees the response.
    """

    peer = ""

    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        """Record the address, then read the head."""
        name = connection.transport.get_extra_info("peername") if connection.transport else None
        self.peer = str(name[0]) if name else ""
        return await super().start(connection)


class Fetcher:
    """Fetches pages within one event loop; use as `async with`, or close it."""

    def __init__(
        self, settings: DownloadSettings, connect_to: Mapping[str, str], lookup: Lookup = system_lookup
    ) -> None:
        self.settings = settings

        def shared_name(host: str) -> str:
            # A host with another target (of a test, of a mirror) is another host to other processes.
            return f"{host} at {target}" if (target := target_of(host, connect_to)) else host

        self.hosts = HostScheduler(settings, self._robots, shared_name)
        self._logged: set[str] = set()  # types of unexpected errors that were logged
        # use_dns_cache off: the guard caches the answers, and the connection must go to an address that it has checked.
        self._connector = aiohttp.TCPConnector(
            resolver=GuardedResolver(settings.allowed, connect_to, lookup),
            use_dns_cache=False,
            limit=0,
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # a proxy would make connections that the guard cannot check
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": settings.user_agent, "Accept": ACCEPT, "Accept-Encoding": "gzip, deflate"},
            response_class=Response,
        )

    async def __aenter__(self) -> "Fetcher":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop all connections."""
        await self._session.close()

    async def fetch(self, url: str, source: str) -> Fetched:
        """Fetch one page. Failures of the server are not raised: the result has their reason.

        Raises:
            RunError: This machine failed, not the server.
            UserError: This machine or its settings failed, not the server.
        """
        page = Fetched(url, source, final_url=url)
        requested: list[URL] = []
        budget = TimeBudget(self.settings.deadline, "the page")
        try:
            start = parse(url)

            async def attempt() -> None:
                page.attempts += 1
                await self._follow(start, page, budget, requested)

            await self._attempts(url, attempt)
            rejection = None
        except FetchRejectedError as rejected:
            page.fail(rejected.reason, rejected.detail, rejected.retryable)
            rejection = rejected
        except (RunError, UserError):
            raise
        except Exception as error:  # noqa: BLE001 - one page must not end a crawl, whatever its server sent
            self.fail_unexpected(page, error)
            rejection = FetchRejectedError(page.reason, page.detail)
        if requested:
            self.hosts.record_result(requested[-1], rejection)
        page.fetched_at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        page.elapsed_ms = round(budget.used * 1000)
        return page

    def fail_unexpected(self, page: Fetched, error: Exception) -> None:
        """Fail a page because of an unexpected error; the first error of each type is logged with its traceback."""
        kind = type(error).__name__
        page.fail("client_error", _brief(error))
        known = kind in self._logged
        self._logged.add(kind)
        log.log(
            logging.DEBUG if known else logging.WARNING,
            "dropped a page of %s (client_error): %s",
            host_of(page.final_url),
            _brief(error),
            exc_info=None if known else error,
        )

    async def _attempts(self, key: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry with exponential backoff until success, a permanent failure, or the last attempt."""
        jitter = random.Random(f"{self.settings.seed} {key}")  # seeded by the text, not by its hash
        for number in itertools.count(1):
            try:
                return await attempt()
            except RetryableFetchError as failure:
                wait = failure.wait
                if wait is None:
                    wait = self.settings.backoff * 2 ** (number - 1) * jitter.uniform(0.5, 1.5)
                if number == self.settings.attempts or wait > self.settings.max_wait:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("the count does not end")

    async def _follow(self, url: URL, page: Fetched, budget: TimeBudget, requested: list[URL]) -> None:
        """Request a URL and follow its redirects; check each hop like the first, and append the hops to `requested`."""
        visited = {url}
        while True:
            page.final_url, page.http_status = str(url), None
            self._check_url(url)
            delay = await self.hosts.check(url)
            requested.append(url)
            target = await self._request(url, page, budget, delay)
            if target is None:
                return
            if target in visited:
                raise FetchRejectedError("redirect_loop", f"after {len(visited)} redirects")
            if len(visited) > self.settings.max_redirects:
                raise FetchRejectedError("too_many_redirects", f"more than {self.settings.max_redirects}")
            visited.add(target)
            url = target

    async def _request(self, url: URL, page: Fetched, budget: TimeBudget, delay: float) -> URL | None:
        """Send one request; fill in the page, or return the target of a redirect."""
        async with self.hosts.slot(url, delay), budget.running(), self._get(url) as response:
            page.http_status, page.ip = response.status, response.peer if isinstance(response, Response) else ""
            if response.status in REDIRECTS and "Location" in response.headers:
                return join(url, response.headers["Location"])
            try:
                check_status(response)
            except RetryableFetchError as failure:
                if failure.wait is not None and failure.wait <= self.settings.max_wait:
                    self.hosts.delay_host(url, failure.wait)  # Retry-After applies to the host, not only to the page
                raise
            page.content_type, page.charset = parse_content_type(response.headers.get("Content-Type"))
            language = response.headers.get("Content-Language", "")
            page.content_language = language if LANGUAGES.fullmatch(language) else ""
            unknown = page.content_type in UNKNOWN_TYPES
            if not unknown and page.content_type not in self.settings.content_types:
                raise FetchRejectedError("content_type", page.content_type[:80])
            body = await self._body(response, self.settings.max_wire_bytes, self.settings.max_bytes)
            if unknown:
                page.content_type = sniff_html(body)
                if page.content_type not in self.settings.content_types:
                    raise FetchRejectedError("content_type", "none given, and the page does not begin as HTML does")
            page.body = body
            page.sha256 = hashlib.sha256(page.body).hexdigest()
            return None

    async def _robots(self, url: URL) -> tuple[int, str]:
        """Fetch a robots.txt through the same guard; its redirects are followed without checking further robots.txt."""
        budget = TimeBudget(self.settings.deadline, "robots.txt")
        return await self._attempts(str(url), lambda: self._robots_once(url, budget))

    async def _robots_once(self, url: URL, budget: TimeBudget) -> tuple[int, str]:
        for _ in range(self.settings.max_redirects + 1):
            self._check_url(url)
            async with self.hosts.slot(url), budget.running(), self._get(url) as response:
                if response.status in REDIRECTS and "Location" in response.headers:
                    url = join(url, response.headers["Location"])
                    continue
                if response.status != 200:
                    return response.status, ""
                try:
                    body = await self._body(response, ROBOTS_BYTES, ROBOTS_BYTES)
                except FetchRejectedError as rejected:
                    if rejected.reason not in ("too_large", "compression_ratio"):
                        raise
                    return 200, "User-agent: *\nDisallow: /"  # incomplete rules are not interpreted
                return 200, body.decode("utf-8-sig", errors="replace")
        return 404, ""  # RFC 9309: too many redirects count as no such file

    def _check_url(self, url: URL) -> None:
        verdict = refuse(url, self.settings.ports, self.settings.allowed)
        if verdict is not None:
            raise FetchRejectedError(*verdict)

    @contextlib.asynccontextmanager
    async def _get(self, url: URL) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a GET request; turn errors of the connection into `FetchRejectedError`."""
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                try:
                    yield response
                except (FetchRejectedError, asyncio.CancelledError):
                    response.close()  # drop the connection instead of draining the rest of the body
                    raise
        except aiohttp.ClientConnectorDNSError as error:
            if isinstance(error.os_error, NotPublicError):
                raise FetchRejectedError("not_public_address", str(error.os_error)) from error
            raise RetryableFetchError("dns_failed", str(error.os_error)) from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise FetchRejectedError("tls_failed", _brief(error)) from error
        except aiohttp.InvalidURL as error:
            raise FetchRejectedError("malformed", "refused by the HTTP client") from error
        except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
            if breaks_protocol(error):
                raise FetchRejectedError("protocol_error", _brief(error)) from error
            raise RetryableFetchError("connection_failed", _brief(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise  # handled by TimeBudget
            raise RetryableFetchError("connection_failed", _brief(error)) from error

    async def _body(self, response: aiohttp.ClientResponse, max_wire: int, max_bytes: int) -> bytes:
        length = response.content_length
        if length is not None and length > max_wire:
            raise FetchRejectedError("too_large", f"{length} bytes announced, at most {max_wire} allowed")
        async with TimeBudget(self.settings.body_deadline, "the body").running():
            return await read_body(
                response.content.iter_any(),
                response.headers.get("Content-Encoding", ""),
                max_wire=max_wire,
                max_bytes=max_bytes,
                max_ratio=self.settings.max_ratio,
            )


def check_status(response: aiohttp.ClientResponse) -> None:
    """Accept only status 200.

    Raises:
        FetchRejectedError: `not_found` or `http_error`; a `RetryableFetchError` for busy servers.
    """
    status = response.status
    if status == 200:
        return
    if status in RETRYABLE_STATUS:
        raise RetryableFetchError("http_error", f"status {status}", retry_after(response.headers.get("Retry-After")))
    raise FetchRejectedError("not_found" if status in (404, 410) else "http_error", f"status {status}")


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


def breaks_protocol(error: aiohttp.ClientError) -> bool:
    """Return True if the server's answer is not valid HTTP; False if the connection was interrupted."""
    if isinstance(error, aiohttp.ClientResponseError):
        return True  # raised only for the head of a response, since `raise_for_status` is not used
    cause = error.__cause__
    cut = isinstance(cause, http_exceptions.ContentLengthError | http_exceptions.TransferEncodingError)
    return isinstance(cause, http_exceptions.HttpProcessingError) and not (cut and "Not enough data" in str(cause))


def parse(url: str) -> URL:
    """Parse a URL into the form that is requested: encoded, without user name, password and fragment.

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


def host_of(url: str) -> str:
    """Return the host of any text that may be a URL; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _bare(url: URL) -> URL:
    """Remove user name, password and fragment."""
    return (url if url.raw_user is None and url.raw_password is None else url.with_user(None)).with_fragment(None)


def _brief(error: BaseException) -> str:
    """Format the type and the message of an error, at most 200 characters."""
    return f"{type(error).__name__}: {error}"[:200]
