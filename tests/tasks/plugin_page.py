"""Plug-ins of the pages under *Extend*, installed beside the package."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def files_of(page: str) -> dict[str, str]:
    """Code blocks of a page that have a title: the name of the file."""
    text = (ROOT / "docs/develop" / page).read_text(encoding="utf-8")
    return dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', text, re.S | re.M))


def install(page: str, folder: Path, version: str | None = None) -> None:
    files = files_of(page)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    for name, text in files.items():
        if name.endswith(".py"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    info = folder / f"{project['name'].replace('-', '_')}.dist-info"
    info.mkdir(exist_ok=True)
    version = version or project["version"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    points = "".join(f"{name} = {module}\n" for name, module in project["entry-points"]["gpt2train"].items())
    (info / "entry_points.txt").write_text(f"[gpt2train]\n{points}")


def run(code: str, *arguments: str, plugins: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a Python program that sees the plug-ins of a folder, and so do its worker processes."""
    paths = [str(path) for path in (plugins, ROOT) if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the distribution of the module's page."""
    folder = tmp_path_factory.mktemp("installed")
    install(request.module.PAGE, folder)
    return folder


@pytest.fixture(autouse=True)
def installed_for_all_processes(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that a test starts import it."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{installed}")
