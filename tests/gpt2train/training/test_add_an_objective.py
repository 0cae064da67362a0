"""The objective of docs/develop/add-an-objective.md, installed outside of the repository."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from gpt2train.monitoring.metrics import read_metrics
from tests.gpt2train.installed_page import installed, installed_for_all_processes
from tests.gpt2train.jobs import finish, start, start_alone
from tests.tasks.plugin_page import ROOT, files_of, run

__all__ = ["installed", "installed_for_all_processes"]

TRAIN_RUNS = ROOT / "tests/gpt2train/parity/train_runs.py"
PAGE = "add-an-objective.md"
TEXT = "".join(f"{n} foxes jump over {n + 1} dogs{'!' * (n % 30)}\n" for n in range(90)) + "\n.\n" + "long " * 40
# Compares batches, sums and loss with plain loops over the lines.
AGAINST_LOOPS = """
import json, math, sys, torch
from pathlib import Path
from lines_data import Lines, loss, scores
path, context = Path(sys.argv[1]), 16
lines = [line for line in path.read_bytes().split(b"\\n") if len(line) > 1]
data = Lines(path, context, False, seed=3)
assert data.per_epoch == len(lines)
epoch = [data.line(i) for i in range(len(lines))]
assert sorted(epoch) == sorted(line[:17] for line in lines) and epoch != [line[:17] for line in lines]
assert [data.line(i) for i in range(len(lines), 2 * len(lines))] != epoch
plain = Lines(path, context, True, seed=None)
assert [plain.line(i) for i in range(len(lines))] == [line[::-1][:17] for line in lines]
batch = data.batch([0, 5, 7], until=6)
assert (batch.targets[2] == -100).all() and data.counted([0, 5]) == int((batch.targets != -100).sum())
logits = torch.randn(3, context, 256, generator=torch.Generator().manual_seed(1))
expected = nats = right = 0.0
for row, at in (batch.targets != -100).nonzero().tolist():
    z = logits[row, at].double().logsumexp(0).item()
    nat = z - logits[row, at, batch.targets[row, at]].item()
    right += int(logits[row, at].argmax()) == int(batch.targets[row, at])
    nats, expected = nats + nat, expected + nat + 1e-4 * z * z
assert math.isclose(loss(logits, batch.targets).item(), expected, rel_tol=1e-5)
assert torch.allclose(scores(logits, batch.targets), torch.tensor([nats, right]).double(), rtol=1e-5)
print(json.dumps(nats))
"""


def write(folder: Path, **changes: Any) -> str:
    """Write the settings of the page for a short run, and the text; the path of the file."""
    for name in ("train", "valid"):
        (folder.parent / f"{name}.txt").write_text(TEXT)
    settings = tomllib.loads(files_of(PAGE)["lines.toml"])
    data = {name: str(folder.parent / f"{name}.txt") for name in ("train", "valid")}
    settings |= {"output": str(folder), "steps": 12, "device": "cpu", "data": data, "schedule": {"warmup": 2}}
    settings |= {"logging": {"tensorboard": False}, "validation": {"interval": 6, "samples": 50}}
    path = folder.with_suffix(".toml")
    path.write_text(tomli_w.dumps(settings | changes))
    return str(path)


@pytest.mark.slow
def test_data_and_loss_are_those_of_plain_loops(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(TEXT)
    done = run(AGAINST_LOOPS, str(tmp_path / "train.txt"), plugins=installed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) > 0


@pytest.mark.exhaustive
def test_the_objective_trains_on_two_layouts(tmp_path: Path) -> None:
    runs = [tmp_path / "dp", tmp_path / "tp"]
    files = [write(runs[0]), write(runs[1], parallel={"tp": 2})]
    code, _, err = finish(start(str(TRAIN_RUNS), *files, processes=2))
    assert code == 0, err
    rows = [read_metrics(run) for run in runs]
    for key in ("loss", "grad_norm", "valid_loss", "valid_bits_per_byte", "valid_accuracy"):
        one, other = (np.array([row[key] for row in columns if key in row]) for columns in rows)
        assert len(one) == (2 if key.startswith("valid") else 12)
        assert np.max(np.abs(one - other) / np.maximum(np.abs(one), 1e-2)) <= 1e-5, key
    last = rows[0][-1]
    z_loss = last["valid_loss"] - last["valid_bits_per_byte"] * math.log(2)
    assert rows[0][0]["loss"] - last["loss"] > 0.3 and 0 < z_loss < 0.1


@pytest.mark.exhaustive
def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("café\n".encode("latin-1"))
    for changes, message in (
        ({"vocab": 255}, "vocab is 255; the objective lines needs 256"),
        ({"data": {"train": "/nowhere.txt"}}, "cannot read /nowhere.txt: No such file or directory; check data.train"),
        ({"data": {"train": str(tmp_path / "latin.txt")}}, "latin.txt is not UTF-8: byte 3; convert it"),
        ({"objective": {"name": "lines", "options": {"revers": True}}}, "did you mean 'reverse'"),
    ):
        code, _, err = finish(start_alone(write(tmp_path / "run", **changes)))
        assert code == 2 and message in err and err.count("\n") == 1, err
