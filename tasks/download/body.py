"""Bodies within bounds: bytes on the wire, bytes decoded, and their ratio are capped while they arrive."""

import zlib
from collections.abc import AsyncIterable

RATIO_FLOOR = 2**20  # a small page of spaces compresses 1,000-fold and harms nobody


class Refused(Exception):
    """A response that is not to be kept.

    Attributes:
        reason: its code in the ledger.
        detail: what was found and what was expected.
        retryable: whether a later run may fare better.
    """

    def __init__(self, reason: str, detail: str = "", retryable: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.retryable = reason, detail, retryable


class Decoder:
    """Undo a Content-Encoding piece by piece, never making more than is asked for.

    Args:
        encoding: the header's value; identity, gzip and deflate are known.

    Raises:
        Refused: `content_encoding`, for any other.
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding.strip().lower() or "identity"
        if self.encoding not in ("identity", "gzip", "x-gzip", "deflate"):
            raise Refused("content_encoding", f"{encoding[:40]!r}, gzip, deflate or none expected")
        self._inflate = None if self.encoding == "identity" else zlib.decompressobj(self._bits(b"\x78"))
        self._begun = False

    def feed(self, data: bytes, limit: int) -> bytes:
        """Decode a piece to at most `limit` + 1 bytes: one more than the limit says that it is passed.

        Raises:
            Refused: `content_encoding`, the data are not what the header says.
        """
        if self._inflate is None:
            return data[: limit + 1]
        if not self._begun and data:
            self._inflate, self._begun = zlib.decompressobj(self._bits(data)), True
        out = bytearray()
        try:
            while data and len(out) <= limit:
                out += self._inflate.decompress(data, limit + 1 - len(out))
                if not self._inflate.eof:
                    break
                data = self._inflate.unused_data.lstrip(b"\0")  # gzip members may follow one another, with padding
                if data:
                    self._inflate = zlib.decompressobj(self._bits(data))
        except zlib.error as error:
            raise Refused("content_encoding", f"not the {self.encoding} it is said to be: {error}") from error
        return bytes(out)

    @property
    def whole(self) -> bool:
        """Whether the compressed data came to their end."""
        return self._inflate is None or not self._begun or self._inflate.eof

    def _bits(self, head: bytes) -> int:
        """zlib's window argument: gzip; or deflate, which half of the servers send without its zlib wrapper."""
        if self.encoding != "deflate":
            return 16 + zlib.MAX_WBITS
        wrapped = head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0
        return zlib.MAX_WBITS if wrapped or len(head) < 2 else -zlib.MAX_WBITS


async def read_body(
    chunks: AsyncIterable[bytes], encoding: str, *, max_wire: int, max_bytes: int, max_ratio: float
) -> bytes:
    """Read and decode a body.

    Raises:
        Refused: `too_large`, `compression_ratio` or `content_encoding`.
    """
    decoder = Decoder(encoding)
    body = bytearray()
    wire = 0
    async for chunk in chunks:
        wire += len(chunk)
        if wire > max_wire:
            raise Refused("too_large", f"more than {max_wire} bytes sent")
        body += decoder.feed(chunk, max_bytes - len(body))
        if len(body) > RATIO_FLOOR and len(body) > max_ratio * wire:
            raise Refused("compression_ratio", f"more than {max_ratio:g} times the bytes sent")
        if len(body) > max_bytes:
            raise Refused("too_large", f"more than {max_bytes} bytes when decoded")
    if not decoder.whole:
        raise Refused("content_encoding", f"the {decoder.encoding} data end too soon", retryable=True)
    return bytes(body)
