"""Layers of settings: defaults < preset < file < flags, what the demo changes, recipes, and settings of a removal."""

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.pretrain import pretrain
from flows.settings import (
    DataprepSettings,
    PipelineSettings,
    PretrainFlowSettings,
    PretrainSettings,
    demo_layer,
    resolve,
)
from flows.ui.flags import dump
from gpt2train.cli import app, run_command
from gpt2train.config import RunConfig, to_toml
from gpt2train.errors import UserError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import build, read_toml
from gpt2train.store.folder import Folder
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from tasks.core.forgotten import Forgotten, url_hash
from tasks.outputs.forget.training import find_runs, read_by, write_settings
from tests.flows.small_tokens import TRAIN, prepare_scored_data
from tests.gpt2train.jobs import finish, start_alone
from tests.tasks.corpus import Inline


def test_flags_win_over_the_file_which_wins_over_the_preset(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('preset = "117m"\n[train]\nsteps = 7\n[train.schedule]\nwarmup = 2\n[dedup]\nthreshold = 0.7\n')
    settings = resolve(PipelineSettings, str(config), {"urls": ["a.txt"], "dedup": {"threshold": 0.6}})
    assert settings.dedup.threshold == 0.6
    assert settings.train.steps == 7
    assert settings.train.model.layers == 12


def test_the_demo_preset_applies_to_the_demo_only() -> None:
    assert resolve(PipelineSettings).download.allow_private == ("127.0.0.0/8",)
    assert resolve(PipelineSettings, flags={"urls": ["a.txt"]}).download.allow_private == ()


def test_the_demo_preset_serves_every_flow() -> None:
    demo = demo_layer()
    assert resolve(DataprepSettings).blacklist.shard_rows == demo["blacklist"]["shard_rows"]
    whole = resolve(PipelineSettings)
    assert whole.preset == demo["preset"]
    # `flows.pretrain --preset` of the demo's trains the same on the tokens of `flows.dataprep`.
    assert whole.tokenizer == resolve(DataprepSettings).tokenizer
    assert whole.train == resolve(PretrainSettings, flags={"preset": demo["preset"]}).train


def test_one_file_serves_all_flows_and_mistakes_in_it_are_found(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('urls = ["a.txt"]\npreset = "117m"\n[evaluate]\nmax_documents = 3\n')
    assert resolve(DataprepSettings, str(config)).urls == ("a.txt",)
    assert resolve(PretrainSettings, str(config)).preset == "117m"
    config.write_text("[evalute]\nmax_documents = 3\n")
    with pytest.raises(UserError, match="unknown setting 'evalute'"):
        resolve(DataprepSettings, str(config))


def test_a_preset_is_a_layer_of_its_own() -> None:
    settings = resolve(PretrainSettings, flags={"preset": "345m", "train": {"steps": 9000}})
    assert (settings.train.model.layers, settings.train.model.hidden, settings.train.steps) == (24, 1024, 9000)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"preset": "117m"}, ("gpt2", None)),
        ({"preset": "megatron-345m", "tokenizer": {"folder": "bpe"}}, ("gpt2", "bpe")),
        ({"preset": "117m", "tokenizer": {"name": "train"}}, ("train", 4096)),
        ({"preset": "117m", "tokenizer": {"vocab_size": 8000}}, ("train", 8000)),
        ({"preset": "117m", "tokenizer": {"name": "folder", "folder": "mine"}}, ("folder", "mine")),
        ({"preset": "cpm-gpt2"}, ("train", 30_000)),
        ({"preset": "t5-cpm"}, ("train", 30_191)),
        ({"preset": "tiny"}, ("train", 4096)),
        ({}, ("train", 4096)),
    ],
)
def test_a_preset_has_gpt_2_s_vocabulary_unless_another_is_chosen(
    flags: dict[str, Any], expected: tuple[str, Any]
) -> None:
    found = resolve(PipelineSettings, flags={"documents": ["a.txt"], **flags}).tokenizer
    assert (found.name, found.vocab_size if found.name == "train" else found.folder) == expected


def test_the_data_flow_takes_the_vocabulary_of_the_preset_in_its_file(tmp_path: Path) -> None:
    assert resolve(DataprepSettings, flags={"documents": ["a.txt"]}).tokenizer.name == "train"
    (tmp_path / "mine.toml").write_text('documents = ["a.txt"]\npreset = "117m"\n')
    assert resolve(DataprepSettings, str(tmp_path / "mine.toml")).tokenizer.name == "gpt2"


def test_a_recipe_takes_the_place_of_a_preset() -> None:
    flags = {"recipe": "modern", "depth": 12, "train": {"seed": 7}}
    settings = resolve(PretrainSettings, flags=flags)
    assert settings.preset == "modern-12"
    assert settings.train == resolve(PretrainSettings, flags={"preset": "modern-12", "train": {"seed": 7}}).train
    small = resolve(PipelineSettings, flags={"documents": ["a.txt"], "recipe": "modern", "budget": "1e15"})
    assert (small.preset, small.train.model.layers, small.tokenizer.name) == ("modern-2", 2, "train")
    hours = resolve(PretrainSettings, flags={"recipe": "modern", "budget": "8h", "launch": {"processes": 1}})
    assert hours.train.model.family == "llama" and hours.train.steps > 1000
    with pytest.raises(UserError, match="leave one out"):
        resolve(PretrainSettings, flags={"preset": "345m", **flags})
    for found in (settings, small, hours):  # a command passes them to the flow, which resolves them again
        assert resolve(type(found), flags=dump(found, "json")) == found


def test_an_unknown_key_is_refused_with_its_full_path() -> None:
    with pytest.raises(UserError, match=r"unknown setting 'train.model.layer'; did you mean 'train.model.layers'"):
        resolve(PretrainSettings, flags={"train": {"model": {"layer": 3}}})


def test_every_field_has_a_help_text() -> None:
    """The same text is the flag's help and the hint in the form of the Prefect UI."""
    missing = []

    def check_fields(model: type, path: str) -> None:
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            if not field.description:
                missing.append(f"{path}.{name}")
            if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
                check_fields(field.annotation, f"{path}.{name}")

    check_fields(PipelineSettings, "pipeline")
    assert missing == []


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


def train(config: str | None = None, **flags: Any) -> Path:
    planned = pretrain.planned(resolve(PretrainFlowSettings, config, flags))
    planned.check()
    with Inline(workers=1) as runner:
        [trained] = planned.recipe(runner)
    return Path(planned.root.path(trained.folder))


@pytest.mark.slow
def test_a_training_goes_on_from_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = prepare_scored_data(tmp_path / "out")
    settings = {**TRAIN, "steps": 6, "device": "cpu", "checkpoints": {"interval": 2, "keep": 9}}
    run = train(data=str(out), output=str(out), train=settings, launch={"processes": 1})
    [found] = find_runs(Folder(out), None)
    assert found == run
    url = pq.read_table(out / "tokens/train/documents.parquet")["url"][0].as_py()
    reading = read_by(run, Forgotten(urls=(url_hash(url),)))
    assert reading.documents == 1
    reading = reading.model_copy(update={"checkpoint": "step-00000004", "steps": 1})
    path = write_settings(reading)
    assert path is not None
    shutil.move(out / "tokens", tmp_path / "before")
    shutil.copytree(tmp_path / "before", out / "tokens")
    with caplog.at_level(logging.INFO):
        other = train(str(path))
    assert other != run and list_checkpoints(run)
    assert newest_checkpoint(other).name == "step-00000002"
    assert [row["step"] for row in read_metrics(other) if "loss" in row] == [1, 2]
    assert str(run / "checkpoints/step-00000004") in (other / "config.toml").read_text()
