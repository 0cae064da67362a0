"""Prove the engine on a GPU: right numbers, speed, memory, and the cost of options, in one verdict.

    python -m benchmarks.gpu [--minutes 10] [--json verdict.json] [--html verdict.html]
    python -m benchmarks.gpu --rehearse           the same parts on a CPU, at a tiny size
    python -m benchmarks.gpu --only correctness   some parts

It ends within the minutes given: parts that do not fit are left out and listed as such. A check that hangs is ended and
named. The JSON file is written after every result, so that a kill loses one check at most. Exit code 1 if a check
failed. Needs the checkout, and the packages NEEDED; `transformers` for the comparison with it, and for the server
cyclopts, fastapi, uvicorn and prometheus-client.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.page import page
from benchmarks.gpu.result import BEGIN, Result

# Part, and the module with its arguments; in the order of their worth, since the last ones may be left out.
CORRECTNESS = ("correctness", "benchmarks.gpu.correctness", ())
MEASURE = "benchmarks.gpu.measure"
FULL = [
    CORRECTNESS,
    ("speed", MEASURE, ("speed products",)),
    *[("speed", MEASURE, (f"speed {shape}",)) for shape in ("345m", "124m", "1542m")],
    *[("memory", MEASURE, (f"memory {shape}",)) for shape in ("345m", "124m", "1542m")],
    ("features", MEASURE, ("features 345m", "features fp8")),
    *[("speed", MEASURE, (f"speed {shape} autotuned",)) for shape in ("345m", "124m")],
]
# One process for all measurements of a tiny model, since each one takes seconds to start.
TINY = [*[f"{part} tiny" for part in ("speed", "memory", "features")], "speed tiny autotuned"]
REHEARSAL = [CORRECTNESS, ("speed", MEASURE, ("speed products", *TINY, "features fp8"))]
PARTS = ("correctness", "speed", "memory", "features")
SMALLEST = 15.0  # seconds below which no part is started
HANGING = {"correctness": 120.0}  # seconds after which a check is taken to hang; compilation takes most of it
HANGING_MEASUREMENT = 600.0  # of four contestants, each compiled; each has a limit of its own
NEEDED = ("torch", "numpy", "pydantic", "tokenizers", "safetensors", "tomli_w", "psutil", "filelock")


def run_part(
    part: str,
    command: list[str],
    seconds: float,
    record: Callable[[Result], None],
    hanging: float = HANGING_MEASUREMENT,
) -> None:
    """Run a part in a process of its own, and again without the check in which it died, until it ends or time is up.

    Args:
        part: name of the part.
        command: command of the process, to which the names of the checks to leave out are added.
        seconds: time for the part.
        record: function that takes each result at once.
        hanging: time for one check.
    """
    end, skip = time.monotonic() + seconds, list[str]()
    while True:
        # A session of its own, so that nothing that a check started outlives it and holds memory of the GPU.
        process = subprocess.Popen([*command, *skip], stdout=subprocess.PIPE, text=True, start_new_session=True)
        began, current = time.monotonic(), ""
        killer = _kill_at(process, min(end, began + hanging))
        try:
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    row = None
                if not isinstance(row, dict):
                    print(line, end="", file=sys.stderr)
                elif BEGIN in row:
                    current = row[BEGIN]
                    skip.append(current)
                    killer.cancel()
                    began = time.monotonic()
                    killer = _kill_at(process, min(end, began + hanging))
                else:
                    record(Result(**row))
        finally:
            killer.cancel()
            _kill(process)
            code = process.wait()
        if code == 0:
            return
        if time.monotonic() >= end:
            record(Result(part, current or part, None, detail="left out: the time was up"))
            return
        # The system kills by the same signal when memory is short.
        hung = code == -signal.SIGKILL and time.monotonic() - began >= hanging
        ended = f"hung for {hanging:g} s" if hung else f"the process ended with {code}"
        record(Result(part, current or part, False, detail=f"{ended}; its error is above"))
        if not current:
            return


def _kill_at(process: subprocess.Popen[str], moment: float) -> threading.Timer:
    timer = threading.Timer(max(0.1, moment - time.monotonic()), _kill, (process,))
    timer.daemon = True
    timer.start()
    return timer


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def print_result(result: Result) -> None:
    """Print one line."""
    mark = {True: "ok  ", False: "FAIL", None: "    "}[result.ok]
    value = "" if result.value is None else f" {result.value:.4g} {result.unit}"
    bound = "" if result.bound is None else f" (bound {result.bound:g})"
    print(f"{mark} {result.part}: {result.name}{value}{bound} {result.detail}", flush=True)


def machine() -> dict[str, str]:
    """Hardware and versions."""
    import torch

    import gpt2train

    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "gpus": str(torch.cuda.device_count()),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "gpt2train": gpt2train.__version__,
    }


def verdict(results: list[Result], facts: dict[str, str], seconds: float) -> dict[str, object]:
    """The whole outcome as JSON; `ok` is True if nothing failed and something was checked."""
    failed = [f"{result.part}: {result.name}" for result in results if result.ok is False]
    checked = sum(result.ok is not None for result in results)
    return {
        "ok": not failed and checked > 0,
        "failed": failed,
        "checked": checked,
        "seconds": round(seconds, 1),
        "machine": facts,
        "results": [asdict(result) for result in results],
    }


def write(outcome: dict[str, object], file: Path, html: Path | None) -> None:
    """Write the verdict as JSON, with null for what is not a number, and as a page."""
    file.parent.mkdir(parents=True, exist_ok=True)
    texts = {file: json.dumps(_finite(outcome), indent=1) + "\n", html or file.with_suffix(".html"): page(outcome)}
    for path, text in texts.items():
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not have by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> int:
    """Run the parts that fit, write the verdict and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path, default=Path("gpu-verdict.json"))
    parser.add_argument("--html", type=Path, help="by default beside the JSON file")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, at a tiny size")
    options = parser.parse_args()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"error: {sys.executable} has no {', '.join(missing)}; install what is missing")
    import torch

    if not options.rehearse and not torch.cuda.is_available():
        raise SystemExit("error: torch sees no GPU here; rehearse the parts on a CPU by --rehearse")
    device = "cpu" if options.rehearse else "cuda"
    started, results, facts = time.monotonic(), list[Result](), machine()
    end = started + 60 * options.minutes

    def record(result: Result) -> None:
        print_result(result)
        results.append(result)
        write(verdict(results, facts, time.monotonic() - started), options.json, options.html)

    for part, module, arguments in REHEARSAL if options.rehearse else FULL:
        names = [name for name in arguments if name.split()[0] in options.only]
        if part not in options.only and not names:
            continue
        left = end - time.monotonic()
        if left < SMALLEST:
            for name in names or [part]:
                record(Result(name.split()[0], name, None, detail="left out: the time was up"))
        else:
            hanging = HANGING.get(part, HANGING_MEASUREMENT)
            run_part(part, [sys.executable, "-m", module, device, *names], left, record, hanging)
    failed = [result for result in results if result.ok is False]
    print(f"{len(failed)} failed of {sum(result.ok is not None for result in results)}; {options.json}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
