"""The engine as `pip install -e .` installs it, without the data steps' packages: its commands, and those it lacks."""

import importlib.metadata
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tokenizers.pre_tokenizers import ByteLevel

from gpt2train.cli import app
from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from tests.test_repository import ROOT, required

Run = Callable[..., subprocess.CompletedProcess[str]]
MISSING = {
    "pipeline": [
        ["gpt2train", "data", "browse", "out"],
        ["gpt2train", "flow", "dataprep", "--help"],
        ["gpt2train", "verify", "out", "--json"],
        ["flows.dataprep", "--dry-run"],
    ],
    "serve": [["gpt2train", "serve", "--model", "model"]],
}
SMALL = """
vocab = 257
output = "run"
steps = 3
device = "cpu"
[data]
train = "tokens"
[model]
layers = 1
heads = 2
hidden = 16
context = 16
[batch]
micro_batch = 2
global_batch = 2
[schedule]
warmup = 1
"""


def closure(wanted: Iterable[Requirement]) -> dict[str, importlib.metadata.Distribution]:
    """Installed distributions that some requirements bring, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen, left = set[tuple[str, str]](), [(one, "") for one in wanted]
    while left:
        one, extra = left.pop()
        name = canonicalize_name(one.name)
        if one.marker and not one.marker.evaluate({"extra": extra}):
            continue
        for each in {"", *one.extras} - {known for other, known in seen if other == name}:
            seen.add((name, each))
            found[name] = importlib.metadata.distribution(name)
            left += [(Requirement(line), each) for line in found[name].requires or ()]
    return found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Commands in an environment that links the required packages of this one, and no others."""
    root = tmp_path_factory.mktemp("engine")
    venv.create(root / "venv", symlinks=True)
    packages = next((root / "venv").glob("lib/python*/site-packages"))
    for distribution in closure(required()).values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    for name in ("deployments", "flows", "gpt2train", "tasks"):
        (packages / name).symlink_to(ROOT / name)
    (source := root / "source").mkdir()  # the metadata of this checkout, made in another folder
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    prepare = "import setuptools.build_meta as b; b.prepare_metadata_for_build_wheel('.')"
    subprocess.run([sys.executable, "-c", prepare], cwd=source, check=True, capture_output=True)
    [made] = source.glob("*.dist-info")
    (packages / made.name).symlink_to(made)

    def run(module: str, *arguments: str, folder: Path = root) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        command = [str(root / "venv/bin/python"), "-m", module, *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    return run


def test_the_help_lists_every_command(engine: Run) -> None:
    for group, names in (([], app), (["data"], app["data"])):
        done = engine("gpt2train", *group, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert [name for name in names if f" {name} " not in done.stdout and not name.startswith("-")] == []


@pytest.mark.parametrize("extra", MISSING)
def test_a_command_without_its_extra_says_so_in_one_line(engine: Run, extra: str) -> None:
    for module, *arguments in MISSING[extra]:
        done = engine(module, *arguments)
        assert done.returncode == 2 and done.stdout == "", (module, arguments)
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
        assert done.stderr.endswith(f" needs the extra \"{extra}\": pip install 'gpt2train[{extra}]'\n")


@pytest.mark.slow
def test_the_engine_trains_and_generates(engine: Run, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    save_tokenizer(tmp_path / "tokenizer", letters | {END_OF_TEXT: len(letters)}, [])
    (tmp_path / "texts.jsonl").write_text(f"{json.dumps({'text': 'A sentence of some words. ' * 9})}\n" * 20)
    (tmp_path / "run.toml").write_text(SMALL)
    texts = ("texts.jsonl", "--tokenizer", "tokenizer", "--append-eod", "--output", "tokens")
    encoded = engine("gpt2train", "data", "tokenize", *texts, folder=tmp_path)
    assert "warning: encoding at many times this speed needs the extra" in encoded.stderr
    said = []
    for module, *arguments in (
        ["gpt2train", "plan", "--config", "run.toml", "--gpus", "1"],
        ["gpt2train", "simulate", "--config", "run.toml", "--dp", "1"],
        ["gpt2train.train", "--config", "run.toml"],
        ["gpt2train", "merge", "run", "--tokenizer", "tokenizer", "--output", "model"],
        ["gpt2train", "convert", "model", "megatron", "--to", "megatron"],
        ["gpt2train", "runs", "run"],
        ["gpt2train", "generate", "--model", "model", "--prompt", "A", "--max-new-tokens", "4"],
    ):
        done = engine(module, *arguments, folder=tmp_path)
        assert done.returncode == 0, (module, arguments, done.stderr)
        said.append(done.stdout)
    assert said[-1].startswith("A")
