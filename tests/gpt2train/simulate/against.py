"""Simulated ranks beside the ranks of a real job on the same settings."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from gpt2train.config import RunConfig
from gpt2train.settings import build
from gpt2train.simulate.rank import RankStep, simulate_rank
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import write

SECONDS = 900.0  # for a job with many layouts, on a busy machine
PROGRAM = Path(__file__).parent / "measure_step.py"


def run(output: Path, changes: dict[str, Any], data: int) -> RunConfig:
    """A model whose parameters, activations and logits all count."""
    base = {
        "model": {"layers": 4, "heads": 4, "hidden": 64, "context": 64, "dropout": 0.0},
        "batch": {"micro_batch": 2, "global_batch": 8 * data},
        "schedule": {"warmup": 1},
        "precision": "bf16",
        "device": "cpu",
        "vocab": 500,
        "output": str(output),
        "data": {"train": "none"},
    }
    return build(RunConfig, base, changes)


def sent(step: RankStep) -> dict[str, list[int]]:
    """Calls and bytes of the collectives, by operation and dtype, over all groups."""
    calls: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, size in step.counts.bytes.items():
        calls[f"{kind.operation} {kind.dtype}"] += step.counts.calls[kind]
        sizes[f"{kind.operation} {kind.dtype}"] += size
    return {name: [calls[name], sizes[name]] for name in sorted(sizes)}


def differences(folder: Path, layouts: dict[str, dict[str, Any]], processes: int) -> dict[str, list[Any]]:
    """For each layout and rank the simulated peak as a multiple of the real one, and the collectives that differ."""
    runs = {}
    for number, (name, changes) in enumerate(layouts.items()):
        parallel = changes.get("parallel", {})
        data = processes // parallel.get("tp", 1) // parallel.get("pp", 1)
        runs[name] = run(folder / f"{number}", changes, data)
    report = folder / "steps.json"
    run_ranks(PROGRAM, str(report), *map(write, runs.values()), processes=processes, seconds=SECONDS)
    real = json.loads(report.read_text())
    found: dict[str, list[Any]] = {}
    for number, (name, config) in enumerate(runs.items()):
        for rank in range(processes):
            step, measured = simulate_rank(config, processes, rank), real[rank][number]
            wrong = {
                kind: (sent(step).get(kind), measured["collectives"].get(kind))
                for kind in sent(step).keys() | measured["collectives"].keys()
                if sent(step).get(kind) != measured["collectives"].get(kind)
            }
            found.setdefault(name, []).append((step.peak / measured["peak"], wrong))
    return found
