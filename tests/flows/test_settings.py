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
from gpt2train.errors import UserError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.folder import Folder
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from tasks.core.forgotten import Forgotten, url_hash
from tasks.outputs.forget.training import find_runs, read_by, write_settings
from tests.flows.small_tokens import TRAIN, prepare_scored_data
from tests.tasks.corpus import Inline


def test_flags_win_over_the_file_which_wins_over_the_preset(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('preset = "117m"\n[train]\nsteps = 7\n[train.schedule]\nwarmup = 2\n[dedup]\nthreshold = 0.7\n')
    settings = resolve(PipelineSettings, str(config), {"urls": ["a.txt"], "dedup": {"threshold": 0.6}})
    assert settings.dedup.threshold == 0.6
    assert settings.train.steps == 7
    assert settings.train.model.layers == 12


def test_the_demo_preset_serves_every_flow() -> None:
    demo = demo_layer()
    assert resolve(DataprepSettings).blacklist.shard_rows == demo["blacklist"]["shard_rows"]
    whole = resolve(PipelineSettings)
    assert whole.download.allow_private == ("127.0.0.0/8",)
    for source in ("urls", "warcs", "documents"):
        given = resolve(PipelineSettings, flags={source: ["x"]})
        assert given.has_source and given.download.allow_private == ()
    assert whole.preset == demo["preset"]
    # `flows.pretrain --preset` of the demo's trains the same on the tokens of `flows.dataprep`.
    assert whole.tokenizer == resolve(DataprepSettings).tokenizer
    assert whole.train == resolve(PretrainSettings, flags={"preset": demo["preset"]}).train


def test_one_file_serves_all_flows_and_mistakes_in_it_are_found(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('urls = ["a.txt"]\npreset = "117m"\n[evaluate]\nmax_documents = 3\n')
    found = resolve(DataprepSettings, str(config))
    assert found.urls == ("a.txt",) and found.tokenizer.name == "gpt2"  # that of the preset
    assert resolve(DataprepSettings, flags={"urls": ["a.txt"]}).tokenizer.name == "train"
    assert resolve(PretrainSettings, str(config)).preset == "117m"
    config.write_text("[evalute]\nmax_documents = 3\n")
    with pytest.raises(UserError, match="unknown setting 'evalute'"):
        resolve(DataprepSettings, str(config))


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
