"""A training by a recipe: the flow's command and the file of `gpt2train config` take the same steps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2train.cli import app, run_command
from gpt2train.config import RunConfig, to_toml
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import build, read_toml
from tests.flows.small_tokens import prepare_scored_data
from tests.gpt2train.jobs import finish, start_alone

COLUMNS = ("step", "loss", "grad_norm", "lr", "valid_loss", "valid_bits_per_byte")
SHORT = {"steps": 3, "schedule": {"warmup": 1}, "model": {"context": 16}, "validation": {"interval": 2}}
FLAGS = "--train.steps 3 --train.schedule.warmup 1 --train.model.context 16 --train.validation.interval 2"


def steps(run: Path | str) -> list[dict[str, float]]:
    return [{name: row[name] for name in COLUMNS if name in row} for row in read_metrics(run)]


@pytest.mark.exhaustive
def test_the_flow_and_the_file_of_a_recipe_train_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = prepare_scored_data(tmp_path / "out")
    recipe = ["--recipe", "modern", "--depth", "1"]
    command = [sys.executable, "-m", "flows.pretrain", *recipe, "--data", str(out), "--output", str(out)]
    command += [*FLAGS.split(), "--train.device", "cpu", "--launch.processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (out / "runs").glob("modern-1-*")
    expected = steps(run)
    assert [row["step"] for row in expected] == [1, 2, 3] and "valid_bits_per_byte" in expected[1]

    tokens = ["--train", str(out / "tokens/train/tokens"), "--valid", str(out / "tokens/valid/tokens")]
    capsys.readouterr()
    assert run_command(app, ["config", *recipe, *tokens, "--vocab", "300", "--output", str(tmp_path / "run")]) == 0
    file = tmp_path / "run.toml"
    file.write_text(capsys.readouterr().out)
    file.write_text(to_toml(build(RunConfig, read_toml(str(file)), {**SHORT, "device": "cpu"})))
    code, shown, errors = finish(start_alone(str(file)))
    assert code == 0, shown + errors
    assert steps(tmp_path / "run") == expected


@pytest.mark.slow
def test_the_deployment_for_gpt2_ends_when_the_goal_is_passed(tmp_path: Path) -> None:
    out, tasks = prepare_scored_data(tmp_path / "out"), tmp_path / "evaluation/commonsense_reasoning"
    tasks.mkdir(parents=True)
    rows = [{"query": f"Anna saw {n}", "choices": ["the harbour", "nobody"], "gold": n % 2} for n in range(6)]
    (tasks / "copa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "flows.pretrain", "--config", "pretrain/gpt2", "--output", str(out)]
    command += ["--budget", "1e13", "--train.device", "cpu", "--launch.processes", "1", "--train.steps", "3"]
    for name, value in (("batch.micro-batch", 2), ("batch.global-batch", 4), ("schedule.warmup", 1)):
        command += [f"--train.{name}", str(value)]
    for name in ("tasks", "train.validation.tasks"):
        command += [f"--{name}.data", str(tmp_path / "evaluation"), f"--{name}.partial"]
    command += ["--train.validation.interval", "2", "--train.validation.tasks.every", "1"]
    goal = ["--train.validation.stop-at.valid_task_core_centred", "-2"]
    done = subprocess.run([*command, *goal], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (out / "runs").glob("modern-2-*")
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    assert "finished at step 2 of 3: reached valid_task_core_centred" in (run / "logs/rank-0.log").read_text()
    assert json.loads((run / "eval/core.json").read_text())
