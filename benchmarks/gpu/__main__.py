"""Prove the engine on a GPU: right numbers, speed, memory, in one verdict.

    python -m benchmarks.gpu [--json verdict.json]     the presets' speed, the card's ceilings, correctness: 375 s
    python -m benchmarks.gpu --second                  peers, other kernels, Muon, fp8, document masks: 285 s
    python -m benchmarks.gpu --rehearse                both on a CPU, at a tiny size, with planted faults
    python -m benchmarks.gpu --jobs 345m:ours:16       some contestants of benchmarks.trainer alone

Contestants compile side by side; everything else is stopped while one is measured. It ends within the minutes given:
what does not fit is listed as left out. A check that crashes, hangs or loses the device is named, and the others still
run. Each result is printed and written at once; a table of failures and speeds comes last. Exit code 1 if a check
failed, 3 if something is missing. Needs the checkout, and the packages NEEDED; `transformers` for the comparison with
it, and for the server cyclopts, fastapi, uvicorn, opentelemetry-api and prometheus-client.
"""

import argparse
import importlib.util
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.processes import Turns, daemon, end_children, run_part
from benchmarks.gpu.result import Result, Verdict

if TYPE_CHECKING:
    from benchmarks.gpu.speed import Card, Job

STARTED = time.monotonic()
PARTS = ("correctness", "speed", "ceilings")
MINUTES = {"first": 6.25, "second": 4.75, "rehearsal": 10.0}
END_SECONDS = 8.0  # for the end of the processes and the table
WORKERS = 3  # contestants that compile side by side
NEEDED = (
    *("torch", "numpy", "tokenizers", "safetensors", "tomli_w", "psutil", "filelock"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection"),
)
# Faults of a rehearsal by part, and the words by which each must be reported.
PLANTED = {
    "correctness": {
        "planted crash": "ended with exit code 9",
        "planted hang": "hung for 4 s",
        "planted lost device": "illegal memory access",
        "planted wrong kernel causal": "against math",
    },
    "speed": {
        "tiny planted crash": "ended with exit code 7",
        "tiny planted hang": "hung for 15 s in its first step",
        "tiny planted out of memory": "out of memory at every micro-batch of (4, 2)",
    },
}
# Whole-GPU settings of the processes, unless they are set. There is one rank: NCCL needs no network.
ENVIRONMENT = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def find_card(device: str) -> "Card":
    """The device, of which no memory is taken."""
    from benchmarks.gpu.speed import Card

    if device == "cpu":
        return Card("cpu")
    import torch

    properties = torch.cuda.get_device_properties(0)
    return Card("cuda", properties.name, properties.total_memory)


def machine(card: "Card") -> dict[str, str]:
    """Hardware and versions."""
    import torch

    import gpt2train

    return {
        "device": card.name or platform.processor() or platform.machine(),
        "gpus": str(torch.cuda.device_count()),
        "cores": str(os.cpu_count()),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "gpt2train": gpt2train.__version__,
    }


def asked(texts: list[str]) -> "tuple[Job, ...]":
    """Jobs of "SHAPE:CONTESTANT:MICRO"."""
    from benchmarks.gpu.speed import Job

    found = []
    for text in texts:
        shape, contestant, micro = text.split(":")
        found.append(Job(shape, contestant, (int(micro),), share=1.0, has_bars=contestant in ("ours", "ours, blocks")))
    return tuple(found)


def run(jobs: "tuple[Job, ...]", parts: dict[str, list[str]], card: "Card", turns: Turns, verdict: Verdict) -> None:
    """Run everything side by side until it is done or the time is up, and record what was left out.

    Args:
        jobs: contestants to measure.
        parts: command of each further part.
        card: the device.
        turns: the right to measure, and the end of the time.
        verdict: takes the results.
    """
    from benchmarks.gpu.speed import Speed

    threads = [daemon(run_part, part, command, verdict, turns) for part, command in parts.items()]
    speed = Speed(jobs, card, turns, verdict, WORKERS)
    while turns.left > 0 and any(thread.is_alive() for thread in (*threads, *speed.threads)):
        time.sleep(0.1)
    turns.end = 0.0
    end_children()
    for thread in threads:  # which record what they leave out
        thread.join(2.0)
    speed.leave_out()


def unnoticed(results: list[Result], planted: dict[str, str]) -> list[str]:
    """Planted faults that no result reports by name and cause."""
    reported = {result.name: result.detail for result in results if result.ok is False}
    return [name for name, words in planted.items() if words not in reported.get(name, "")]


def main() -> int:
    """Run what fits, print the table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--second", action="store_true", help="what a first call has no time for")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, at a tiny size, with planted faults")
    parser.add_argument("--jobs", nargs="+", metavar="SHAPE:CONTESTANT:MICRO", help="these alone")
    parser.add_argument("--minutes", type=float, help=f"by default {MINUTES}")
    parser.add_argument("--json", type=Path, default=Path("gpu-verdict.json"), help="a page lies beside it")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"error: {sys.executable} has no {', '.join(missing)}; install what is missing")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // WORKERS)))
    import torch

    from benchmarks.gpu.speed import FIRST, REHEARSAL, SECOND, bars
    from benchmarks.gpu.tiny import has_fp8

    if not options.rehearse and not torch.cuda.is_available():
        raise SystemExit("error: torch sees no GPU here; rehearse the parts on a CPU by --rehearse")
    kind = "rehearsal" if options.rehearse else "second" if options.second else "first"
    card = find_card("cpu" if options.rehearse else "cuda")
    jobs = asked(options.jobs) if options.jobs else {"first": FIRST, "second": SECOND, "rehearsal": REHEARSAL}[kind]
    if not has_fp8(card.device):
        jobs = tuple(job for job in jobs if "fp8" not in job.contestant)
    jobs = jobs if "speed" in options.only else ()
    others = [part for part in PARTS if part != "speed" and part in options.only]
    if options.second or options.jobs:
        others = []
    extra = ["--rehearse"] if options.rehearse else []
    parts = {part: [sys.executable, "-m", f"benchmarks.gpu.{part}", card.device, *extra] for part in others}
    verdict = Verdict(options.json, machine(card), bars(jobs, card))
    turns = Turns(STARTED + 60 * (options.minutes or MINUTES[kind]) - END_SECONDS)
    signal.signal(signal.SIGTERM, lambda *_: setattr(turns, "end", 0.0))
    print(verdict.machine, flush=True)
    run(jobs, parts, card, turns, verdict)
    print(verdict.table(), flush=True)
    if options.rehearse:
        parts_run = () if options.jobs else options.only  # the jobs of `--jobs` have no planted faults
        return _rehearsed(verdict, {k: v for part in parts_run for k, v in PLANTED.get(part, {}).items()})
    return 1 if verdict.failed() else 3 if verdict.missing() else 0


def _rehearsed(verdict: Verdict, planted: dict[str, str]) -> int:
    """Say whether all planted faults of a rehearsal were reported and nothing else failed; returns the exit code."""
    others = [result.name for result in verdict.failed() if "planted" not in result.name]
    silent = unnoticed(verdict.results, planted)
    print(f"planted faults reported: {len(planted) - len(silent)} of {len(planted)}", *silent, flush=True)
    return 1 if others or silent or verdict.missing() else 0


if __name__ == "__main__":
    sys.exit(main())
