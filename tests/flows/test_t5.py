"""docs/train/t5.md: its settings are valid, and its commands run at a small size, with the preset of the page too."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from flows.pretrain import pretrain
from flows.settings import PipelineSettings, PretrainFlowSettings, read_config, resolve
from gpt2train.cli import app, run_command
from gpt2train.config import CONFIG_FILE, read_run_config
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer, vocab_size
from gpt2train.data.training_data import packed_data
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.folder import Folder
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.docs.page_commands import run_line, small_line
from tests.flows.small_tokens import prepare_tokens
from tests.tasks.corpus import Inline, documents_of, row

PAGE = Path(__file__).parents[2] / "docs/train/t5.md"
TEXTS = Path(__file__).parents[1] / "data/text/speeches_dev.jsonl.gz"
SENTINELS = 12
SMALL: dict[str, Any] = {
    "steps": 2,
    "precision": "fp32",
    "device": "cpu",
    "model": {"hidden": 16, "heads": 2, "context": 32, "options": {"decoder_context": 16, "head_dim": 4, "inner": 24}},
    "objective": {"options": {"sentinel_count": SENTINELS}},
    "batch": {"micro_batch": 1, "global_batch": 2, "gradient_accumulation_steps": 0},
    "parallel": {"tp": 1},
    "schedule": {"warmup": 1, "warmup_fraction": 0.0, "decay_steps": 2},
    "logging": {"tensorboard": False},
}


def commands() -> list[str]:
    return re.findall(r"^    (\S.*)$", PAGE.read_text(encoding="utf-8"), re.M)


def test_the_settings_of_the_page_are_valid(tmp_path: Path) -> None:
    [shown] = re.findall(r"```toml.*?\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (tmp_path / "t5.toml").write_text(shown)
    settings = resolve(PipelineSettings, str(tmp_path / "t5.toml"), {"documents": ["texts.jsonl"]})
    assert settings.train.model.options["encoder_layers"] == 12 and settings.tokenizer.sentinels == 100
    assert settings.train.sample_length == 1137
    assert resolve(PretrainFlowSettings, str(tmp_path / "t5.toml")).train.model == settings.train.model
    assert "tokenizer" in read_config(str(tmp_path / "t5.toml"))


def test_a_trained_tokenizer_has_sentinels_at_its_end(tmp_path: Path) -> None:
    rows = [row("one two three " * 30, split="train")]
    with Inline(workers=1) as runner:
        documents = documents_of(Folder(tmp_path), rows, per_shard=1)
        settings = TokenizerSettings(vocab_size=290, sentinels=SENTINELS, min_frequency=1)
        tokenizer(Folder(tmp_path), documents, settings, runner)
    made = load_tokenizer(tmp_path / "tokenizer")
    size = vocab_size(made)
    assert size <= 290
    assert [made.token_to_id(f"<extra_id_{n}>") for n in range(SENTINELS)] == [size - 1 - n for n in range(SENTINELS)]
    assert made.token_to_id("<pad>") == size - SENTINELS - 1
    assert len(encode_ordinary(made, ["<extra_id_0>"])[0]) > 1  # a text is never parsed for them
    for wrong in ({"name": "folder", "folder": "x"}, {"algorithm": "sentencepiece_bpe"}):
        with pytest.raises(ValueError, match="sentinels can be added to gpt2 and to byte_bpe"):
            TokenizerSettings.model_validate({"sentinels": 5, **wrong})
    with pytest.raises(ValueError, match="give at least 358"):
        TokenizerSettings(vocab_size=300, sentinels=100)


@pytest.mark.slow
def test_the_preset_trains_merges_and_generates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = prepare_tokens(tmp_path / "out", sentinels=SENTINELS)
    flags = {"output": str(root), "preset": "t5-cpm", "train": SMALL, "launch": {"processes": 1}}
    planned = pretrain.planned(resolve(PretrainFlowSettings, flags=flags))
    planned.check()
    with Inline(workers=1) as runner:
        [training] = planned.recipe(runner)
    run = root / training.folder
    rows = read_metrics(run)
    assert len(rows) == 2 and rows[-1]["valid_loss"] > 0
    config = read_run_config(run / CONFIG_FILE)
    assert packed_data(config, "train").context == config.sample_length == 34
    merge, generate = commands()[-2:]
    run_line(merge.replace("out/runs/RUN", str(run)).replace("--output model", f"--output {tmp_path}/model"))
    words = generate.replace("--model model", f"--model {tmp_path}/model")
    answer = json.loads(run_line(f"{words} --max-new-tokens 5 --json"))
    assert 1 <= len(answer["tokens"]) <= 5
    capsys.readouterr()
    lambada = tmp_path / "lambada.jsonl"
    lambada.write_text('{"text": "one two three"}\n')
    for refused in (["evaluate", "lambada", "--data", str(lambada)], ["serve"]):
        assert run_command(app, [*refused, "--model", f"{tmp_path}/model", "--device", "cpu"]) == 2
        err = capsys.readouterr().err
        assert "has an encoder and a decoder (t5)" in err and err.count("\n") == 1


@pytest.mark.exhaustive
def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From texts to a trained model, with small sizes in a file of their own."""
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_bytes(gzip.decompress(TEXTS.read_bytes()))
    dataprep, training = (line for line in commands() if line.startswith("python -m flows") and "cpm" in line)
    Path("small.toml").write_text(tomli_w.dumps({"train": SMALL | {"parallel": {"tp": 2}}}))
    run_line(small_line(dataprep, "--tokenizer.vocab-size 300 --tokenizer.sentinels 12"))
    run_line(small_line(training, "--launch.processes 2 --config small.toml"))
    [run] = Path("cpm/runs").glob("t5-cpm-*")
    assert len(read_metrics(run)) == 2
