"""Settings of a run: presets, arithmetic, refusals, the way to TOML and back."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.cli import app
from gpt2train.config import (
    BatchSettings,
    RunConfig,
    TrainSettings,
    preset,
    presets,
    read_run_config,
    run_config,
    to_toml,
)
from gpt2train.config.commented import commented
from gpt2train.errors import UserError
from gpt2train.io.command_line import run_command
from gpt2train.model.families import parameter_count
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.settings import build

PUBLISHED = {
    "117m": 124_475_904,
    "345m": 354_871_296,
    "762m": 774_090_240,
    "1542m": 1_557_686_400,
    "oneflow-1x8": 532_147_200,
    "oneflow-4x8": 1_647_806_976,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_presets_have_the_published_sizes(name: str) -> None:
    settings = build(TrainSettings, preset(name))
    config = run_config(settings, train="t", valid=None, vocab=50257, tokenizer_hash=None, output="o")
    with torch.device("meta"):
        model = GPT2(config.shape)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name] == parameter_count(config.shape)


def test_every_preset_is_valid_and_documented() -> None:
    assert presets() == sorted([*PUBLISHED, "tiny"])
    for name in presets():
        settings = build(TrainSettings, preset(name))
        assert settings.batch.sizes(1)[2] >= 1


def test_the_distributed_presets_use_all_gpus_of_their_machines() -> None:
    four = Layout.of(build(TrainSettings, preset("oneflow-4x8")), 32)
    assert (four.tp, four.pp, four.data, four.world) == (2, 4, 4, 32)
    assert (four.micro_batch, four.global_batch, four.accumulation) == (4, 512, 32)
    one = Layout.of(build(TrainSettings, preset("oneflow-1x8")), 8)
    assert (one.tp, one.pp, one.data, one.shard) == (1, 1, 8, 8)


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown preset '345M'; did you mean '345m'\?"):
        preset("345M")
    with pytest.raises(UserError, match="choose: 117m, 1542m, 345m, 762m, oneflow-1x8, oneflow-4x8, tiny"):
        preset("llama")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optimizer]\nlearning_rate = 1", "unknown setting 'optimizer.learning_rate'"),
        ("[optimizer]\nlrr = 1", r"did you mean 'optimizer.lr'\?"),
        ("steps = 10\n[schedule]\nwarmup = 10", "schedule.warmup 10 must be below steps 10"),
        ("[model]\nheads = 7", "hidden 768 is not a multiple of heads 7"),
        ("[schedule]\nmin_lr = 1.0", "schedule.min_lr 1 is above optimizer.lr"),
        ("precision = 'fp8'", "precision"),
    ],
)
def test_mistakes_are_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build(TrainSettings, tomllib.loads(text))
    assert "\n" not in str(caught.value)


def test_run_config_reads_back_from_its_toml(tmp_path: Path) -> None:
    settings = build(TrainSettings, preset("tiny"))
    config = run_config(settings, train="a/t", valid=None, vocab=4096, tokenizer_hash="abc", output="out")
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert read_run_config(tmp_path / "c.toml") == config
    with pytest.raises(UserError, match="no-such"):
        read_run_config(tmp_path / "no-such.toml")


def test_corpora_of_the_mixture_are_added_to_the_tokens_of_the_run(tmp_path: Path) -> None:
    mix = {"weight": 3, "corpora": [{"prefix": "b/t"}, {"prefix": "c/t", "weight": 0.5}]}
    settings = build(TrainSettings, {"mixture": mix})
    config = run_config(settings, train="a/t", valid=None, vocab=4096, tokenizer_hash=None, output="out")
    found = [(corpus.prefix, corpus.weight) for corpus in config.data.corpora]
    assert found == [("a/t", 3), ("b/t", 1), ("c/t", 0.5)]
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert read_run_config(tmp_path / "c.toml") == config
    with pytest.raises(UserError, match="as a list of"):
        build(RunConfig, config.model_dump(), {"mixture": mix})
    with pytest.raises(UserError, match="at least one corpus"):
        build(RunConfig, config.model_dump(), {"data": {"train": []}})


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_batch_sizes_follow_from_each_other(micro: int, processes: int, accumulation: int) -> None:
    batch = BatchSettings(micro_batch=micro, global_batch=micro * processes * accumulation)
    assert batch.sizes(processes) == (micro, micro * processes * accumulation, accumulation)


def test_a_batch_that_does_not_divide_is_refused_with_the_calculation() -> None:
    with pytest.raises(
        UserError, match=r"16 is not a multiple of micro_batch 4 x 3 data-parallel processes = 12; set it to 12 or 24"
    ):
        BatchSettings(micro_batch=4, global_batch=16).sizes(3)
    with pytest.raises(UserError, match="set it to 12,"):
        BatchSettings(micro_batch=4, global_batch=8).sizes(3)


def test_vocabulary_is_padded_for_matrix_kernels() -> None:
    assert Shape(vocab=50257, layers=1, heads=1, hidden=8, context=8).padded_vocab == 50304


@pytest.mark.parametrize("name", presets())
def test_a_commented_file_reads_back_as_the_preset(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has every setting, set or as a comment, with its description."""
    flags = ["--train", "t/tokens", "--valid", "v/tokens", "--vocab", "300", "--output", "run"]
    assert run_command(app, ["config", "--preset", name, *flags]) == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    given = {"data": {"train": "t/tokens", "valid": "v/tokens"}, "vocab": 300, "output": "run"}
    assert read_run_config(tmp_path / "run.toml") == build(RunConfig, preset(name), given)
    lines = (tmp_path / "run.toml").read_text().splitlines()
    for model in (RunConfig, *(type(value) for _, value in RunConfig.model_validate(preset(name) | given))):
        for field in getattr(model, "model_fields", {}):
            assert any(re.match(rf"(\[(.*\.)?{field}\]$|{field} = |# {field} is not set)", line) for line in lines), (
                field
            )
    assert max(map(len, lines)) <= 120 and "# Seed of the initial weights" in "\n".join(lines)


def test_a_commented_list_of_corpora_reads_back(tmp_path: Path) -> None:
    corpora = [{"prefix": 'a "quoted" \\ name', "weight": 1.5}, {"prefix": "b", "weight": 2}]
    config = build(RunConfig, {"data": {"train": corpora}, "vocab": 300, "output": "run"})
    (tmp_path / "run.toml").write_text(commented(config))
    assert read_run_config(tmp_path / "run.toml") == config


def test_an_unknown_preset_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["config", "--preset", "354m"]) == 2
    assert "'345m'" in capsys.readouterr().err
