"""A folder of the user's with files that are named like packages of the project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PREFECT_HOME": str(folder / "prefect")}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("name", ["tasks.py", "gpt2train/__init__.py"])
def test_a_file_that_hides_a_package_is_named(name: str, tmp_path: Path) -> None:
    (file := tmp_path / name).parent.mkdir(exist_ok=True)
    file.write_text("raise AssertionError('imported')\n")
    done = run(tmp_path, "-m", "flows.dataprep", "--help")
    package = name.partition("/")[0].removesuffix(".py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {file} hides the package {package} of gpt2train; use `gpt2train flow`, ")
    assert len(done.stderr.splitlines()) == 1


def hide_all(folder: Path) -> None:
    for package in ("flows", "tasks", "gpt2train"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("raise AssertionError('imported')\n")


@pytest.mark.slow
def test_the_command_of_a_flow_does_not_look_into_the_folder(tmp_path: Path) -> None:
    """The option `-P` leaves the folder out of the path, as a console script does."""
    hide_all(tmp_path)
    done = run(tmp_path, "-P", "-m", "gpt2train", "flow", "dataprep", "--dry-run")
    assert done.returncode == 0 and done.stdout.startswith("steps "), done.stdout + done.stderr
    done = run(tmp_path, "-P", "-m", "gpt2train", "flow", "dataprep", "--workers", "none", "--debug")
    assert done.returncode == 2 and "Traceback" in done.stderr and "error: --workers" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
def test_nor_do_the_processes_that_it_starts(tmp_path: Path) -> None:
    hide_all(tmp_path)
    small = "--train.steps 2 --train.schedule.warmup 0 --tokenizer.vocab-size 300 --launch.processes 1"
    small += " --evaluate.max-documents 1"
    done = run(tmp_path, "-P", "-m", "gpt2train", "flow", "pipeline", *small.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/report/report.html").exists()
