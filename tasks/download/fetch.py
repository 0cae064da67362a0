"""One page: attempts, redirects, checks at each hop, a deadline over all of it, and one reason when it fails."""

import asyncio
import contextlib
import datetime
import email.utils
import hashlib
import itertools
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp
from yarl import URL

from tasks.download.body import Refused, read_body
from tasks.download.guard import GuardedResolver, Lookup, NotPublic, refuse, system_lookup, target_of
from tasks.download.hosts import ROBOTS_BYTES, Hosts
from tasks.download.settings import DownloadSettings
from tasks.download.warc import parse_content_type

T = TypeVar("T")

REDIRECTS = (301, 302, 303, 307, 308)
BUSY = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)  # the last five are Cloudflare's
ACCEPT = "text/html, application/xhtml+xml;q=0.9, */*;q=0.1"
LANGUAGES = re.compile(r"[A-Za-z0-9-]{1,40}(?:, ?[A-Za-z0-9-]{1,40}){0,9}")
MAX_URL = 8192  # longer redirect targets are traps


@dataclass
class Fetched:
    """What became of one URL; a row of the ledger, and the page when it was kept.

    Attributes:
        url, source: as in the URL list.
        final_url: the last URL asked.
        reason: empty when the page is kept, else a code.
        detail: what was found and what was expected.
        retryable: a later run may fare better.
        http_status: of the last response; None where there was none.
        content_type, charset, content_language: of the last response.
        ip: the address that gave it.
        body: the decoded page; None when it is not kept.
        sha256: of the body, hex.
        fetched_at: UTC, ISO 8601.
        elapsed_ms: time of the requests, without waiting for turns.
        attempts: requests for the page, redirects not counted.
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


class _Again(Refused):
    """A failure that another attempt may mend; `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, detail: str, wait: float | None = None) -> None:
        super().__init__(reason, detail, retryable=True)
        self.wait = wait


class Clock:
    """Adds up the time of requests, and ends them when a budget is used up."""

    def __init__(self, budget: float, what: str) -> None:
        self.budget, self.what = budget, what
        self.left = budget
        self.used = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Count the time inside.

        Raises:
            Refused: `deadline`.
        """
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self.left):
                yield
        except TimeoutError as error:
            raise Refused("deadline", f"more than {self.budget:g} s for {self.what}", retryable=True) from error
        finally:
            spent = time.monotonic() - begin
            self.used += spent
            self.left = max(0.0, self.left - spent)


class Response(aiohttp.ClientResponse):
    """A response that knows the address it comes from.

    A short one is over, and its connection given back, before whoever asked for it can look.
    """

    peer = ""

    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        """Note the address, then read the head."""
        name = connection.transport.get_extra_info("peername") if connection.transport else None
        self.peer = str(name[0]) if name else ""
        return await super().start(connection)


class Fetcher:
    """Fetches pages within one event loop; use as `async with`, or close it."""

    def __init__(
        self, settings: DownloadSettings, connect_to: Mapping[str, str], lookup: Lookup = system_lookup
    ) -> None:
        self.settings = settings

        def place_of(host: str) -> str:
            # What is asked elsewhere than its name says is another host: a test's, a mirror's.
            return f"{host} at {target}" if (target := target_of(host, connect_to)) else host

        self.hosts = Hosts(settings, self._robots, place_of)
        # use_dns_cache off: the guard keeps the answers, and what is connected to is what it judged, in the same call.
        self._connector = aiohttp.TCPConnector(
            resolver=GuardedResolver(settings.allowed, connect_to, lookup),
            use_dns_cache=False,
            limit=0,
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # a proxy would connect where the guard cannot see
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
        """Fetch one page. Never raises for what a server does: the reason stands in the result."""
        page = Fetched(url, source, final_url=url)
        asked: list[URL] = []
        clock = Clock(self.settings.deadline, "the page")
        try:
            start = parse(url)

            async def attempt() -> None:
                page.attempts += 1
                await self._follow(start, page, clock, asked)

            await self._attempts(url, attempt)
            ending = None
        except Refused as refused:
            page.reason, page.detail, page.retryable = refused.reason, refused.detail, refused.retryable
            ending = refused
        if asked:
            self.hosts.note(asked[-1], ending)
        page.fetched_at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        page.elapsed_ms = round(clock.used * 1000)
        return page

    async def _attempts(self, key: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, fails for good, or the attempts are used up; waits in between."""
        jitter = random.Random(f"{self.settings.seed} {key}")  # seeded by the text, not by its hash
        for number in itertools.count(1):
            try:
                return await attempt()
            except _Again as again:
                wait = again.wait
                if wait is None:
                    wait = self.settings.backoff * 2 ** (number - 1) * jitter.uniform(0.5, 1.5)
                if number == self.settings.attempts or wait > self.settings.max_wait:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("the count does not end")

    async def _follow(self, url: URL, page: Fetched, clock: Clock, asked: list[URL]) -> None:
        """Ask for a URL and follow its redirects by hand, each hop judged like the first; notes the hops in `asked`."""
        visited = {url}
        while True:
            page.final_url, page.http_status = str(url), None
            self._refuse(url)
            delay = await self.hosts.check(url)
            asked.append(url)
            target = await self._request(url, page, clock, delay)
            if target is None:
                return
            if target in visited:
                raise Refused("redirect_loop", f"after {len(visited)} redirects")
            if len(visited) > self.settings.max_redirects:
                raise Refused("too_many_redirects", f"more than {self.settings.max_redirects}")
            visited.add(target)
            url = target

    async def _request(self, url: URL, page: Fetched, clock: Clock, delay: float) -> URL | None:
        """One request: fills in the page, or returns where it redirects to."""
        async with self.hosts.turn(url, delay), clock.running(), self._asking(url) as response:
            page.http_status, page.ip = response.status, response.peer if isinstance(response, Response) else ""
            if response.status in REDIRECTS and "Location" in response.headers:
                return join(url, response.headers["Location"])
            try:
                check_status(response)
            except _Again as again:
                if again.wait is not None and again.wait <= self.settings.max_wait:
                    self.hosts.hold_off(url, again.wait)  # the host asked for it, not the page
                raise
            page.content_type, page.charset = parse_content_type(response.headers.get("Content-Type"))
            language = response.headers.get("Content-Language", "")
            page.content_language = language if LANGUAGES.fullmatch(language) else ""
            if page.content_type not in self.settings.content_types:
                raise Refused("content_type", page.content_type[:80] or "none given")
            page.body = await self._body(response, self.settings.max_wire_bytes, self.settings.max_bytes)
            page.sha256 = hashlib.sha256(page.body).hexdigest()
            return None

    async def _robots(self, url: URL) -> tuple[int, str]:
        """A robots.txt, through the same guard; redirects are followed, but no rules asked for."""
        clock = Clock(self.settings.deadline, "robots.txt")
        return await self._attempts(str(url), lambda: self._robots_once(url, clock))

    async def _robots_once(self, url: URL, clock: Clock) -> tuple[int, str]:
        for _ in range(self.settings.max_redirects + 1):
            self._refuse(url)
            async with self.hosts.turn(url), clock.running(), self._asking(url) as response:
                if response.status in REDIRECTS and "Location" in response.headers:
                    url = join(url, response.headers["Location"])
                    continue
                if response.status != 200:
                    return response.status, ""
                try:
                    body = await self._body(response, ROBOTS_BYTES, ROBOTS_BYTES)
                except Refused as refused:
                    if refused.reason not in ("too_large", "compression_ratio"):
                        raise
                    return 200, "User-agent: *\nDisallow: /"  # rules that cannot be read whole are not guessed
                return 200, body.decode("utf-8-sig", errors="replace")
        return 404, ""  # RFC 9309: too many redirects count as no such file

    def _refuse(self, url: URL) -> None:
        verdict = refuse(url, self.settings.ports, self.settings.allowed)
        if verdict is not None:
            raise Refused(*verdict)

    @contextlib.asynccontextmanager
    async def _asking(self, url: URL) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response; what can go wrong with the connection becomes a reason."""
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                try:
                    yield response
                except (Refused, asyncio.CancelledError):
                    response.close()  # the rest of the body is not wanted: drop the connection, do not drain it
                    raise
        except aiohttp.ClientConnectorDNSError as error:
            if isinstance(error.os_error, NotPublic):
                raise Refused("not_public_address", str(error.os_error)) from error
            raise _Again("dns_failed", str(error.os_error)) from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise Refused("tls_failed", _brief(error)) from error
        except aiohttp.InvalidURL as error:
            raise Refused("malformed", "refused by the HTTP client") from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise  # the deadline
            raise _Again("connection_failed", _brief(error)) from error

    async def _body(self, response: aiohttp.ClientResponse, max_wire: int, max_bytes: int) -> bytes:
        length = response.content_length
        if length is not None and length > max_wire:
            raise Refused("too_large", f"{length} bytes announced, at most {max_wire} allowed")
        async with Clock(self.settings.body_deadline, "the body").running():
            return await read_body(
                response.content.iter_any(),
                response.headers.get("Content-Encoding", ""),
                max_wire=max_wire,
                max_bytes=max_bytes,
                max_ratio=self.settings.max_ratio,
            )


def check_status(response: aiohttp.ClientResponse) -> None:
    """Let 200 pass.

    Raises:
        Refused: `not_found` or `http_error`; one that another attempt may mend for busy servers.
    """
    status = response.status
    if status == 200:
        return
    if status in BUSY:
        raise _Again("http_error", f"status {status}", retry_after(response.headers.get("Retry-After")))
    raise Refused("not_found" if status in (404, 410) else "http_error", f"status {status}")


def retry_after(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, given as a number or a date; None where it says nothing."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    return max(0.0, (date - datetime.datetime.now(datetime.UTC)).total_seconds())


def parse(url: str) -> URL:
    """A URL as it is asked for: encoded, without user name, password and fragment.

    Raises:
        Refused: `malformed`.
    """
    try:
        return _bare(URL(url))
    except ValueError as error:
        raise Refused("malformed", str(error)[:200]) from error


def join(base: URL, location: str) -> URL:
    """Where a redirect leads.

    Raises:
        Refused: `malformed`.
    """
    if len(location) > MAX_URL:
        raise Refused("malformed", f"a redirect of {len(location)} characters")
    try:
        return _bare(base.join(URL(location)))
    except ValueError as error:
        raise Refused("malformed", f"redirect: {error}"[:200]) from error


def _bare(url: URL) -> URL:
    """Without user name, password and fragment."""
    return (url if url.raw_user is None and url.raw_password is None else url.with_user(None)).with_fragment(None)


def _brief(error: BaseException) -> str:
    """The kind of an error and its text, without addresses of objects or machines of others."""
    return f"{type(error).__name__}: {error}"[:200]
