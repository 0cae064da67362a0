"""An output of an earlier commit under the code of this checkout: `python .ci/old_output.py COMMIT [FOLDER]`.

The code of COMMIT prepares a small corpus and trains on it in FOLDER, unless that has been done. This checkout then has
to find every step done, verify the output, continue the training with the same losses, trace a sample to its document,
remove that document, and prepare the data without it.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import tomli_w

from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.manifest import MANIFEST
from gpt2train.store.run_folder import list_checkpoints

ROOT = Path(__file__).parents[1]
STEPS, BATCH = 8, 4
SETTINGS = {
    "documents": ["texts.jsonl"],
    "output": "out",
    "workers": 1,
    "clean": {"min_tokens": 8, "language": {"keep": ["any"]}, "split": {"valid": 0.2, "test": 0.2}},
    "tokenizer": {"name": "train", "vocab_size": 400},
    "launch": {"processes": 1},
    "train": {
        "steps": STEPS,
        "device": "cpu",
        "model": {"layers": 1, "heads": 2, "hidden": 32, "context": 32},
        "batch": {"micro_batch": 2, "global_batch": BATCH},
        "schedule": {"warmup": 2},
        "checkpoints": {"interval": 2, "keep": 9},
        "logging": {"interval": 1},
    },
}
WORDS = ["and", "bird", "boat", "bridge", "child", "cloud", "field", "fire", "fish", "harbour", "hill", "home", "house"]
DOCUMENTS = 300


def run(code: Path, folder: Path, *words: str) -> str:
    """Run a module with the code of a checkout, and return what it prints."""
    print("python -m", *words, flush=True)
    path = os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", *words]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def make(commit: str, folder: Path) -> None:
    """Run the pipeline of a commit on a small corpus."""
    draw = random.Random(0)
    rows = [
        {"url": f"http://{number}.example/", "text": " ".join(draw.choices(WORDS, k=40))} for number in range(DOCUMENTS)
    ]
    folder.mkdir(parents=True)
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "settings.toml").write_text(tomli_w.dumps(SETTINGS))
    with tempfile.TemporaryDirectory() as place:
        checkout = Path(place) / "checkout"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(checkout), commit], cwd=ROOT, check=True)
        try:
            run(checkout, folder, "flows.pipeline", "--config", "settings.toml")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(checkout)], cwd=ROOT, check=True)


def losses(trained: Path) -> dict[int, float]:
    """Return the loss of each step."""
    return {row["step"]: row["loss"] for row in read_metrics(trained) if "loss" in row}


def check(folder: Path) -> None:
    """Use an output with the code of this checkout; the output is changed."""

    def here(*words: str) -> str:
        return run(ROOT, folder, *words)

    flow = ("flows.pipeline", "--config", "settings.toml")
    plan = here(*flow, "--dry-run")
    assert "to run" not in plan and plan.count("cached") >= 10, plan
    here("gpt2train", "verify", "out")
    [trained] = (folder / "out/runs").iterdir()
    before = losses(trained)
    shutil.rmtree(list_checkpoints(trained)[-1])  # as if the training had been killed before its end
    (trained / MANIFEST).unlink()
    here(*flow)
    assert losses(trained) == before and len(before) == STEPS
    traced = here("gpt2train", "trace", "--run", str(trained), "--sample", str(STEPS * BATCH - 2), "--json")
    removed = json.loads(traced)["parts"][0]["url"]
    here("gpt2train", "forget", removed, "--output", "out", "--yes")
    here("flows.dataprep", "--config", "settings.toml")
    left = [
        url for file in (folder / "out/tokens").rglob("*.parquet") for url in pq.read_table(file)["url"].to_pylist()
    ]
    assert len(left) > DOCUMENTS / 2 and removed not in left


def main() -> None:
    """Make an output, or take that of an earlier call, and check a copy of it, which has the same path."""
    commit, *folder = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(folder[0] if folder else temporary).absolute() / "made"
        used = made.with_name("used")
        shutil.rmtree(used, ignore_errors=True)
        if not made.exists():
            make(commit, used)
            shutil.copytree(used, made)
        else:
            shutil.copytree(made, used)
        check(used)


if __name__ == "__main__":
    main()
