"""Wrong settings and damaged data: each is refused before the first step, in one line, with its exit code.

All cases run on one rank, one after the other, as `python -m gpt2train.train` would run each.
"""

import importlib
import json
import math
import os
import pkgutil
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

import flows
import gpt2train
import tasks
from gpt2train.config import RunConfig, TrainSettings, to_toml
from gpt2train.settings import Settings, build
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.indexed_writer import IndexedWriter
from tests.gpt2train.jobs import make, write_tokens

HERE = Path(__file__).parent
WRONG: dict[str, tuple[str, Any, int, str]] = {  # name: setting, value, exit code, message
    "unknown key": ("optimizer.learning_rate", 1e-3, 2, r"unknown setting 'optimizer\.learning_rate'"),
    "negative lr": ("optimizer.lr", -1.0, 2, r"optimizer\.lr: "),
    "word for lr": ("optimizer.lr", "fast", 2, r"optimizer\.lr: .*got 'fast'"),
    "nan lr": ("optimizer.lr", math.nan, 2, r"optimizer\.lr: .*finite"),  # other numbers: below
    "huge lr": ("optimizer.lr", 1e30, 2, r"optimizer\.lr: .*less than or equal to 1"),
    "heads": ("model.heads", 5, 2, r"hidden 32 is not a multiple of heads 5"),
    "batch": ("batch.global_batch", 25, 2, r"global_batch 25 is not a multiple"),
    "no batch": ("batch", {"micro_batch": 0, "global_batch": 0}, 2, r"at least two of"),
    "huge batch": ("batch.global_batch", 10**30, 2, r"batch\.global_batch: "),
    "tp on one process": ("parallel.tp", 2, 2, r"tp 2 x pp 1 = 2 does not divide the 1 process"),
    "warm-up over all steps": ("schedule.warmup", 400, 2, r"warmup 400 must be below steps 4"),
    "min_lr over lr": ("schedule.min_lr", 0.5, 2, r"min_lr 0\.5 is above optimizer\.lr"),
    "precision": ("precision", "fp8", 2, r"precision: "),
    "vocabulary too small": ("vocab", 50, 2, r"train\.bin contains the token id \d+, but the vocabulary has 50"),
    "vocabulary of one": ("vocab", 1, 2, r"vocab: "),
    "no data": ("data.train", "/nowhere/x", 2, r"/nowhere/x"),
    "data of one sample": ("data.train", "DATA/short", 2, r"short"),
    "data of another vocabulary": ("data.train", "DATA/other", 2, r"other\.bin contains the token id"),
    "truncated tokens": ("data.train", "DATA/cut", 1, r"cut\.bin"),
    "index of another corpus": ("data.train", "DATA/mixed", 1, r"mixed\.bin"),
    "truncated index": ("data.train", "DATA/cut-index", 1, r"cut-index"),
    "empty tokens": ("data.train", "DATA/empty", 1, r"empty"),
    "text for an index": ("data.train", "DATA/text", None, r"text"),
    "validation data of one sample": ("data.valid", "DATA/short", 2, r"short"),
    "context over the data": ("model.context", 200_000, 2, r"200,?000|context"),
    "no GPU": ("device", "cuda", 2, r"device cuda: torch finds no GPU"),
    "output that cannot be written": ("output", "/proc/x", 2, r"/proc/x"),
    "output that is a file": ("output", "DATA/train.bin", 2, r"train\.bin"),
    "interleaved without a pipeline": ("parallel.schedule", "interleaved", 2, r"interleaved schedule needs"),
    "shard without ZeRO": ("parallel.dp_shard_degree", 2, 2, r"parallel\.dp_shard_degree 2 needs parallel\.zero"),
    "no clipping norm": ("optimizer.max_grad_norm", 0, 2, r"optimizer\.max_grad_norm: "),
    "dropout of all": ("model.dropout", 1.0, 2, r"model\.dropout: "),
    "no steps": ("steps", 0, 2, r"steps: "),
    "steps beyond integers": ("steps", 10**30, 2, r"steps: "),
    "schedule": ("schedule.kind", "cosin", 2, r"schedule\.kind: "),
    "compiling": ("performance.compile", "fast", 2, r"performance\.compile: "),
    "half stream": ("performance.stream", "bf16", 2, r'stream "bf16" needs precision bf16, not fp32'),
    "negative seed": ("seed", -1, 2, r"seed: "),
    "weight decay of a list": ("optimizer.weight_decay", [1], 2, r"optimizer\.weight_decay: "),
    "decay over the weight": ("optimizer", {"lr": 0.5, "weight_decay": 2.0}, 2, r"weight_decay 2 must be below 1"),
    "no eps": ("optimizer.eps", 0.0, 2, r"optimizer\.eps: "),
    "eps below float32": ("optimizer.eps", 1e-50, 2, r"optimizer\.eps: "),
    "beta that rounds to 1": ("optimizer.beta2", 1 - 1e-12, 2, r"optimizer\.beta2: "),
    "loss scale below its minimum": ("scaler.minimum", 2.0**20, 2, r"minimum 1.*e\+06 is above initial 65536"),
    "hidden beyond memory": ("model.hidden", 2**40, 2, r"model\.hidden: "),
}


def write_data(folder: Path) -> None:
    """Sound tokens, and what can be wrong about token files."""
    write_tokens(folder)
    for name, documents in (("short", [[1, 2, 3]]), ("other", [list(range(0, 5000, 7)) * 4])):
        with IndexedWriter(folder / name, "<u2") as writer:
            for document in documents:
                writer.add(document)
    for name, index in (("cut", "train"), ("mixed", "valid"), ("cut-index", "train")):
        shutil.copy(folder / "train.bin", folder / f"{name}.bin")
        shutil.copy(folder / f"{index}.idx", folder / f"{name}.idx")
    os.truncate(folder / "cut.bin", 1001)
    os.truncate(folder / "cut-index.idx", 100)
    (folder / "empty.bin").touch()
    shutil.copy(folder / "train.idx", folder / "empty.idx")
    (folder / "text.bin").write_text("hello")
    (folder / "text.idx").write_text("hello world, this is a text and no index at all")


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of each case."""
    folder = tmp_path_factory.mktemp("wrong")
    write_data(folder)
    cases = []
    for number, (setting, value, _, _) in enumerate(WRONG.values()):
        config = make(folder, folder / f"run-{number}", steps=4).model_dump(mode="json", exclude_none=True)
        *path, last = setting.split(".")
        inner = config
        for key in path:
            inner = inner[key]
        value = value.replace("DATA", str(folder)) if isinstance(value, str) else value
        inner[last] = inner[last] | value if isinstance(value, dict) else value
        (folder / f"{number}.toml").write_text(tomli_w.dumps(config))
        cases.append({"name": str(number), "arguments": ["--config", str(folder / f"{number}.toml")]})
    (folder / "cases.json").write_text(json.dumps(cases))
    (out := folder / "out").mkdir()
    run_ranks(HERE / "command_cases.py", str(folder / "cases.json"), str(out), processes=1)
    return {
        name: (int((out / f"{number}.0.code").read_text()), (out / f"{number}.0.txt").read_text())
        for number, name in enumerate(WRONG)
    }


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_one_error_line(endings: dict[str, tuple[int, str]], name: str) -> None:
    _, _, expected, message = WRONG[name]
    code, screen = endings[name]
    errors = [line for line in screen.splitlines() if line.startswith("error: ")]
    assert code == expected if expected else code in (1, 2), screen
    assert len(errors) == 1 and re.search(message, errors[0]), screen
    assert "step 1/" not in screen and "Traceback" not in screen


def modules(package: ModuleType) -> list[ModuleType]:
    """Every module of a package that defines settings."""
    found = []
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        path = Path(str(info.module_finder.path), *info.name.split(".")[-1:])  # type: ignore[union-attr]
        text = path.with_suffix(".py").read_text(encoding="utf-8") if path.with_suffix(".py").is_file() else ""
        if "(Settings)" in text and not info.name.endswith("__main__"):
            found.append(importlib.import_module(info.name))
    return found


def test_no_settings_model_accepts_a_non_finite_number() -> None:
    tried = 0
    for module in [found for package in (gpt2train, tasks, flows) for found in modules(package)]:
        for model in vars(module).values():
            if not (isinstance(model, type) and issubclass(model, Settings) and model.__module__ == module.__name__):
                continue
            for name in (name for name, field in model.model_fields.items() if field.annotation is float):
                for value in (math.inf, -math.inf, math.nan):
                    with pytest.raises(ValidationError) as caught:
                        model.model_validate({name: value})
                    refused = [error["loc"] for error in caught.value.errors()]
                    assert (name,) in refused, f"{model.__name__}.{name} takes {value}"
                    tried += 1
    assert tried > 100


def test_every_default_is_within_its_bounds() -> None:
    assert build(TrainSettings, {})
    assert to_toml(build(TrainSettings, {"seed": 2**53 - 1}))
    assert RunConfig.model_config["allow_inf_nan"] is False
