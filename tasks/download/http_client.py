"""HTTP client of the crawler: guarded connections, a common time limit, and a reason code for every failure."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Mapping

import aiohttp
from aiohttp.http_exceptions import ContentLengthError, HttpProcessingError, TransferEncodingError
from yarl import URL

from gpt2train.store.retry_after import retry_after
from tasks.download.response_body import FetchRejectedError, read_body
from tasks.download.settings import DownloadSettings
from tasks.download.ssrf_guard import GuardedResolver, Lookup, NotPublicError

RETRYABLE_STATUS = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)  # the last five are Cloudflare's
ACCEPT = "text/html, application/xhtml+xml;q=0.9, */*;q=0.1"


class RetryableFetchError(FetchRejectedError):
    """A failure after which another attempt may succeed; `wait` is the server's Retry-After in seconds, if any."""

    def __init__(self, reason: str, detail: str, wait: float | None = None) -> None:
        super().__init__(reason, detail, retryable=True)
        self.wait = wait


class TimeBudget:
    """Time limit in seconds on the sum of several requests; `what` names the limited work in the message."""

    def __init__(self, budget: float, what: str) -> None:
        self.budget, self.what = budget, what
        self.used = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Count the time inside the context.

        Raises:
            FetchRejectedError: `deadline`.
        """
        begin = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self.budget - self.used)):
                yield
        except TimeoutError as error:
            detail = f"more than {self.budget:g} s for {self.what}"
            raise FetchRejectedError("deadline", detail, retryable=True) from error
        finally:
            self.used += time.monotonic() - begin


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


class HttpClient:
    """HTTP client that connects to public addresses only; for one event loop."""

    def __init__(self, settings: DownloadSettings, connect_to: Mapping[str, str], lookup: Lookup) -> None:
        self._settings = settings
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=GuardedResolver(settings.allowed, connect_to, lookup),
                use_dns_cache=False,  # the guard caches the answers; connections must go to addresses that it checked
                limit=0,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # a proxy would make connections that the guard cannot check
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": settings.user_agent, "Accept": ACCEPT, "Accept-Encoding": "gzip, deflate"},
            response_class=Response,
        )

    async def close(self) -> None:
        """Drop all connections."""
        await self._session.close()

    @contextlib.asynccontextmanager
    async def get(self, url: URL, headers: Mapping[str, str] | None = None) -> AsyncIterator[Response]:
        """Send a GET request with further header fields, without following redirects.

        Raises:
            FetchRejectedError: Inside the context too, for every error of the connection but a `TimeoutError`.
        """
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                assert isinstance(response, Response)
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
            raise FetchRejectedError("tls_failed", brief(error)) from error
        except aiohttp.InvalidURL as error:
            raise FetchRejectedError("malformed", "refused by the HTTP client") from error
        except TimeoutError:
            raise  # handled by TimeBudget
        except (aiohttp.ClientError, OSError) as error:
            cause, reason = error.__cause__, brief(error)
            cut = isinstance(cause, ContentLengthError | TransferEncodingError) and "Not enough data" in str(cause)
            # The first is raised for the head of a response alone, since `raise_for_status` is not used.
            if isinstance(error, aiohttp.ClientResponseError) or (isinstance(cause, HttpProcessingError) and not cut):
                raise FetchRejectedError("protocol_error", reason) from error
            raise RetryableFetchError("connection_failed", reason) from error

    async def read(self, response: Response, max_wire: int, max_bytes: int) -> bytes:
        """Read and decode the body of a response, with limits on its bytes as sent and when decoded.

        Raises:
            FetchRejectedError: `deadline`, `too_large`, `compression_ratio` or `content_encoding`.
        """
        length = response.content_length
        if length is not None and length > max_wire:
            raise FetchRejectedError("too_large", f"{length} bytes announced, at most {max_wire} allowed")
        async with TimeBudget(self._settings.body_deadline, "the body").running():
            return await read_body(
                response.content.iter_any(),
                response.headers.get("Content-Encoding", ""),
                max_wire=max_wire,
                max_bytes=max_bytes,
                max_ratio=self._settings.max_ratio,
            )


def check_status(response: Response, expected: int = 200) -> None:
    """Accept only the expected status.

    Raises:
        FetchRejectedError: `not_found` or `http_error`; a `RetryableFetchError` for busy servers.
    """
    status = response.status
    if status in RETRYABLE_STATUS:
        raise RetryableFetchError("http_error", f"status {status}", retry_after(response.headers.get("Retry-After")))
    if status != expected:
        raise FetchRejectedError("not_found" if status in (404, 410) else "http_error", f"status {status}")


def brief(error: BaseException) -> str:
    """Format the type and the message of an error, at most 200 characters."""
    return f"{type(error).__name__}: {error}"[:200]
