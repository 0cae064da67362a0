"""What clients do to a server: each function does one thing, checks what comes back, and says in a word what it was.

An `AssertionError` or an unexpected exception is a finding; so is anything that takes too long.
"""

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp


@dataclass(frozen=True)
class Expected:
    """A request, and the one right answer to it."""

    prompt: str
    tokens: int
    text: str


@dataclass(frozen=True)
class Target:
    """The server, and what is known of it."""

    session: aiohttp.ClientSession
    address: str
    answers: Sequence[Expected]
    room: int
    """Sequences that it takes at once, the queue included."""
    max_body: int
    body_seconds: float

    def any(self, rng: random.Random) -> Expected:
        """A random request."""
        return rng.choice(self.answers)

    async def connect(self, narrow: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection; a narrow one holds a few thousand bytes on both sides, so that a slow reader is felt."""
        parts = urlsplit(self.address)
        made = socket.socket()
        made.setblocking(False)
        if narrow:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # the other side makes its buffer by that
        await asyncio.get_running_loop().sock_connect(made, (parts.hostname, parts.port))
        return await asyncio.open_connection(sock=made, limit=4096)


def asked(wanted: Expected, **more: Any) -> dict[str, Any]:
    """The body of a request to /v1/completions."""
    return {"prompt": wanted.prompt, "max_tokens": wanted.tokens, "temperature": 0, **more}


async def whole(target: Target, rng: random.Random) -> str:
    """A proper request."""
    wanted = target.any(rng)
    async with target.session.post("/v1/completions", json=asked(wanted)) as response:
        return await _check(response, lambda answer: answer["choices"][0]["text"], wanted.text)


async def megatron(target: Target, rng: random.Random) -> str:
    """A proper request to /api, two prompts at once."""
    first = target.any(rng)
    others = [one for one in target.answers if one.tokens == first.tokens]
    pair = [first, rng.choice(others)]
    body = {"prompts": [one.prompt for one in pair], "tokens_to_generate": first.tokens, "top_k": 1}
    async with target.session.put("/api", json=body) as response:
        return await _check(response, lambda answer: answer["text"], [one.prompt + one.text for one in pair])


async def stream(target: Target, rng: random.Random) -> str:
    """A proper request whose text comes in pieces."""
    wanted = target.any(rng)
    async with target.session.post("/v1/completions", json=asked(wanted, stream=True, logprobs=2)) as response:
        if response.status == 503:
            return _busy(response)
        assert response.status == 200, f"{response.status}: {await response.text()}"
        text = _joined(await response.text())
    assert text == wanted.text, f"{text!r} instead of {wanted.text!r}"
    return "right"


async def burst(target: Target, rng: random.Random) -> str:
    """More at once than there is room for: each is answered rightly or refused in time."""
    outcomes = await asyncio.gather(*(whole(target, rng) for _ in range(target.room + 8)))
    return "some refused" if "refused" in outcomes else "all right"


async def too_many(target: Target, rng: random.Random) -> str:
    """One request that can never fit."""
    wanted = target.any(rng)
    body = asked(wanted) | {"prompt": [wanted.prompt] * (target.room + 1), "max_tokens": 1}
    async with target.session.post("/v1/completions", json=body) as response:
        assert response.status in (400, 503), response.status
        return "refused"


async def drop(target: Target, rng: random.Random) -> str:
    """A connection that breaks off at some moment: in the body, before the answer, in the middle of a stream."""
    wanted = target.any(rng)
    raw = _request(json.dumps(asked(wanted, max_tokens=40, stream=rng.random() < 0.7)).encode())
    reader, writer = await target.connect()
    try:
        moment = rng.randrange(4)
        writer.write(raw[: rng.randrange(1, len(raw))] if moment == 0 else raw)
        await writer.drain()
        if moment == 2:
            await asyncio.sleep(rng.random() * 0.05)
        if moment == 3:
            await reader.read(rng.randrange(1, 2000))
        if rng.random() < 0.5:
            writer.transport.abort()
        return ("in the request", "at once", "a moment later", "in the answer")[moment]
    finally:
        writer.close()


async def slow_reader(target: Target, rng: random.Random) -> str:
    """A stream of up to 200 KB that is read a few bytes at a time."""
    wanted = target.any(rng)
    reader, writer = await target.connect(narrow=True)
    try:
        writer.write(_request(json.dumps(asked(wanted, stream=True, logprobs=100)).encode(), close=True))
        raw = b""
        while part := await reader.read(1024):
            raw += part
            await asyncio.sleep(0.01)
    finally:
        writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    if b" 503 " in head.split(b"\r\n")[0]:
        return "refused"
    assert b" 200 " in head.split(b"\r\n")[0], head
    text = _joined(_unchunked(body).decode())
    assert text == wanted.text, f"{text!r} instead of {wanted.text!r}"
    return "right"


async def stalled_reader(target: Target, rng: random.Random) -> str:
    """A stream that nobody reads, until the connection is dropped."""
    _, writer = await target.connect(narrow=True)
    try:
        wanted = asked(target.any(rng), stream=True, logprobs=100)
        writer.write(_request(json.dumps(wanted).encode()))
        await asyncio.sleep(rng.random() * 5)
        writer.transport.abort()
    finally:
        writer.close()
    return "dropped"


async def slow_writer(target: Target, rng: random.Random) -> str:
    """A body that stops half way: the server may not wait for ever."""
    raw = _request(json.dumps(asked(target.any(rng))).encode())
    reader, writer = await target.connect()
    try:
        writer.write(raw[:-5])
        async with asyncio.timeout(target.body_seconds + 20):
            head = await reader.readline()
    finally:
        writer.close()
    assert b" 408 " in head, head
    return "refused"


async def oversize(target: Target, rng: random.Random) -> str:
    """A body above the limit, with its length said before or not."""
    size = target.max_body + rng.choice((1, 1000, 1_000_000))

    async def pieces() -> Any:
        for _ in range(size // 1000 + 1):
            yield b"x" * 1000

    body: Any = pieces() if rng.random() < 0.5 else b"x" * size
    try:
        async with target.session.post("/v1/completions", data=body) as response:
            assert response.status == 413, response.status
            assert (await response.json())["error"]["message"]
            return "refused"
    except aiohttp.ClientError:  # closed while the rest was sent: refused as well, without a chance to read why
        return "cut off"


async def no_json(target: Target, rng: random.Random) -> str:
    """A body that is no JSON."""
    kind = rng.choice((b"", b"{", b'{"prompt": ', rng.randbytes(200), b'{"prompt": "\xff"}', b"[" * 20_000, b"null"))
    path = rng.choice(("/api", "/v1/completions"))
    return await _refused(target, path, kind)


async def wrong_field(target: Target, rng: random.Random) -> str:
    """JSON that is no request."""
    path, body = rng.choice(
        (
            ("/api", {}),
            ("/api", {"prompts": "text"}),
            ("/api", {"prompts": ["a"], "tokens_to_generate": True}),
            ("/api", {"prompts": ["a"], "tokens_to_generate": 10**9}),
            ("/api", {"prompts": ["a"], "temperature": 0}),
            ("/api", {"prompts": ["a"] * 129}),
            ("/v1/completions", {"prompt": 5}),
            ("/v1/completions", {"prompt": "a", "max_tokens": -1}),
            ("/v1/completions", {"prompt": "a", "temperature": "hot"}),
            ("/v1/completions", {"prompt": "a", "max_tokens": 10**12}),
            ("/v1/completions", {"prompt": [10**9]}),
            ("/v1/completions", {"prompt": "a", "unheard_of": 1}),
            ("/v1/completions", {"prompt": "a", "model": "another"}),
        )
    )
    return await _refused(target, path, json.dumps(body).encode())


Kind = Callable[[Target, random.Random], Awaitable[str]]
KINDS: dict[str, tuple[int, Kind]] = {  # how often, and what
    "whole": (20, whole),
    "megatron": (10, megatron),
    "stream": (20, stream),
    "burst": (2, burst),
    "too many": (2, too_many),
    "drop": (20, drop),
    "slow reader": (5, slow_reader),
    "stalled reader": (3, stalled_reader),
    "slow writer": (2, slow_writer),
    "oversize": (5, oversize),
    "no JSON": (8, no_json),
    "wrong field": (8, wrong_field),
}


async def _check(response: aiohttp.ClientResponse, take: Callable[[Any], Any], right: Any) -> str:
    if response.status == 503:
        return _busy(response)
    answer = await response.json()
    assert response.status == 200, f"{response.status}: {answer}"
    assert take(answer) == right, f"{take(answer)!r} instead of {right!r}"
    return "right"


def _busy(response: aiohttp.ClientResponse) -> str:
    assert response.headers.get("Retry-After"), "503 without Retry-After"
    return "refused"


async def _refused(target: Target, path: str, body: bytes) -> str:
    async with target.session.post(path, data=body, headers={"Content-Type": "application/json"}) as response:
        answer = await response.json()
    assert 400 <= response.status < 500, f"{path} {body[:80]!r} was answered {response.status}"
    message = answer["error"]["message"] if path == "/v1/completions" else answer["message"]
    assert message and isinstance(message, str), answer
    return "refused"


def _request(body: bytes, close: bool = False) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "Connection: close\r\n" if close else ""
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _joined(events: str) -> str:
    """The text of a stream, which must have come to its end."""
    data = [line.removeprefix("data: ") for line in events.split("\n") if line.startswith("data: ")]
    assert data and data[-1] == "[DONE]", f"the stream broke off after {data[-1:]}"
    return "".join(json.loads(one)["choices"][0]["text"] for one in data[:-1])


def _unchunked(body: bytes) -> bytes:
    result = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        result, body = result + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return result
