"""Command `gpt2train doctor`: what a bug report needs to know of this machine, without secrets."""

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from gpt2train import __version__
from gpt2train.extras import requirements, version_of
from gpt2train.monitoring.run_record import commit
from gpt2train.plan.devices import find_gpus, usable_cores
from gpt2train.plan.hardware import GB

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
    named = [(name, extra, version_of(name)) for name, extra in requirements()]
    extras = sorted({extra for _, extra, _ in named if extra})
    lacking = {one: [name for name, extra, version in named if extra == one and not version] for one in extras}
    yield "extras", ", ".join(one for one in extras if not lacking[one]) or "none"
    for extra in extras:
        if lacking[extra]:
            yield "", f"{extra} lacks {', '.join(lacking[extra])}"
    versions = sorted({f"{name} {version}" for name, _, version in named if version and name != "gpt2train"})
    yield "packages", ", ".join(versions)


def _torch() -> str:
    try:
        done = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{importlib.metadata.version('torch')}, whose import takes more than {TORCH_SECONDS:.0f} s"
    if done.returncode == 0:
        return done.stdout.strip()
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"{importlib.metadata.version('torch')}, which cannot be imported: {reason}"
