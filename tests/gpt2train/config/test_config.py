"""Settings of a run: presets, arithmetic, refusals, the way to TOML and back."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

from gpt2train.cli import app, run_command
from gpt2train.config import (
    Corpus,
    RampUp,
    RunConfig,
    TrainSettings,
    preset,
    presets,
    read_run_config,
    resolve_epochs,
    run_config,
    to_toml,
)
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.config.commented import commented
from gpt2train.errors import UserError
from gpt2train.model.families import parameter_count
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.parallel.layout import Layout
from gpt2train.settings import build

PUBLISHED = {
    "117m": 124_475_904,
    "345m": 354_871_296,
    "762m": 774_090_240,
    "1542m": 1_557_686_400,
    "megatron-345m": 354_871_296,
    "oneflow-117m": 124_475_904,
    "oneflow-345m": 354_871_296,
    "oneflow-1x8": 533_720_064,
    "oneflow-4x8": 1_650_166_272,
    "colossalai-gpt2-small": 124_475_904,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_presets_have_the_published_sizes(name: str) -> None:
    settings = build(TrainSettings, preset(name))
    config = run_config(settings, train="t", valid=None, vocab=50257, tokenizer_hash=None, output="o")
    with torch.device("meta"):
        model = GPT2(config.shape)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name] == parameter_count(config.shape)


def test_every_preset_is_valid_and_documented() -> None:
    assert presets() == sorted([*PUBLISHED, "cpm-gpt2", "t5-cpm", "tiny", "modern-12", "modern-24", "modern-tiny"])
    for name in presets():
        settings = build(TrainSettings, preset(name))
        assert settings.batch.sizes(2 if name == "oneflow-1x8" else 1)[2] >= 1


@pytest.mark.parametrize(
    ("name", "processes", "degrees", "batch"),
    [
        ("oneflow-4x8", 32, (2, 4, 4), (8, 512, 32)),
        ("oneflow-1x8", 8, (2, 4, 1), (8, 16, 1)),
        ("cpm-gpt2", 4, (1, 2, 2), (4, 64, 16)),
        ("t5-cpm", 4, (2, 2, 1), (4, 128, 16)),
        ("colossalai-gpt2-small", 4, (4, 1, 1), (2, 8, 1)),
    ],
)
def test_the_distributed_presets_use_all_gpus_of_their_machines(
    name: str, processes: int, degrees: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    """DP x TP x PP; micro-batch, global batch and accumulation."""
    layout = Layout.of(build(TrainSettings, preset(name)), processes)
    assert (layout.data, layout.tp, layout.pp) == degrees and layout.world == processes
    assert (layout.micro_batch, layout.global_batch, layout.accumulation) == batch


def test_settings_that_are_off_change_no_file() -> None:
    """So that existing runs, whose folders are named after all settings, go on."""
    dumped = build(TrainSettings, {}).model_dump()
    assert "offload_placement" not in dumped["parallel"]
    assert "epochs" not in dumped and "decay_steps" not in dumped["schedule"] and "max_positions" not in dumped["model"]


def test_epochs_determine_the_steps() -> None:
    settings = build(TrainSettings, {"epochs": 3, "schedule": {"warmup": 50}})
    assert resolve_epochs(settings, 100, BatchPlan(8)).steps == 38  # 300 samples, rounded up
    assert resolve_epochs(settings, 1, BatchPlan(8)).steps == 1
    half = build(TrainSettings, {"epochs": 0.5})
    assert resolve_epochs(half, 100, BatchPlan(8)).steps == 7
    plain = build(TrainSettings, {"steps": 200})
    assert resolve_epochs(plain, 100, BatchPlan(8)) is plain
    ramp = BatchPlan(4, RampUp(start=2, increment=1, samples=8))  # 2, 2, 3, 3, 4, 4 …
    assert resolve_epochs(half, 20, ramp).steps == 4


def test_an_unknown_preset_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="choose: 117m, 1542m, 345m, 762m, colossalai-gpt2-small, cpm-gpt2, megatron-"):
        preset("llama")
    assert run_command(app, ["config", "--preset", "345M"]) == 2
    assert "unknown preset '345M'; did you mean '345m'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optimizer]\nlearning_rate = 1", "unknown setting 'optimizer.learning_rate'"),
        ("[optimizer]\nlrr = 1", r"did you mean 'optimizer.lr'\?"),
        ("steps = 10\n[schedule]\nwarmup = 10", "schedule.warmup 10 must be below steps 10"),
        ("[schedule]\nwarmup = 10\ndecay_steps = 10", "schedule.warmup 10 must be below schedule.decay_steps 10"),
        ("[model]\nmax_positions = 512", "max_positions 512 is below context 1024; raise it, or set 0"),
        ("epochs = -1", "epochs"),
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
    corpora = [corpus.model_dump() | {"weight": 0} for corpus in config.data.corpora]
    with pytest.raises(UserError, match="all weights are 0"):
        build(RunConfig, config.model_dump(), {"data": {"train": corpora}})
    left = build(RunConfig, config.model_dump(), {"data": {"train": [*corpora[1:], {"prefix": "a/t"}]}})
    assert left.data.corpora == (Corpus(prefix="a/t"),)  # as without the others


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
            named = re.compile(rf"(\[(.*\.)?{field}\]$|{field} = |# {field} is not set)")
            assert any(map(named.match, lines)), field
    assert max(map(len, lines)) <= 120 and "# Seed of the initial weights" in "\n".join(lines)


def test_a_commented_list_of_corpora_reads_back(tmp_path: Path) -> None:
    corpora = [{"prefix": 'a "quoted" \\ name', "weight": 1.5}, {"prefix": "b", "weight": 2}]
    config = build(RunConfig, {"data": {"train": corpora}, "vocab": 300, "output": "run"})
    (tmp_path / "run.toml").write_text(commented(config))
    assert read_run_config(tmp_path / "run.toml") == config


def test_the_zero_stage_may_be_the_text_of_a_flag() -> None:
    """cyclopts passes `--train.parallel.zero 1` on as text, since the type is a choice of numbers."""
    assert build(TrainSettings, {"parallel": {"zero": "1"}}).parallel.zero == 1
    for wrong in ("4", "one", "-1"):
        with pytest.raises(UserError, match=r"parallel\.zero: input should be 0, 1, 2 or 3"):
            build(TrainSettings, {"parallel": {"zero": wrong}})
