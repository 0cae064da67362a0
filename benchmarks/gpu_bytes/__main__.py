"""Bytes, products and predicted time of training steps on an H100 or H200, without a GPU.

    python -m benchmarks.gpu_bytes [PRESET:MICRO_BATCH …] [--json FILE] [--kernels 30] [--set stream=bf16]

torch's compiler generates the CUDA code for a few layers; what each kernel reads and writes is read off, and the part
of a layer is multiplied. The time is a roofline: each kernel takes what its bytes or its FLOPs take at rates that the
card itself was seen to reach, whichever is longer. A prediction, not a measurement. Needs torch 2.11 built for CUDA,
and gcc.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_bytes.fake_card import missing, with_stubs
from benchmarks.gpu_bytes.roofline import CARDS, Rates
from benchmarks.gpu_bytes.step import Step, nonlinearity, step_of

# Micro-batches that `gpt2train plan` gives a GPU of 80 GB, and tokens of a step: a quarter or a half of the presets'.
DEFAULT = ("124m:64", "345m:32", "1542m:16")
TOKENS = 262_144


def report(step: Step, cards: dict[str, Rates]) -> dict[str, Any]:
    """Return a step's figures as JSON."""
    by_kind = {
        kind: {
            "launches": sum(n for k, n in step.kernels.items() if k.kind == kind),
            "bytes": sum(n * k.bytes for k, n in step.kernels.items() if k.kind == kind),
            "flops": sum(n * k.flops for k, n in step.kernels.items() if k.kind == kind),
        }
        for kind in ("product", "attention", "pointwise")
    }
    predicted = {}
    for name, rates in cards.items():
        seconds = {k: n * rates.seconds(k) for k, n in step.kernels.items()}
        total = sum(seconds.values())
        predicted[name] = {
            "seconds": total,
            "mfu": step.flops / total / rates.peak,
            "by_kind": {kind: sum(s for k, s in seconds.items() if k.kind == kind) for kind in by_kind},
        }
    return {
        "layers": step.shape.layers,
        "hidden": step.shape.hidden,
        "micro_batch": step.micro_batch,
        "accumulation": step.accumulation,
        "tokens": step.tokens,
        "graph_breaks": step.graph_breaks,
        "launches": sum(step.kernels.values()),
        "memory": step.memory,
        "bytes": sum(n * k.bytes for k, n in step.kernels.items()),
        "kinds": by_kind,
        "predicted": predicted,
        "kernels": [
            asdict(k) | {"launches": n}
            for k, n in sorted(step.kernels.items(), key=lambda pair: -pair[0].bytes * pair[1])
        ],
    }


def table(preset: str, found: dict[str, Any]) -> str:
    """Format the figures of a step as one line."""
    kinds, tokens = found["kinds"], found["tokens"]
    cards = ", ".join(f"{name} {one['mfu']:.1%}" for name, one in found["predicted"].items())
    memory = f"{found['memory'] / 2**30:.1f} GiB"
    return (
        f"{preset} micro-batch {found['micro_batch']} x {found['accumulation']}: "
        f"{found['bytes'] / tokens / 1e6:.3f} MB a token ({kinds['pointwise']['bytes'] / tokens / 1e6:.3f} pointwise), "
        f"{found['launches']:,} launches, {found['graph_breaks']} graph breaks, {memory}; {cards} of the peak"
    )


def kernel_table(found: dict[str, Any], rows: int) -> str:
    """Format the kernels that move most."""
    tokens = found["tokens"]
    lines = ["  kB/token  launches  phase     kernel"]
    for kernel in found["kernels"][:rows]:
        moved = kernel["launches"] * (kernel["read"] + kernel["written"]) / tokens / 1e3
        shape = " x ".join(map(str, kernel["shape"]))
        lines.append(f"{moved:10.2f}  {kernel['launches']:8}  {kernel['phase']:8}  {kernel['name']} {shape}")
    return "\n".join(lines)


def main() -> int:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=DEFAULT, metavar="PRESET:MICRO_BATCH")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of a step")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of [performance]")
    parser.add_argument("--linear", type=int, metavar="LAYERS", help="also compile so many, and compare")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--kernels", type=int, default=0, metavar="ROWS", help="list the kernels that move most")
    options = parser.parse_args()
    if lacking := missing():
        raise SystemExit(f"error: {lacking}")
    with_stubs()
    settings = dict(pair.split("=") for pair in options.set)
    found = {}
    for text in options.steps:
        preset, micro_batch = text.split(":")
        found[text] = report(step_of(preset, int(micro_batch), options.tokens, **settings), CARDS)
        print(table(preset, found[text]), flush=True)
        if options.linear:
            off = found[text]["nonlinearity"] = nonlinearity(preset, int(micro_batch), options.linear, **settings)
            print(f"{preset} with {options.linear} layers: the sum is off by {off:.2%}", flush=True)
        if options.kernels:
            print(kernel_table(found[text], options.kernels), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
