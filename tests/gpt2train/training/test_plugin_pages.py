"""Model, data and loss of docs/develop/parallelise-your-model.md and add-an-objective.md, installed elsewhere."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from gpt2train.monitoring.metrics import read_metrics
from tests.gpt2train.jobs import finish, start, start_alone
from tests.tasks.plugin_page import ROOT, files_of, install, installed, installed_for_all_processes, run

__all__ = ["installed", "installed_for_all_processes"]

TRAIN_RUNS = ROOT / "tests/gpt2train/parity/train_runs.py"
PAGE = "parallelise-your-model.md"
# Each row is one job: processes, and the layouts that it trains one after the other.
LAYOUTS: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {
    "tp and pp": (2, {"tp": {"tp": 2}, "pp": {"pp": 2}}),
    "zero": (2, {"zero-0": {"zero": 0}, "zero-3": {"zero": 3}}),
    "four": (4, {"tp-pp": {"tp": 2, "pp": 2}, "pp-zero": {"pp": 2, "zero": 1}}),
}


def write(folder: Path, parallel: dict[str, Any], **changes: Any) -> str:
    settings = tomllib.loads(files_of(PAGE)["sums.toml"])
    settings |= {"output": str(folder), "steps": 20, "device": "cpu", "parallel": parallel}
    settings |= {"logging": {"tensorboard": False}, "validation": {"interval": 10, "samples": 30}}
    settings["schedule"] |= {"warmup": 2, "decay_steps": 20}
    path = folder.with_suffix(".toml")
    path.write_text(tomli_w.dumps(settings | changes))
    return str(path)


@pytest.fixture(scope="module")
def reference(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{installed}")
        code, _, err = finish(start_alone(write(folder, {})))
    assert code == 0, err
    return folder


def column(run: Path, key: str) -> np.ndarray:
    return np.array([row[key] for row in read_metrics(run) if key in row])


@pytest.mark.exhaustive
@pytest.mark.parametrize("job", list(LAYOUTS))
def test_layouts_have_the_losses_of_one_process(job: str, reference: Path, tmp_path: Path) -> None:
    processes, layouts = LAYOUTS[job]
    runs = [tmp_path / name for name in layouts]
    files = [write(run, parallel) for run, parallel in zip(runs, layouts.values(), strict=True)]
    code, _, err = finish(start(str(TRAIN_RUNS), *files, processes=processes))
    assert code == 0, err
    assert column(reference, "loss")[-1] < column(reference, "loss")[0] - 0.5  # it learns
    for one in runs:
        refusal = one.with_suffix(".error")
        assert not refusal.exists(), refusal.read_text()
        for key in ("loss", "grad_norm", "valid_loss", "valid_accuracy"):
            ours, theirs = column(one, key), column(reference, key)
            assert len(ours) == len(theirs) == (2 if key.startswith("valid") else 20)
            assert np.max(np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1e-2)) <= 1e-5, (one.name, key)


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


@pytest.mark.slow
def test_data_and_loss_of_an_objective_are_those_of_plain_loops(tmp_path: Path) -> None:
    install("add-an-objective.md", tmp_path)
    (tmp_path / "train.txt").write_text(TEXT)
    done = run(AGAINST_LOOPS, str(tmp_path / "train.txt"), plugins=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) > 0
