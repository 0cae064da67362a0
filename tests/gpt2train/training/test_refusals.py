"""Refused trainings: one error on rank 0, the end of every rank, and a non-zero exit code.

All cases are run by the same two real ranks, one after the other; each joins and leaves a process group of its own.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpt2train.checkpoint.manifest import verify
from gpt2train.config import RunConfig, to_toml
from gpt2train.launch.rank_process import lock_run_folder
from gpt2train.store.run_folder import list_checkpoints
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import make, write_tokens
from tests.small_disk import small_disk

HERE = Path(__file__).parent
REFUSED = {
    "preset": (2, r"unknown preset '346m'; did you mean '345m'\?"),
    "vocabulary": (2, r"train\.bin contains the token id \d+, but the vocabulary has 250"),
    "truncated": (1, r"train\.bin .* bytes, but its \.idx has"),
    "layout": (2, r"tp 3 x pp 1 = 3 does not divide the 2 processes"),
    "two-jobs": (2, r"another training job uses .*two-jobs"),
    "elsewhere": (2, r"cannot write .*elsewhere"),
    "file-limit": (1, r"cannot save .*step-00000006"),
    "full-disk": (1, r"no space left while saving .*step-0000000\d"),
}
SAVING: dict[str, Any] = {"checkpoints": {"interval": 2, "keep": 99}, "schedule": {"warmup": 1}}


@dataclass(frozen=True)
class Ending:
    """Exit codes and output of a case on both ranks."""

    codes: tuple[int, ...]
    screens: tuple[str, ...]
    checkpoints: list[int]
    """Steps of the intact checkpoints."""


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ending]]:
    """Ending of each case, all of the same two ranks; without those that this machine cannot run."""
    folder = tmp_path_factory.mktemp("refusals")
    (truncated := folder / "cut").mkdir()
    sound = write_tokens(folder)
    os.truncate(write_tokens(truncated) / "train.bin", 1000)
    (folder / "elsewhere").write_text("a file where a folder should be")
    limited = folder / "file-limit"
    configs: dict[str, RunConfig] = {
        "preset": make(sound, folder / "preset"),
        "vocabulary": make(sound, folder / "vocabulary", vocab=250),
        "truncated": make(truncated, folder / "truncated"),
        "layout": make(sound, folder / "layout", parallel={"tp": 3}),
        "two-jobs": make(sound, folder / "two-jobs"),
        "elsewhere": make(sound, folder / "elsewhere" / "run"),
        "before-limit": make(sound, limited, steps=4, **SAVING),
        "file-limit": make(sound, limited, steps=40, **SAVING),
        "full-disk": make(sound, folder / "disk" / "full-disk", steps=40, **SAVING),
        "sound": make(sound, folder / "sound", steps=4),
    }
    more = {"preset": {"arguments": ["--preset", "346m"]}, "file-limit": {"file_limit": 100_000}}
    # Two checkpoints of some 470 KB fit on the disk, with the logs.
    with small_disk(folder / "disk", "1400k") as mounted, lock_run_folder(folder / "two-jobs"):
        if not mounted:
            del configs["full-disk"]
        cases = []
        for name, config in configs.items():
            (folder / f"{name}.toml").write_text(to_toml(config))
            extra = more.get(name, {})
            arguments = ["--config", str(folder / f"{name}.toml"), *extra.get("arguments", [])]
            cases.append({**extra, "name": name, "arguments": arguments})
        (folder / "cases.json").write_text(json.dumps(cases))
        out = folder / "out"
        out.mkdir()
        run_ranks(HERE / "command_cases.py", str(folder / "cases.json"), str(out))
        yield {name: ending(out, name, config.output) for name, config in configs.items()}


def ending(out: Path, name: str, run: str) -> Ending:
    checkpoints = [verify(path).position.step for path in list_checkpoints(run)]
    codes = tuple(int((out / f"{name}.{rank}.code").read_text()) for rank in (0, 1))
    return Ending(codes, tuple((out / f"{name}.{rank}.txt").read_text() for rank in (0, 1)), checkpoints)


@pytest.mark.parametrize("name", REFUSED)
def test_only_rank_0_prints_the_error(endings: dict[str, Ending], name: str) -> None:
    if name not in endings:
        pytest.skip("mounting a small disk needs root")
    code, message = REFUSED[name]
    end = endings[name]
    errors = [line for line in end.screens[0].splitlines() if line.startswith("error: ")]
    assert end.codes == (code, code), end
    assert len(errors) == 1 and re.search(message, errors[0]), end
    assert end.screens[1] == "", end


def test_a_failed_save_keeps_the_earlier_checkpoints(endings: dict[str, Ending]) -> None:
    assert endings["file-limit"].checkpoints == [2, 4]
    if "full-disk" in endings:
        assert endings["full-disk"].checkpoints[0] == 2


def test_the_ranks_can_train_after_refusals(endings: dict[str, Ending]) -> None:
    assert endings["sound"].codes == (0, 0)
    assert "memory at the end" in endings["sound"].screens[0] and endings["sound"].screens[1] == ""
