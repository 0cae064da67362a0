"""The package as it is published: files of the wheel, the engine without the data steps, each extra beside it.

Fast tests link the required packages of this environment; slow ones install the wheel, by `.ci/package`.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tokenizers.pre_tokenizers import ByteLevel

import gpt2train
from gpt2train.cli import app
from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from tests.test_repository import ROOT, project, required

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
data.train = "tokens"
model = {layers = 1, heads = 2, hidden = 16, context = 16}
batch = {micro_batch = 2, global_batch = 2}
schedule.warmup = 1
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
    (source / "gpt2train").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "gpt2train/__init__.py"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    prepare = "import setuptools.build_meta as b; b.prepare_metadata_for_build_wheel('.')"
    subprocess.run([sys.executable, "-c", prepare], cwd=source, check=True, capture_output=True)
    [made] = source.glob("*.dist-info")
    (packages / made.name).symlink_to(made)

    return runner(root / "venv", root)


def environment(**more: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | more


def runner(place: Path, default: Path) -> Run:
    def run(module: str, *arguments: str, folder: Path = default) -> subprocess.CompletedProcess[str]:
        command = [str(place / "bin/python"), "-m", module, *arguments]
        return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with sdist and wheel in `dist`, and an environment with the wheel in `venv`."""
    root = tmp_path_factory.mktemp("package")
    (root / "torch.txt").write_text(f"torch=={importlib.metadata.version('torch').partition('+')[0]}\n")
    command, pip = [ROOT / ".ci/package", root / "dist", root / "venv"], {"PIP_CONSTRAINT": str(root / "torch.txt")}
    github = {"SERVER_URL": "https://host.example", "REPOSITORY": "a/b", "REF_NAME": "v1"}
    env = environment(**pip, **{f"GITHUB_{name}": value for name, value in github.items()})
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == gpt2train.__version__
    return root


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
def test_sdist_and_wheel_have_the_files_of_the_packages(package: Path) -> None:
    folders = ("deployments", "flows", "gpt2train", "tasks")
    done = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = set(done.stdout.splitlines())
    [wheel], [sdist] = (package / "dist").glob("*.whl"), (package / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {name for name in names if ".dist-info/" not in name} == tracked
    links = re.findall(r"(!?)\[[^]]*\]\(([^)]*)\)", about)  # the index shows them away from the files
    assert len(links) >= 20
    for picture, link in links:
        assert link.startswith(f"https://host.example/a/b/{'raw' if picture else 'blob'}/v1/"), link
    with tarfile.open(sdist) as archive:
        files = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    assert tracked | {"pyproject.toml", "README.md", "LICENSE"} <= files
    assert {name for name in files if name.split("/")[0] in folders} == tracked


@pytest.mark.exhaustive  # an environment for each takes up to a minute of CPU time
@pytest.mark.parametrize("extra", sorted(project()["optional-dependencies"]))
def test_each_extra_installs_beside_the_engine(package: Path, extra: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)  # on top of the engine's environment, pip included
    [below], [own] = ((at / "venv").glob("lib/python*/site-packages") for at in (package, tmp_path))
    (own / "engine.pth").write_text(f"{below}\n")
    [wheel], run = (package / "dist").glob("*.whl"), runner(tmp_path / "venv", tmp_path)
    pip = ("install", "--quiet", "--no-compile", "--disable-pip-version-check", "--constraint")
    installed = run("pip", *pip, str(package / "torch.txt"), f"gpt2train[{extra}] @ {wheel.as_uri()}")
    assert installed.returncode == 0, installed.stderr
    assert (checked := run("pip", "check")).returncode == 0, checked.stdout
    [found] = re.findall(r"^extras +(.*)$", run("gpt2train", "doctor").stdout, re.M)
    assert extra in found.split(", ")
    for module, *arguments in MISSING.get(extra, []):
        assert "needs the extra" not in run(module, *arguments).stderr


@pytest.mark.slow
def test_the_engine_trains_and_generates(package: Path, tmp_path: Path) -> None:
    engine = runner(package / "venv", tmp_path)
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
