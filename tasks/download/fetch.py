"""Fetching of one page: attempts, redirects, checks at each hop, a common deadline, and a reason if it fails."""

import asyncio
import datetime
import hashlib
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import aiohttp
from yarl import URL

from gpt2train.errors import RunError, UserError
from gpt2train.store.retry_after import retry_after
from tasks.core.forgotten import REASON, Forgotten
from tasks.core.url_lists import host_of
from tasks.download.consent.page_tags import PageTags, page_tags
from tasks.download.consent.signals import Headers, SiteSignals, consent
from tasks.download.freshness import fresh_until, is_fresh
from tasks.download.host_scheduler import ROBOTS_BYTES, HostScheduler
from tasks.download.http_client import (
    RETRYABLE_STATUS,
    HttpClient,
    Response,
    RetryableFetchError,
    TimeBudget,
    brief,
    check_status,
)
from tasks.download.ledger import Fetched, Row
from tasks.download.mime import UNKNOWN_TYPES, checked_language, parse_content_type, type_of, wrong_type
from tasks.download.response_body import FetchRejectedError
from tasks.download.revisit import VALIDATORS, checked_validator, conditions_of
from tasks.download.settings import DownloadSettings
from tasks.download.ssrf_guard import Lookup, refuse, system_lookup, target_of
from tasks.download.urls import join, parse, refresh_target

log = logging.getLogger("gpt2train")

T = TypeVar("T")

MAX_INLINE_TAGS = 2**16  # bytes of a page whose tags are read in the event loop
NONE_FORGOTTEN = Forgotten()
REDIRECTS = (301, 302, 303, 307, 308)


class Fetcher:
    """Fetches pages within one event loop; use as `async with`, or close it.

    Pages that are `forgotten` are not requested, nor are files of their hosts for them.
    """

    def __init__(
        self,
        settings: DownloadSettings,
        connect_to: Mapping[str, str],
        lookup: Lookup = system_lookup,
        forgotten: Forgotten = NONE_FORGOTTEN,
    ) -> None:
        self.settings, self._forgotten = settings, forgotten

        def shared_name(host: str) -> str:
            # A host with another target (of a test, of a mirror) is another host to other processes.
            return f"{host} at {target}" if (target := target_of(host, connect_to)) else host

        self.hosts = HostScheduler(settings, self._file, shared_name)
        self._logged: set[str] = set()  # types of unexpected errors that were logged
        self._client = HttpClient(settings, connect_to, lookup)

    async def __aenter__(self) -> "Fetcher":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop all connections."""
        await self._client.close()

    async def fetch(
        self, url: str, source: str, headers: Mapping[str, str] | None = None, earlier: Row | None = None
    ) -> Fetched:
        """Fetch one page. Failures of the server are not raised: the result has their reason.

        `headers` are further fields of the request. With `Range`, the answer must be that range (status 206). With the
        ledger row of an `earlier` page, the request is conditional; the result is `not_modified` if that page stands.

        Raises:
            RunError: This machine failed, not the server.
            UserError: This machine or its settings failed, not the server.
        """
        page = Fetched(url, source, final_url=url, request_headers=headers or {})
        if earlier is not None:
            page.conditions, page.conditions_url = conditions_of(earlier), earlier["final_url"] or ""
            page.fresh_until = earlier.get("fresh_until") or ""
            if self.settings.skip_fresh and is_fresh(page.fresh_until, datetime.datetime.now(datetime.UTC)):
                page.fresh_url = page.conditions_url
        if self.settings.consent.enabled:
            page.signals, page.licenses = (), ()
        requested: list[URL] = []
        budget = TimeBudget(self.settings.deadline, "the page")
        rejection: FetchRejectedError | None = None
        try:
            start = parse(url)

            async def attempt() -> None:
                page.attempts += 1
                await self._follow(start, page, budget, requested)

            await self._attempts(url, attempt)
        except FetchRejectedError as rejected:
            rejection = rejected
            page.fail(rejected.reason, rejected.detail, rejected.retryable)
        except (RunError, UserError):
            raise
        except Exception as error:  # noqa: BLE001 - one page must not end a crawl, whatever its server sent
            self.fail_unexpected(page, error)
        if requested:
            self.hosts.record_result(requested[-1], rejection)
        page.fetched_at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        page.elapsed_ms = round(budget.used * 1000)
        return page

    def fail_unexpected(self, page: Fetched, error: Exception) -> None:
        """Fail a page because of an unexpected error; the first error of each type is logged with its traceback."""
        page.fail("client_error", brief(error))
        known = type(error).__name__ in self._logged
        self._logged.add(type(error).__name__)
        log.log(
            logging.DEBUG if known else logging.WARNING,
            "dropped a page of %s (client_error): %s",
            host_of(page.final_url),
            brief(error),
            exc_info=None if known else error,
        )

    async def _attempts(self, key: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry with exponential backoff until success, a permanent failure, or the last attempt."""
        jitter: random.Random | None = None
        for number in itertools.count(1):
            try:
                return await attempt()
            except RetryableFetchError as failure:
                wait = failure.wait
                if wait is None:
                    jitter = jitter or random.Random(f"{self.settings.seed} {key}")  # by the text, not by its hash
                    wait = self.settings.backoff * 2 ** (number - 1) * jitter.uniform(0.5, 1.5)
                if number == self.settings.attempts or wait > self.settings.max_wait:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("the count does not end")

    async def _follow(self, url: URL, page: Fetched, budget: TimeBudget, requested: list[URL]) -> None:
        """Request a URL and follow its redirects; check each hop like the first, and append the hops to `requested`."""
        visited = {(url, "")}
        page.cookies, page.refreshed = None, False
        while True:
            page.final_url, page.http_status = str(url), None
            self._check_url(url)
            if self._forgotten.matches(str(url)):
                raise FetchRejectedError(REASON, "")
            delay = await self.hosts.check(url)
            site = None
            if self.settings.consent.enabled:
                site = await self.hosts.site_signals(url, delay)
                if refusal := self._refusal(url, page, site):
                    raise refusal
            reserved = site is not None and site.reserved  # unless the answer lifts it
            if not requested and str(url) == page.fresh_url and not reserved:
                page.is_fresh = True
                return
            requested.append(url)
            target = await self._request(url, page, budget, delay, site)
            if target is None:
                if not (page.not_modified and site and self._refusal(url, page, site, page.headers)):
                    return
                # Its tags are not known, and may lift what the site reserves: the whole answer decides.
                page.not_modified, page.conditions = False, {}
                continue
            hop = target, _cookies(page, target)  # a server may send the same address to one who has its cookie
            if hop in visited:
                raise FetchRejectedError("redirect_loop", f"after {len(visited)} redirects")
            if len(visited) > self.settings.max_redirects:
                raise FetchRejectedError("too_many_redirects", f"more than {self.settings.max_redirects}")
            visited.add(hop)
            url = target

    def _refusal(
        self, url: URL, page: Fetched, site: SiteSignals, headers: Headers | None = None, tags: PageTags | None = None
    ) -> FetchRejectedError | None:
        """Take down the signals of a page, as far as they are known; return the rejection if one is honoured."""
        found = consent(self.settings.consent, self.settings.agent, str(url), site, headers, tags)
        page.signals = tuple(dict.fromkeys(signal.name for signal in found.signals))
        page.licenses = found.licenses
        return FetchRejectedError(found.refusal.name, found.refusal.detail) if found.refusal else None

    async def _request(
        self, url: URL, page: Fetched, budget: TimeBudget, delay: float, site: SiteSignals | None
    ) -> URL | None:
        """Send one request; fill in the page, or return the target of a redirect."""
        conditions = page.conditions if str(url) == page.conditions_url else {}
        cookies = {"Cookie": cookies} if (cookies := _cookies(page, url)) else {}
        get = self._client.get(url, {**page.request_headers, **conditions, **cookies})
        async with self.hosts.slot(url, delay), budget.running(), get as response:
            page.http_status, page.ip = response.status, response.peer
            if (target := _redirect(url, response)) is not None:
                _keep_cookies(page, url, response)
                return target
            if response.status == 304 and conditions:
                page.headers, page.not_modified = response.headers, True
                if self.settings.skip_fresh:  # otherwise a shard without changes keeps its files
                    page.fresh_until = fresh_until(response.headers, datetime.datetime.now(datetime.UTC))
                return None
            try:
                check_status(response, 206 if "Range" in page.request_headers else 200)
            except RetryableFetchError as failure:
                if failure.wait is not None and failure.wait <= self.settings.max_wait:
                    self.hosts.delay_host(url, failure.wait)  # Retry-After applies to the host, not only to the page
                raise
            page.content_type, page.charset = parse_content_type(*response.headers.getall("Content-Type", ()))
            page.content_language = checked_language(response.headers.get("Content-Language"))
            page.headers = response.headers
            page.etag, page.last_modified = (checked_validator(response.headers.get(name)) for name in VALIDATORS)
            page.fresh_until = fresh_until(response.headers, datetime.datetime.now(datetime.UTC))
            declared = page.content_type
            if declared not in UNKNOWN_TYPES and not self.settings.accepts(declared):
                raise FetchRejectedError("content_type", declared[:80])
            body = await self._client.read(response, self.settings.max_wire_bytes, self.settings.max_bytes)
            page.content_type = type_of(declared, body)
            if not self.settings.accepts(page.content_type):
                raise FetchRejectedError("content_type", wrong_type(declared, page.content_type))
            if site is not None:
                args = (body, page.charset)
                tags = page_tags(*args) if len(body) < MAX_INLINE_TAGS else await asyncio.to_thread(page_tags, *args)
                if refusal := self._refusal(url, page, site, response.headers, tags):
                    raise refusal
            if not (page.refreshed or page.request_headers):
                target = refresh_target(url, response.headers.get("Refresh"), body)
            if target not in (None, url):
                _keep_cookies(page, url, response)
                page.content_type, page.charset, page.refreshed = "", None, True
                return target
            page.body, page.sha256 = body, hashlib.sha256(body).hexdigest()
            return None

    async def _file(self, url: URL, delay: float = 0.0) -> tuple[int, str]:
        """Fetch a file of a site through the same guard; its redirects are followed without checking robots.txt."""
        budget, status = TimeBudget(self.settings.deadline, url.name), 0

        async def attempt() -> tuple[int, str]:
            nonlocal status
            status, text, wait = await self._file_once(url, budget, delay)
            if status in RETRYABLE_STATUS:
                raise RetryableFetchError("http_error", f"status {status}", wait)
            return status, text

        try:
            return await self._attempts(str(url), attempt)
        except RetryableFetchError as failure:
            if failure.reason != "http_error":
                raise
            return status, ""

    async def _file_once(self, url: URL, budget: TimeBudget, delay: float) -> tuple[int, str, float | None]:
        """Status, text, and the server's Retry-After in seconds, if any."""
        for _ in range(self.settings.max_redirects + 1):
            self._check_url(url)
            async with self.hosts.slot(url, delay), budget.running(), self._client.get(url) as response:
                if (target := _redirect(url, response)) is not None:
                    url = target
                    continue
                if response.status != 200:
                    return response.status, "", retry_after(response.headers.get("Retry-After"))
                try:
                    body = await self._client.read(response, ROBOTS_BYTES, ROBOTS_BYTES)
                except FetchRejectedError as rejected:
                    if rejected.reason not in ("too_large", "compression_ratio"):
                        raise
                    return 200, "User-agent: *\nDisallow: /", None  # incomplete rules are not interpreted
                return 200, body.decode("utf-8-sig", errors="replace"), None
        return 404, "", None  # RFC 9309: too many redirects count as no such file

    def _check_url(self, url: URL) -> None:
        if (verdict := refuse(url, self.settings.ports, self.settings.allowed)) is not None:
            raise FetchRejectedError(*verdict)


def _keep_cookies(page: Fetched, url: URL, response: Response) -> None:
    """Keep the cookies of a hop for the next ones of the same page, as far as their domains allow."""
    if response.cookies:
        page.cookies = page.cookies or aiohttp.CookieJar(unsafe=True)  # unsafe: hosts may be IP addresses
        page.cookies.update_cookies(response.cookies, url)


def _cookies(page: Fetched, url: URL) -> str:
    """Return the cookies of a page for a request, as the header field."""
    kept = page.cookies.filter_cookies(url) if page.cookies is not None else {}
    return "; ".join(f"{morsel.key}={morsel.coded_value}" for morsel in kept.values())


def _redirect(url: URL, response: Response) -> URL | None:
    """Return the target of a redirect; None for any other response."""
    if response.status not in REDIRECTS or "Location" not in response.headers:
        return None
    return join(url, response.headers["Location"])
