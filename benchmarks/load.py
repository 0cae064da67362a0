"""Many clients at once, from a process of their own: each sends its next request when it has its answer.

    python -m benchmarks.load ADDRESS CLIENTS REQUESTS TOKENS

Prints one JSON object: `seconds` (of all), `latencies` (seconds, of each request), `digest` (of the texts by request),
`characters`. A refusal ends it.
"""

import asyncio
import hashlib
import json
import random
import sys
import time

import aiohttp


def prompt(number: int) -> str:
    """Between 1 and 12 words of random letters: the same for a number on every machine."""
    rng = random.Random(number)
    words = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(rng.randint(1, 12)))
    return " ".join(words)


async def load(address: str, clients: int, requests: int, tokens: int) -> dict[str, object]:
    """Send requests 0 … n - 1, as many at a time as there are clients."""
    texts: dict[int, str] = {}
    latencies: list[float] = []
    left = iter(range(requests))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, connector=connector, timeout=aiohttp.ClientTimeout(3600)) as session:

        async def client() -> None:
            for number in left:
                started = time.perf_counter()
                asked = {"prompt": prompt(number), "max_tokens": tokens, "temperature": 0}
                async with session.post("/v1/completions", json=asked) as response:
                    answer = await response.json()
                    if response.status != 200:
                        raise SystemExit(f"{address} answered {response.status}: {answer}")
                latencies.append(time.perf_counter() - started)
                texts[number] = answer["choices"][0]["text"]

        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        seconds = time.perf_counter() - started
    ordered = [texts[number] for number in range(requests)]
    digest = hashlib.sha256(json.dumps(ordered).encode()).hexdigest()
    return {"seconds": seconds, "latencies": latencies, "digest": digest, "characters": sum(map(len, ordered))}


if __name__ == "__main__":
    target, *numbers = sys.argv[1:]
    print(json.dumps(asyncio.run(load(target, *map(int, numbers)))))
