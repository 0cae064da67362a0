"""Run files of other systems' trainings: source of each value, refused and hostile sources."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from gpt2train.cli import app, run_command
from gpt2train.config import TrainSettings, read_run_config
from gpt2train.config.foreign_run import convert, foreign_run, nested
from gpt2train.errors import UserError
from gpt2train.foreign.read import read_foreign
from gpt2train.settings import build
from tests.gpt2train.config.foreign_scripts import DEEPSPEED, MEGATRON, as_line

ALIASES = "b0: &b0 [1, 2]\n" + "".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 60))


def test_every_value_has_its_source_and_the_rest_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = as_line("torchrun --nproc_per_node 4 pretrain_gpt.py", MEGATRON) + " --data-impl mmap --save c --no-such 1"
    arguments = ["config", "--from", line, "--train", "tokens/a", "--vocab", "50304", "--output", "runs/a"]
    assert run_command(app, arguments) == 0
    text, note = capsys.readouterr()
    assert "#     --save c: a run has a folder of its own; --output names it\n" in text
    assert "3 names without a counterpart" in note
    assert "#     --data-impl mmap: token files are always memory-mapped" in text
    assert "#     --no-such 1: not known" in text
    assert "--nproc-per-node 4 -m gpt2train.train" in text
    assert "lr = 0.00015 # --lr 0.00015\n" in text
    assert "beta2 = 0.999 # Megatron-LM's default\n" in text
    assert 'precision = "fp16" # --fp16\n' in text
    (tmp_path / "run.toml").write_text(text)
    config = read_run_config("run.toml")
    assert (config.data.train, config.vocab, config.output) == ("tokens/a", 50304, "runs/a")
    made = convert(read_foreign(line))
    expected = build(TrainSettings, {k: v for k, v in nested(made.settings).items() if k in TrainSettings.model_fields})
    assert config.model_dump(include=set(TrainSettings.model_fields)) == expected.model_dump()
    unsourced = [one for one in text.splitlines() if "=" in one and not one.startswith("#") and " # " not in one]
    sourced = [one for one in text.splitlines() if " # " in one and not one.startswith("#")]
    assert len(sourced) >= len(MEGATRON) - 2 and unsourced


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "a.json is not valid JSON"),
        ("a.json", "[" * 100_000, "a.json is not valid JSON"),
        ("a.json", "[1]", "no table of names and values"),
        ("a.json", '{"x": 1}', "has no name of a system that is known"),
        ("a.json", '{"optimizer": ' * 30 + "1" + "}" * 30, "20 levels"),
        ("a.json", json.dumps({f"x{n}": 1 for n in range(6000)}), "more than 5,000 values"),
        ("a.yaml", ALIASES, "more than 5,000"),
        ("a.yaml", "a: [", "is not valid YAML"),
        ("a.py", "x = (", "is no config in Python"),
        ("a.sh", "ls -l\n", "no command in a.sh"),
        ("a.sh", "x" * 200_000, "has more than"),
        ("a.py", "\udcff", "is no text"),
        ("a.toml", "steps = 3\n[model]\nlayers = 2\n[batch]\nmicro_batch = 1\n", "has settings of gpt2train already"),
        ("a.sh", "python pretrain_gpt.py --num-layers 24 --lr 50", "--lr 50: "),
        ("a.sh", "python pretrain_gpt.py --num-layers many", "--num-layers many: "),
        ("a.json", '{"train_batch_size": 1e400, "gradient_clipping": "x"}', "train_batch_size = inf: "),
    ],
    ids=range(16),
)  # fmt: skip
def test_hostile_sources_are_refused_in_one_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as refused:
        foreign_run(str(tmp_path / name), None, None, None, None)
    error = str(refused.value)
    assert message in error and "\n" not in error and len(error) < 700


def test_given_data_take_the_place_of_theirs() -> None:
    line = f"{as_line('python pretrain_gpt.py', MEGATRON)} --data-path theirs --split 949,50,1 --vocab-size 50304"
    text, _ = foreign_run(line, None, None, None, None)
    config = tomllib.loads(text)
    assert (config["data"]["train"], config["data"]["split"], config["vocab"]) == ("theirs", "949,50,1", 50304)
    text, _ = foreign_run(line, "ours", "held", 50257, "runs/x")
    config = tomllib.loads(text)
    assert config["data"] == {"train": "ours", "valid": "held"}
    assert (config["vocab"], config["output"]) == (50257, "runs/x")


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    commands = ("echo hello world", "python x.py --seed 1 --n 2", "")
    for source in (str(tmp_path / "no.sh"), "\0", "x" * 5000, str(tmp_path), *commands):
        with pytest.raises(UserError):
            read_foreign(source)


@pytest.mark.parametrize("name", ["wandb-project", "nproc_per_node", "no-such", "data-path", "load", "nnodes"])
def test_a_value_cannot_end_its_remark(name: str, tmp_path: Path) -> None:
    hostile = shlex.quote("a\nlayers = 99\n[model]\r#x\u2028y\x1b[2J")
    line = f"python pretrain_gpt.py --num-layers 2 --lr 1e-4 --{name} {hostile} --a{hostile} 1 $({hostile})"
    text, _ = foreign_run(line, None, None, None, None)
    (tmp_path / "run.toml").write_text(text)
    assert read_run_config(tmp_path / "run.toml").model.layers == 2
    assert "\nlayers = 99" not in text and "\x1b" not in text


def test_a_config_of_another_system_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "ds_config.json": (json.dumps(DEEPSPEED), "DeepSpeed in JSON"),
        "gpt2.py": ("batch_size = 12\nblock_size = 1024\nn_layer = 12\n", "nanoGPT in Python"),
        "lit.yaml": ("train:\n  max_tokens: 5\n  micro_batch_size: 4\n", "LitGPT in YAML"),
        "axolotl.yml": ("base_model: x\nsequence_len: 2048\nsample_packing: true\n", "Axolotl in YAML"),
        "run.sh": ("python pretrain_gpt.py --num-layers 2\n", "Megatron-LM in shell"),
        "plain.json": ('{"num_train_epochs": 3, "per_device_train_batch_size": 4}', "transformers' Trainer in JSON"),
    }
    for name, (text, kind) in files.items():
        (tmp_path / name).write_text(text)
        assert run_command(app, ["plan", "--config", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert kind in error and f"gpt2train config --from {tmp_path / name}" in error and error.count("\n") == 1
    (tmp_path / "titan.toml").write_text("[training]\nseq_len = 2048\n")
    assert run_command(app, ["plan", "--config", str(tmp_path / "titan.toml")]) == 2
    error = capsys.readouterr().err
    assert "configs of torchtitan have it" in error and "gpt2train config --from FILE" in error
    (tmp_path / "own.toml").write_text("steps = \n")
    assert run_command(app, ["plan", "--config", str(tmp_path / "own.toml")]) == 2
    assert "is not valid TOML" in capsys.readouterr().err
