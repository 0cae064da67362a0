"""Run folders as a training leaves them, written without training."""

import json
import math
from pathlib import Path
from typing import Any

from gpt2train.config import TrainSettings, run_config, to_toml
from gpt2train.monitoring.run_record import record_start
from gpt2train.settings import build, layer
from gpt2train.store.manifest import MANIFEST, FileRecord, Manifest, Outcome

VOCAB = 300
BASE: dict[str, Any] = {
    "model": {"layers": 2, "heads": 2, "hidden": 32, "context": 64},
    "batch": {"micro_batch": 2, "global_batch": 4},
    "steps": 100,
    "schedule": {"warmup": 10},
}
LAMBADA = {"headline": "lambada_openai", "definitions": {"lambada_openai": {"accuracy": 0.25, "perplexity": 41.5}}}
WIKITEXT = {"adjusted_perplexity": 37.25, "token_perplexity": 30.0}


def make_run(
    folder: Path,
    *,
    steps: int = 100,
    done: int | None = None,
    level: float = 3.0,
    seconds: float = 36.0,
    settings: dict[str, Any] | None = None,
    evaluated: bool = False,
) -> Path:
    """A run that has done `done` of `steps` steps of `seconds` each, and whose loss falls towards `level`."""
    done = steps if done is None else done
    chosen = build(TrainSettings, layer(BASE, {"steps": steps}, settings or {}))
    tokens = folder.parent.parent / "tokens"
    given = {"vocab": VOCAB, "tokenizer_hash": "ab12", "output": str(folder)}
    config = run_config(chosen, train=f"{tokens}/train/tokens", valid=None, **given)
    folder.mkdir(parents=True)
    tokens.mkdir(exist_ok=True)
    outputs = tuple(FileRecord(name=f"train/tokens.{suffix}", bytes=1, sha256="") for suffix in ("bin", "idx"))
    names = {"step": "tokenize", "fingerprint": "0123456789abcdef", "content": "c", "folder": "tokens"}
    empty: dict[str, Any] = {"parameters": {}, "inputs": {}, "versions": {}}
    manifest = Manifest(**names, version=1, outcome=Outcome(outputs=outputs), **empty)
    (tokens / MANIFEST).write_text(manifest.model_dump_json())
    (folder / "config.toml").write_text(to_toml(config))
    begin(folder)
    write_rows(folder, [a_row(step, level, seconds) for step in range(1, done + 1)])
    if done == steps:
        (checkpoint := folder / "checkpoints" / f"step-{steps:08d}").mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
    if evaluated:
        (folder / "eval").mkdir()
        (folder / "eval" / "lambada.json").write_text(json.dumps(LAMBADA))
        (folder / "eval" / "wikitext.json").write_text(json.dumps(WIKITEXT))
    return folder


def begin(folder: Path, step: int = 0) -> None:
    from gpt2train.config import read_run_config

    config = read_run_config(folder / "config.toml")
    record_start(config, step, world=2, layout="tp 1 x pp 1 x dp 2", device="cpu", corpora=[("cd34", 1_000_000, 1.0)])


def a_row(step: int, level: float = 3.0, seconds: float = 36.0) -> dict[str, Any]:
    loss = level + 4 * math.exp(-step / 30) + 0.05 * math.sin(step * 7.3)
    row = {"step": step, "loss": loss, "lr": min(step, 10) * 1e-4, "tokens": step * 256, "seconds": seconds}
    row |= {"tokens_per_second": 256 / seconds, "grad_norm": 1.0, "skipped": 0}
    return row | ({"valid_loss": loss + 0.1} if step % 10 == 0 else {})


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
