"""Treat a server badly for a while: does it leak, hang, or answer wrongly?

    python -m benchmarks.soak [--seconds 600] [--shape nano] [--clients 12]

Clients do at random what `benchmarks/adversarial_clients.py` lists: proper requests of all kinds, connections dropped
at any moment, bodies that are too large, no JSON, wrong fields, readers and writers that are slow, bursts beyond the
queue. Every answer is compared with what the model gives when it is called directly; every refusal must be the right
one. At the end no row may be taken, and memory, open files and threads must be where they were. Exit code 1 where not.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from benchmarks.adversarial_clients import KINDS, Expected, Target
from benchmarks.load import prompt
from benchmarks.pairs import machine
from benchmarks.random_model import SHAPES, write_random_model
from benchmarks.serve import OURS, server

PROMPTS = 48
ROWS, QUEUE, MAX_BODY, BODY_SECONDS = 4, 12, 65_536, 3
FLAGS = [
    *("--max-batch-size", str(ROWS)),
    *("--max-queued", str(QUEUE)),
    *("--max-body", str(MAX_BODY)),
    *("--body-seconds", str(BODY_SECONDS)),
]
HANG_SECONDS = 60.0
LEAK_MIB, LEAK_FILES, LEAK_THREADS = 24.0, 4, 2


@dataclass
class Findings:
    """What a soak saw."""

    counts: Counter[str] = field(default_factory=Counter)
    """Things done, by kind and outcome."""
    wrong: list[str] = field(default_factory=list)
    """Answers and refusals that were not right, and requests that hung."""
    samples: list[tuple[float, float, int, int]] = field(default_factory=list)
    """Seconds, MiB of memory, open files and sockets, threads of the server."""

    def growth(self) -> float:
        """MiB that memory grew by between the second and the last quarter."""
        quarter = max(1, len(self.samples) // 4)
        memory = [sample[1] for sample in self.samples]
        return statistics.median(memory[-quarter:]) - statistics.median(memory[quarter : 2 * quarter])

    def slope(self) -> float:
        """MiB a minute, over the later three quarters."""
        later = self.samples[len(self.samples) // 4 :]
        return 60 * statistics.linear_regression([s[0] for s in later], [s[1] for s in later]).slope


def expected(model: Path) -> list[Expected]:
    """Requests, and what the model answers when it is called directly."""
    from gpt2train.convert.huggingface import read_model
    from gpt2train.data.tokenizer import load_tokenizer
    from gpt2train.inference.generate import generate
    from gpt2train.inference.settings import SamplingSettings

    loaded, tokenizer = read_model(model), load_tokenizer(model)
    result = []
    for number in range(PROMPTS):
        text, tokens = prompt(number), 1 + number % 40
        answer = generate(loaded, tokenizer, [text], SamplingSettings(temperature=0, max_new_tokens=tokens))[0]
        result.append(Expected(text, tokens, answer.text))
    return result


async def soak(
    address: str, pid: int, answers: Sequence[Expected], seconds: float, clients: int, seed: int = 1
) -> Findings:
    """Do random things for some seconds, then let everything end."""
    found, process, end = Findings(), psutil.Process(pid), time.monotonic() + seconds
    async with aiohttp.ClientSession(address, connector=aiohttp.TCPConnector(limit=0)) as session:
        target = Target(session, address, answers, ROWS + QUEUE, MAX_BODY, BODY_SECONDS)

        async def client(rng: random.Random) -> None:
            while time.monotonic() < end:
                kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
                try:
                    async with asyncio.timeout(HANG_SECONDS):
                        outcome = await KINDS[kind][1](target, rng)
                    found.counts[f"{kind}: {outcome}"] += 1
                except Exception as error:  # noqa: BLE001 - whatever went wrong is what is looked for
                    found.wrong.append(f"{kind}: {type(error).__name__}: {error}")
                await asyncio.sleep(rng.expovariate(4.0))

        watching = asyncio.ensure_future(_watch(process, found))
        await asyncio.gather(*(client(random.Random(f"{seed}/{number}")) for number in range(clients)))
        watching.cancel()
        await _settle(session, found)
    return found


async def _watch(process: psutil.Process, found: Findings) -> None:
    began = time.monotonic()
    while True:
        found.samples.append(_sample(process, time.monotonic() - began))
        await asyncio.sleep(0.5)


def _sample(process: psutil.Process, seconds: float) -> tuple[float, float, int, int]:
    with process.oneshot():
        return seconds, process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()


async def _settle(session: aiohttp.ClientSession, found: Findings) -> None:
    """Whatever was left running must be let go of by itself."""
    end = time.monotonic() + HANG_SECONDS
    while True:
        async with session.get("/metrics") as response:
            gauges = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[:1] != "#")
        held = [float(gauges[f"gpt2train_{name}"]) for name in ("running_rows", "waiting_sequences")]
        if not any(held):
            return
        if time.monotonic() > end:
            found.wrong.append(f"at the end {held[0]:g} rows are taken and {held[1]:g} sequences wait")
            return
        await asyncio.sleep(0.2)


def find_failures(
    found: Findings, before: tuple[float, float, int, int], after: tuple[float, float, int, int]
) -> list[str]:
    """What is not as it must be; nothing where all is well."""
    wrong = list(found.wrong)
    if found.growth() > LEAK_MIB:
        wrong.append(f"memory grew by {found.growth():.1f} MiB, {found.slope():.2f} MiB a minute")
    if after[2] > before[2] + LEAK_FILES:
        wrong.append(f"open files and sockets went from {before[2]} to {after[2]}")
    if after[3] > before[3] + LEAK_THREADS:
        wrong.append(f"threads went from {before[3]} to {after[3]}")
    return wrong


def run(folder: Path, shape: str, seconds: float, clients: int, seed: int = 1) -> tuple[Findings, list[str]]:
    """A server of a fresh model, a soak, and the judgement of it."""
    write_random_model(folder, SHAPES[shape])
    answers = expected(folder)
    with tempfile.TemporaryFile("w+") as log:
        with server(OURS, folder, FLAGS, threads=1, log=log) as (address, pid):
            warm = asyncio.run(soak(address, pid, answers, min(10.0, seconds / 4), clients, seed + 1))
            process = psutil.Process(pid)
            before = _idle(process)
            found = asyncio.run(soak(address, pid, answers, seconds, clients, seed))
            after = _idle(process)
        log.seek(0)  # a request that nobody waits for, yet still runs, is cancelled at the end with a word
        found.wrong += [f"the server says: {line.rstrip()}" for line in log]
    found.wrong += warm.wrong
    return found, find_failures(found, before, after)


def _idle(process: psutil.Process) -> tuple[float, float, int, int]:
    """The server when its connections are closed."""
    time.sleep(2)
    return _sample(process, 0)


def main() -> None:
    """Soak as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--shape", default="nano", choices=SHAPES)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.seconds:g} s, {options.clients} clients, {options.shape}: {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found, wrong = run(Path(folder) / "model", options.shape, options.seconds, options.clients, options.seed)
    for name, number in sorted(found.counts.items()):
        print(f"  {number:>7,}  {name}")
    last = found.samples[-1]
    print(f"memory {last[1]:.0f} MiB, grew {found.growth():.1f} MiB ({found.slope():.2f} MiB a minute)")
    print(f"open files {last[2]}, threads {last[3]}")
    for line in wrong[:20]:
        print(f"WRONG {line}")
    print("all well" if not wrong else f"{len(wrong)} things wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
