"""Refused trainings: wrong settings, damaged data, and a disk that takes no more.

Each is one error line of rank 0, an exit code, and the end of every rank. All cases run on the same two real ranks, one
after the other, as `python -m gpt2train.train` would run each; each joins and leaves a process group of its own.
"""

import importlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

from gpt2train.checkpoint.manifest import verify
from gpt2train.launch.rank_process import lock_run_folder
from gpt2train.settings import Settings
from gpt2train.store.run_folder import list_checkpoints
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.indexed_writer import IndexedWriter
from tests.gpt2train.jobs import make, write_tokens
from tests.small_disk import small_disk

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGES = ("gpt2train.", "tasks.", "flows.")
WRONG: dict[
    str, tuple[str, Any, int, str]
] = {  # name: setting, value, exit code, message; DATA is the folder of the cases
    "unknown key": ("optimizer.learning_rate", 1e-3, 2, r"unknown setting 'optimizer\.learning_rate'"),
    "negative lr": ("optimizer.lr", -1.0, 2, r"optimizer\.lr: "),
    "word for lr": ("optimizer.lr", "fast", 2, r"optimizer\.lr: .*got 'fast'"),
    "nan lr": ("optimizer.lr", math.nan, 2, r"optimizer\.lr: .*finite"),  # other numbers: below
    "huge lr": ("optimizer.lr", 1e30, 2, r"optimizer\.lr: .*less than or equal to 1"),
    "heads": ("model.heads", 5, 2, r"hidden 32 is not a multiple of heads 5"),
    "batch": ("batch.global_batch", 25, 2, r"global_batch 25 is not a multiple"),
    "no batch": ("batch", {"micro_batch": 0, "global_batch": 0}, 2, r"at least two of"),
    "huge batch": ("batch.global_batch", 10**30, 2, r"batch\.global_batch: "),
    "tp of three": ("parallel.tp", 3, 2, r"tp 3 x pp 1 = 3 does not divide the 2 processes"),
    "warm-up over all steps": ("schedule.warmup", 400, 2, r"warmup 400 must be below steps 4"),
    "min_lr over lr": ("schedule.min_lr", 0.5, 2, r"min_lr 0\.5 is above optimizer\.lr"),
    "precision": ("precision", "fp8", 2, r"precision: "),
    "vocabulary too small": ("vocab", 50, 2, r"train\.bin contains the token id \d+, but the vocabulary has 50"),
    "vocabulary of one": ("vocab", 1, 2, r"vocab: "),
    "no data": ("data.train", "/nowhere/x", 2, r"/nowhere/x"),
    "data of one sample": ("data.train", "DATA/short", 2, r"short"),
    "data of another vocabulary": ("data.train", "DATA/other", 2, r"other\.bin contains the token id"),
    "truncated tokens": ("data.train", "DATA/cut", 1, r"cut\.bin .* bytes, but its \.idx has"),
    "index of another corpus": ("data.train", "DATA/mixed", 1, r"mixed\.bin"),
    "truncated index": ("data.train", "DATA/cut-index", 1, r"cut-index"),
    "empty tokens": ("data.train", "DATA/empty", 1, r"empty"),
    "text for an index": ("data.train", "DATA/text", None, r"text"),
    "validation data of one sample": ("data.valid", "DATA/short", 2, r"short"),
    "context over the data": ("model.context", 200_000, 2, r"200,?000|context"),
    "no GPU": ("device", "cuda", 2, r"device cuda: 2 processes have 0 GPUs; use device cpu"),
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
    "output below a file": ("output", "DATA/text.bin/run", 2, r"cannot write .*text\.bin"),
    "output of another job": ("output", "DATA/two-jobs", 2, r"another training job uses .*two-jobs"),
    "preset": ("steps", 4, 2, r"unknown preset '346m'; did you mean '345m'\?"),
    "file limit": ("steps", 40, 1, r"size limit .*100\.0 kB.*step-00000006.*raise it"),
    "full disk": ("output", "DATA/disk/run", 1, r"no space left while saving .*step-0000000\d"),
}
SAVING: dict[str, Any] = {"checkpoints": {"interval": 2, "keep": 99}, "schedule": {"warmup": 1}}


def write_data(folder: Path) -> None:
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


@dataclass(frozen=True)
class Ending:
    codes: tuple[int, ...]
    screens: tuple[str, ...]
    checkpoints: list[int]
    """Steps of the intact checkpoints."""


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ending]]:
    """Ending of each case, all of the same two ranks; without those that this machine cannot run."""
    folder = tmp_path_factory.mktemp("wrong")
    write_data(folder)
    cases: list[dict[str, Any]] = []
    outputs = []

    def add(name: str, setting: str, value: Any, output: str, steps: int = 4) -> None:
        config = make(folder, folder / output, steps=steps, **SAVING).model_dump(mode="json", exclude_none=True)
        *path, last = setting.split(".")
        inner = config
        for key in path:
            inner = inner[key]
        value = value.replace("DATA", str(folder)) if isinstance(value, str) else value
        inner[last] = inner[last] | value if isinstance(value, dict) else value
        file = folder / f"{len(cases)}.toml"
        file.write_text(tomli_w.dumps(config))
        more: dict[str, Any] = {"preset": {"arguments": ["--preset", "346m"]}, "file limit": {"file_limit": 100_000}}
        extra = more.get(name, {})
        arguments = ["--config", str(file), *extra.get("arguments", [])]
        cases.append({**extra, "name": str(len(cases)), "arguments": arguments})
        outputs.append((name, config["output"]))

    # Two checkpoints of some 470 KB fit on the disk, with the logs.
    with small_disk(folder / "disk", "1400k") as mounted, lock_run_folder(folder / "two-jobs"):
        add("before the limit", "seed", 1234, "limited")
        for number, (name, (setting, value, _, _)) in enumerate(WRONG.items()):
            if name != "full disk" or mounted:
                output = "limited" if name == "file limit" else f"run-{number}"
                add(name, setting, value, output, steps=40 if name == "full disk" else 4)
        add("sound", "seed", 1234, "sound")
        (folder / "cases.json").write_text(json.dumps(cases))
        (out := folder / "out").mkdir()
        run_ranks(HERE / "command_cases.py", str(folder / "cases.json"), str(out))
        found = {}
        for number, (name, output) in enumerate(outputs):
            files = [out / f"{number}.{rank}" for rank in (0, 1)]
            found[name] = Ending(
                tuple(int(file.with_suffix(f"{file.suffix}.code").read_text()) for file in files),
                tuple(file.with_suffix(f"{file.suffix}.txt").read_text() for file in files),
                [verify(path).position.step for path in list_checkpoints(output)],
            )
        yield found


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_one_error_line(endings: dict[str, Ending], name: str) -> None:
    if name not in endings:
        pytest.skip("mounting a small disk needs root")
    _, _, expected, message = WRONG[name]
    end = endings[name]
    errors = [line for line in end.screens[0].splitlines() if line.startswith("error: ")]
    assert end.codes == (expected, expected) if expected else set(end.codes) <= {1, 2}, end
    assert len(errors) == 1 and re.search(message, errors[0]) and end.screens[1] == "", end
    assert name in ("file limit", "full disk") or "step 1/" not in end.screens[0], end
    assert "Traceback" not in end.screens[0], end


def test_a_failed_save_keeps_the_earlier_checkpoints(endings: dict[str, Ending]) -> None:
    assert endings["file limit"].checkpoints == [2, 4]
    if "full disk" in endings:
        assert endings["full disk"].checkpoints[0] == 2


def test_the_ranks_can_train_after_refusals(endings: dict[str, Ending]) -> None:
    assert endings["sound"].codes == (0, 0)
    assert "memory at the end" in endings["sound"].screens[0] and endings["sound"].screens[1] == ""


def models(kind: type[Settings] = Settings) -> Iterator[type[Settings]]:
    for model in kind.__subclasses__():
        if model.__module__.startswith(PACKAGES):
            yield model
        yield from models(model)


def test_no_settings_model_accepts_a_non_finite_number() -> None:
    for path in [path for package in PACKAGES for path in (ROOT / package[:-1]).rglob("[!_]*.py")]:
        if "(Settings)" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    numbers = [
        (model, name) for model in models() for name, field in model.model_fields.items() if field.annotation is float
    ]
    assert len(numbers) > 33
    for model, name in numbers:
        for value in (math.inf, -math.inf, math.nan):
            with pytest.raises(ValidationError) as caught:
                model.model_validate({name: value})
            refused = [error["loc"] for error in caught.value.errors()]
            assert (name,) in refused, f"{model.__name__}.{name} takes {value}"
