"""Command `gpt2train doctor`: what a bug report needs to know of this machine, without secrets."""

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpt2train import __version__
from gpt2train.monitoring.run_record import commit
from gpt2train.plan.devices import find_gpus, usable_cores
from gpt2train.plan.hardware import GB

NAME = re.compile(r"[A-Za-z0-9._-]+")  # of a package at the beginning of a requirement
EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
# Asked in a process of its own: a build of torch for another driver may fail or end it.
TORCH = """
import torch
cuda, mps = torch.cuda, torch.backends.mps
built = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
kind = next((f"{name} {version}" for name, version in built.items() if version), "CPU")
seen = f"{cuda.device_count()} GPUs" if cuda.is_available() else "MPS" if mps.is_available() else "no GPU"
print(f"{torch.__version__}, built for {kind}; sees {seen}")
"""
TORCH_SECONDS = 120.0  # to import it from a cold disk


def doctor() -> None:
    """Print what a bug report needs: versions, torch and its devices, memory, disk and extras; no secrets."""
    for name, value in lines():
        print(f"{name:<11} {value}")


def lines() -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each line."""
    yield "gpt2train", f"{__version__}, commit {commit() or 'unknown'}"
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    yield "torch", _torch()
    gpus = find_gpus()
    yield "gpus", ", ".join(f"{gpu.name} with {gpu.memory:.0f} GB" for gpu in gpus) or "none by nvidia-smi"
    yield "cores", f"{usable_cores()} of {psutil.cpu_count()}"
    memory = psutil.virtual_memory()
    yield "memory", f"{memory.total / GB:.1f} GB, {memory.available / GB:.1f} GB available"
    disk = shutil.disk_usage(Path.cwd())
    yield "disk", f"{disk.free / GB:.0f} GB free of {disk.total / GB:.0f} GB in this folder"
    versions, extras = requirements()
    yield "extras", ", ".join(sorted(name for name, missing in extras.items() if not missing)) or "none"
    for extra, missing in sorted(extras.items()):
        if missing:
            yield "", f"{extra} lacks {', '.join(missing)}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def requirements() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the versions of the installed packages of this project, and the packages that each extra lacks."""
    versions: dict[str, str] = {}
    extras: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("gpt2train") or ():
        name = NAME.match(requirement)
        extra = EXTRA.search(requirement)
        if name is None:
            continue
        try:
            versions[name[0]] = importlib.metadata.version(name[0])
            missing = []
        except importlib.metadata.PackageNotFoundError:
            missing = [name[0]]
        if extra:
            extras.setdefault(extra[1], []).extend(missing)
    versions.pop("gpt2train", None)
    return versions, extras


def _torch() -> str:
    try:
        done = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{importlib.metadata.version('torch')}, whose import takes more than {TORCH_SECONDS:.0f} s"
    if done.returncode == 0:
        return done.stdout.strip()
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"{importlib.metadata.version('torch')}, which cannot be imported: {reason}"
