"""Prove the engine on a GPU: right numbers, speed, memory, and the cost of options, in one verdict.

    python -m benchmarks.gpu [--minutes 10] [--json verdict.json] [--html verdict.html]
    python -m benchmarks.gpu --rehearse           the same parts on a CPU, at a tiny size
    python -m benchmarks.gpu --only correctness   some parts

It ends within the minutes given: parts that do not fit are left out and listed as such. The JSON file is written after
every part, so that a kill loses one part at most. Exit code 1 if a check failed. Needs the checkout, and of the
packages torch, numpy, pydantic, tokenizers and safetensors; `transformers` for the comparison with it.
"""

import argparse
import json
import platform
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import torch

import gpt2train
from benchmarks.gpu.page import page
from benchmarks.gpu.result import BEGIN, Result

# Part, and the module with its arguments; in the order of their worth, since the last ones may be left out.
CORRECTNESS = ("correctness", "benchmarks.gpu.correctness", ())
MEASURE = "benchmarks.gpu.measure"
FULL = [
    CORRECTNESS,
    ("speed", MEASURE, ("speed", "products")),
    *[("speed", MEASURE, ("speed", shape)) for shape in ("345m", "124m", "1542m")],
    *[("memory", MEASURE, ("memory", shape)) for shape in ("345m", "124m", "1542m")],
    ("features", MEASURE, ("features", "345m")),
]
REHEARSAL = [
    CORRECTNESS,
    ("speed", MEASURE, ("speed", "products")),
    *[(part, MEASURE, (part, "tiny")) for part in ("speed", "memory", "features")],
]
PARTS = ("correctness", "speed", "memory", "features")
SMALLEST = 15.0  # seconds below which no part is started


def run_part(part: str, command: list[str], seconds: float) -> list[Result]:
    """Run a part in a process of its own, and again without the check in which it died, until it ends or time is up."""
    end, found, skip = time.monotonic() + seconds, list[Result](), list[str]()
    while True:
        process = subprocess.Popen([*command, *skip], stdout=subprocess.PIPE, text=True)
        killer = threading.Timer(max(0.1, end - time.monotonic()), process.kill)
        killer.start()
        current = ""
        assert process.stdout is not None
        for line in process.stdout:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                print(line, end="", file=sys.stderr)
                continue
            if BEGIN in row:
                current = row[BEGIN]
                skip.append(current)
                continue
            found.append(Result(**row))
            print_result(found[-1])
        code = process.wait()
        killer.cancel()
        if code == 0:
            return found
        if time.monotonic() >= end:
            return [*found, Result(part, current or command[-1], None, detail="left out: the time was up")]
        found.append(Result(part, current, False, detail=f"the process ended with {code}; its error is above"))
        print_result(found[-1])
        if not current:
            return found


def print_result(result: Result) -> None:
    """Print one line."""
    mark = {True: "ok  ", False: "FAIL", None: "    "}[result.ok]
    value = "" if result.value is None else f" {result.value:.4g} {result.unit}"
    bound = "" if result.bound is None else f" (bound {result.bound:g})"
    print(f"{mark} {result.part}: {result.name}{value}{bound} {result.detail}", flush=True)


def machine() -> dict[str, str]:
    """Hardware and versions."""
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


def main() -> int:
    """Run the parts that fit, write the verdict and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path, default=Path("gpu-verdict.json"))
    parser.add_argument("--html", type=Path, help="by default beside the JSON file")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, at a tiny size")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        raise SystemExit("error: torch sees no GPU here; rehearse the parts on a CPU by --rehearse")
    device = "cpu" if options.rehearse else "cuda"
    started, results, facts = time.monotonic(), list[Result](), machine()
    end = started + 60 * options.minutes
    for part, module, arguments in REHEARSAL if options.rehearse else FULL:
        if part not in options.only:
            continue
        left = end - time.monotonic()
        if left < SMALLEST:
            results.append(Result(part, " ".join(arguments) or part, None, detail="left out: the time was up"))
            print_result(results[-1])
        else:
            results += run_part(part, [sys.executable, "-m", module, device, *arguments], left)
        outcome = verdict(results, facts, time.monotonic() - started)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
        html = options.html or options.json.with_suffix(".html")
        html.write_text(page(outcome), encoding="utf-8")
    failed = [result for result in results if result.ok is False]
    print(f"{len(failed)} failed of {sum(result.ok is not None for result in results)}; {options.json}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
