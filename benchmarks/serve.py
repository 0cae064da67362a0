"""Requests a second and latencies of the server at 1, 8, 32 and 128 clients, beside plain servers of the same model.

    python -m benchmarks.serve [--shape tiny] [--clients 1 8 32 128] [--rounds 3]

The plain servers (`benchmarks/peers/plain_server.py`) are FastAPI with a lock: one request at a time, by the generate
of `transformers` or by ours, with the cache on. All serve the same random weights, and get the same requests (prompts
of 1 to 12 words, greedy, 32 tokens) from clients in another process, in turn. The texts are compared. Beside
the clock stands the server's own processor time, which others on the machine disturb less. Bar: 4x the requests a
second at 32 clients.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.pairs import machine
from benchmarks.random_model import SHAPES, write_random_model

OURS = "gpt2train serve"
START_SECONDS = 120.0


@contextlib.contextmanager
def server(
    name: str, model: Path, flags: list[str], threads: int, log: IO[str] | None = None
) -> Iterator[tuple[str, int]]:
    """A server in a process of its own, its errors in `log`: its address and its process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if name == OURS:
        command = ["-m", "gpt2train", "serve", "--model", str(model), "--port", str(port), *flags]
    else:
        command = ["-m", "benchmarks.peers.plain_server", str(model), str(port), name.removeprefix("plain ")]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TRANSFORMERS_VERBOSITY": "error"}
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=log, env=environment)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(60)


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.1)
    raise SystemExit(f"the server at {address} did not come up; see its error above")


def measure(address: str, pid: int, clients: int, requests: int, tokens: int) -> dict[str, Any]:
    """What the clients saw, and `cpu`: seconds of processor time that the server took."""
    command = [sys.executable, "-m", "benchmarks.load", address, *map(str, (clients, requests, tokens))]
    process = psutil.Process(pid)
    before = process.cpu_times()
    result = dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    after = process.cpu_times()
    return result | {"cpu": after.user + after.system - before.user - before.system}


def show(clients: int, requests: int, seen: dict[str, list[dict[str, Any]]]) -> None:
    """Print a row for each server."""
    print(f"{clients} clients, {requests} requests")
    for name, rounds in seen.items():
        rate = statistics.median(requests / result["seconds"] for result in rounds)
        waits = [1000 * wait for result in rounds for wait in result["latencies"]]
        p50, p99 = (statistics.quantiles(waits, n=100, method="inclusive")[i] for i in (49, 98))
        ratio = statistics.median(b["seconds"] / a["seconds"] for a, b in zip(seen[OURS], rounds, strict=True))
        same = "" if rounds[0]["digest"] == seen[OURS][0]["digest"] else "   OTHER TEXTS"
        cpu = statistics.median(1000 * result["cpu"] / requests for result in rounds)
        cpu_ratio = statistics.median(b["cpu"] / a["cpu"] for a, b in zip(seen[OURS], rounds, strict=True))
        tail = "" if name == OURS else f"   ours = {ratio:.2f}x, {cpu_ratio:.2f}x by CPU{same}"
        waited = f"p50 {p50:>7,.0f} ms   p99 {p99:>7,.0f} ms"
        print(f"  {name:<18} {rate:>6,.1f} requests/s   {waited}   CPU {cpu:>5,.0f} ms a request{tail}", flush=True)


def main() -> None:
    """Compare as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--requests", type=int, default=0, help="of a round; 0: twice the clients, 32 at least")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of a server's matrix products")
    parser.add_argument("--peers", nargs="+", default=["transformers", "gpt2train"])
    parser.add_argument("--flags", default="", help="more flags for gpt2train serve, for example '--max-batch-size 64'")
    options = parser.parse_args()

    print(f"{options.shape}, {options.tokens} tokens an answer, {options.threads} thread(s): {machine()}")
    with contextlib.ExitStack() as stack:
        model = Path(stack.enter_context(tempfile.TemporaryDirectory())) / options.shape
        write_random_model(model, SHAPES[options.shape])
        names = [OURS, *(f"plain {peer}" for peer in options.peers)]
        servers = {
            name: stack.enter_context(server(name, model, options.flags.split(), options.threads)) for name in names
        }
        for address, pid in servers.values():
            measure(address, pid, 2, 4, options.tokens)  # warm
        for clients in options.clients:
            requests = options.requests or max(32, 2 * clients)
            seen: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for _ in range(options.rounds):
                for name, (address, pid) in servers.items():
                    seen[name].append(measure(address, pid, clients, requests, options.tokens))
            show(clients, requests, seen)


if __name__ == "__main__":
    main()
