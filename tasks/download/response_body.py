"""Bounded reading of response bodies: limits on bytes sent, bytes decoded, and their ratio, checked as data arrive."""

import zlib
from collections.abc import AsyncIterable

# Registered content codings. Servers send other words too (`none`, `UTF-8`), which browsers ignore.
CODINGS = {"gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress", "dcb", "dcz", "exi", "aes128gcm"}
MAX_CODINGS = 3  # of one body; two happen behind a proxy that compresses again
MEMBER = b"\x1f\x8b"  # first bytes of a gzip member
CHUNK = 4096  # bytes decompressed at a time: zlib copies the rest of its input at the end of each gzip member
MAX_MEMBERS = 4096  # gzip members of one body; servers that flush often send some dozens
RATIO_FLOOR = 2**20  # bytes below which the ratio is not checked: a small page of spaces compresses 1,000-fold


class FetchRejectedError(Exception):
    """A page that must not be fetched or kept: reason code and detail; `retryable` if a later run may succeed."""

    def __init__(self, reason: str, detail: str = "", retryable: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.retryable = reason, detail, retryable


class Decoder:
    """Incremental decoder of a Content-Encoding (gzip, deflate, or several of them) with bounded output.

    Raises:
        FetchRejectedError: `content_encoding`, for any other coding that is registered.
    """

    def __init__(self, encoding: str) -> None:
        names = codings_of(encoding)
        if not {"gzip", "x-gzip", "deflate"}.issuperset(names):
            raise FetchRejectedError("content_encoding", f"{encoding[:40]!r}, gzip, deflate or none expected")
        self._layers = [_Layer(name, is_outer=not index) for index, name in enumerate(names)]

    def feed(self, data: bytes, limit: int) -> bytes:
        """Decode a chunk to at most `limit` + 1 bytes; the extra byte shows that the limit is exceeded.

        Raises:
            FetchRejectedError: `content_encoding`, the data do not match the header.
        """
        for layer in self._layers:  # what one passes to the next is bounded by itself
            data = layer.feed(data, limit if layer is self._layers[-1] else max(limit, RATIO_FLOOR))
        return data[: limit + 1]

    @property
    def unfinished(self) -> str:
        """Coding whose compressed data have not come to their end; empty if all have."""
        return next((layer.coding for layer in self._layers if not layer.whole), "")


class _Layer:
    """Decoder of one coding. A proxy may name it once too often: what is no gzip inside another is passed on."""

    def __init__(self, coding: str, *, is_outer: bool) -> None:
        self.coding, self._is_outer = coding, is_outer
        self._inflate = zlib.decompressobj()  # of the kind that the first bytes show
        self._started = self._ended = self._passed_on = False
        self._members = 1
        self._held = b""

    def feed(self, data: bytes, limit: int) -> bytes:
        """Decode a chunk to at most `limit` + 1 bytes."""
        if self._ended:
            return b""
        data, self._held = self._held + data, b""
        if not self._started:
            if len(data) < len(MEMBER):  # the first two bytes say what they are the beginning of
                self._held = data
                return b""
            self._inflate, self._started = zlib.decompressobj(self._bits(data)), True
            self._passed_on = not self._is_outer and self.coding != "deflate" and not data.startswith(MEMBER)
        if self._passed_on:
            return data
        out = bytearray()
        view, at = memoryview(data), 0
        try:
            while at < len(view) and len(out) <= limit:
                chunk = bytes(view[at : at + CHUNK])
                at += len(chunk)
                if self._inflate.eof:  # gzip members may follow one another, with padding
                    chunk = chunk.lstrip(b"\0")
                    if not chunk:
                        continue
                    if chunk == MEMBER[:1] and at == len(view):
                        self._held = chunk  # the next byte shows if a member follows
                        break
                    if chunk == MEMBER[:1]:
                        at -= 1
                        continue
                    if self.coding == "deflate" or not chunk.startswith(MEMBER):
                        self._ended = True  # what plug-ins append to finished data is ignored, as browsers do
                        break
                    self._next_member()
                out += self._inflate.decompress(chunk, limit + 1 - len(out))
                at -= len(self._inflate.unused_data)
        except zlib.error as error:
            raise FetchRejectedError("content_encoding", f"not the {self.coding} it is said to be: {error}") from error
        return bytes(out)

    @property
    def whole(self) -> bool:
        """True if the end of the compressed data was reached."""
        return self._passed_on or self._inflate.eof or not (self._started or self._held)

    def _next_member(self) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise FetchRejectedError("content_encoding", f"more than {MAX_MEMBERS:,} gzip members in one body")
        self._inflate = zlib.decompressobj(self._bits(MEMBER))

    def _bits(self, head: bytes) -> int:
        """Return `wbits` for zlib; half of the servers send deflate without its zlib wrapper."""
        if self.coding != "deflate":
            return 16 + zlib.MAX_WBITS
        wrapped = head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0
        return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS


def codings_of(header: str) -> list[str]:
    """Content codings that a Content-Encoding names, the one that was applied last first (RFC 9110, 8.4).

    Raises:
        FetchRejectedError: `content_encoding`, they are more than `MAX_CODINGS`.
    """
    names = [name for part in reversed(header.split(",")) if (name := part.strip().lower()) in CODINGS]
    if len(names) > MAX_CODINGS:
        raise FetchRejectedError("content_encoding", f"{len(names)} codings, at most {MAX_CODINGS} are undone")
    return names


async def read_body(
    chunks: AsyncIterable[bytes], encoding: str, *, max_wire: int, max_bytes: int, max_ratio: float
) -> bytes:
    """Read and decode a body with limits in bytes; `max_ratio` of decoded to sent applies above `RATIO_FLOOR`.

    Raises:
        FetchRejectedError: `too_large`, `compression_ratio` or `content_encoding`.
    """
    decoder = Decoder(encoding)
    body = bytearray()
    wire = 0
    async for chunk in chunks:
        wire += len(chunk)
        if wire > max_wire:
            raise FetchRejectedError("too_large", f"more than {max_wire} bytes sent")
        body += decoder.feed(chunk, max_bytes - len(body))
        if len(body) > RATIO_FLOOR and len(body) > max_ratio * wire:
            raise FetchRejectedError("compression_ratio", f"more than {max_ratio:g} times the bytes sent")
        if len(body) > max_bytes:
            raise FetchRejectedError("too_large", f"more than {max_bytes} bytes when decoded")
    if decoder.unfinished:
        raise FetchRejectedError("content_encoding", f"the {decoder.unfinished} data end too soon", retryable=True)
    return bytes(body)
