"""The launch script for containers: its printed command lines, and what the engine is started with."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "deployments" / "container.py"
USER = ["--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]


def launch(*words: str, folder: Path, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"] if path is None else path}
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, cwd=folder, env=environment, input="", capture_output=True, text=True, check=False)


def line_of(*words: str, folder: Path) -> list[str]:
    done = launch(*words, "--dry-run", "--", "python", "-m", "flows.pretrain", "--dry-run", folder=folder)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def has(line: list[str], *words: str) -> bool:
    return any(line[at : at + len(words)] == list(words) for at in range(len(line)))


def test_docker_gets_source_gpus_and_shared_memory(tmp_path: Path) -> None:
    line = line_of("--engine", "docker", "--src", str(ROOT), "--gpus", "0,1", "--shm-size", "16g", folder=tmp_path)
    assert line[:4] == ["docker", "run", "--rm", "--init"]
    assert has(line, "--volume", f"{ROOT}:/src:ro") and has(line, "--env", "PYTHONPATH=/src")
    assert has(line, "--gpus", '"device=0,1"') and has(line, "--shm-size", "16g") and has(line, *USER)
    assert has(line, "--volume", f"{tmp_path}:/data", "--workdir", "/data")
    assert line[-5:] == ["gpt2train", "python", "-m", "flows.pretrain", "--dry-run"]
    assert has(line_of("--engine", "docker", "--gpus", "all", folder=tmp_path), "--gpus", "all")


def test_podman_gets_cdi_devices_and_the_user_s_id(tmp_path: Path) -> None:
    words = ["--engine", "podman", "--gpus", "0,1", "--image", "registry.example/gpt2train:1"]
    line = line_of(*words, "--env", "WANDB_MODE=offline", "--volume", "/scratch:/scratch", folder=tmp_path)
    assert has(line, "--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1") and "--gpus" not in line
    assert has(line, "--userns", "keep-id") and has(line, "--env", "WANDB_MODE=offline")
    assert has(line, "--volume", "/scratch:/scratch") and line[-5] == "registry.example/gpt2train:1"
    assert not [word for word in line if "/src" in word]
    bare = line_of("--engine", "podman", "--gpus", "none", folder=tmp_path)
    assert not [word for word in bare if "nvidia" in word]


def test_the_engine_is_started_with_that_line(tmp_path: Path) -> None:
    """An engine that prints its arguments, in the place of a real one."""
    (tmp_path / "bin").mkdir()
    engine = tmp_path / "bin/docker"
    engine.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\nexit 7\n')
    engine.chmod(0o755)
    done = launch("--src", str(ROOT), "--", "echo", "a b", folder=tmp_path, path=f"{tmp_path}/bin:/bin")
    assert done.returncode == 7
    lines = done.stdout.splitlines()
    assert lines[1:3] == ["run", "--rm"] and lines[-3:] == ["gpt2train", "echo", "a b"]
    assert "--gpus" not in lines  # no nvidia-smi on this PATH


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--src", "."], "no command; give it after --"),
        (["--src", "none", "--", "true"], "--src none holds no gpt2train/; give the root of a checkout"),
        (["--data", "none", "--", "true"], "--data none is not a folder"),
        (["--gpus", "0 1", "--", "true"], "--gpus '0 1' is none of all, none, auto"),
        (["--engine", "lxc", "--", "true"], "invalid choice: 'lxc'"),
        (["--", "true"], "neither podman nor docker is on the PATH"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "bin").mkdir()
    done = launch(*words, folder=tmp_path, path=str(tmp_path / "bin"))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_the_engine_knows_every_option(engine: str, tmp_path: Path) -> None:
    if shutil.which(engine) is None:
        pytest.skip(f"no {engine} on the PATH")
    words = ["--engine", engine, "--src", str(ROOT), "--gpus", "0,1", "--env", "A=b", "--volume", "/scratch:/scratch"]
    line = line_of(*words, folder=tmp_path)
    given = {word for word in line[: line.index("gpt2train")] if word.startswith("--")}
    listed = subprocess.run([engine, "run", "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert len(given) > 8 and given <= set(re.findall(r"--[a-z-]+", listed))
