"""Folders of Megatron's checkpoints: the tracker file, an iteration, and the files of the ranks.

latest_checkpointed_iteration.txt                     a number, or `release`
iter_0005000/mp_rank_01_002/model_optim_rng.pt        tensor-parallel rank 1, pipeline stage 2
iter_0005000/{.metadata,common.pt,__0_0.distcp}       format torch_dist
release/mp_rank_00/model_optim_rng.pt                 no pipeline
"""

import json
import re
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.model.shape import Shape

TRACKER = "latest_checkpointed_iteration.txt"
COMMON, BACKEND_FILE = "common.pt", "metadata.json"  # of distributed checkpoints
FILES = ("model_optim_rng.pt", "model_rng.pt")  # the second if the optimizer is in a file of its own
DISTRIBUTED_OPTIMIZER = "distrib_optim.pt"
RANK = re.compile(r"mp_rank_(\d\d)(?:_(\d\d\d))?")

EXACT_GELU = ("activation", "gelu")  # the option that Megatron has too


def check_shape(shape: Shape, tp: int, pp: int) -> None:
    """Check that Megatron has models of this shape, and that a layout divides it.

    Raises:
        UserError: it has not, or the layout does not.
    """
    if shape.family != "gpt2":
        raise UserError(f"Megatron-LM's format is written for gpt2 only, not {shape.family}; use --to huggingface")
    if shape.labels:
        raise UserError("Megatron-LM's format is written for language models, not a classifier; use --to huggingface")
    if others := [option for option in shape.options if option != EXACT_GELU]:
        given = ", ".join(f"{name} = {value}" for name, value in others)
        raise UserError(f"Megatron-LM's format is written for GPT-2 as published, not with {given}")
    if tp < 1 or pp < 1 or shape.heads % tp or shape.layers % pp:
        remedy = f"--tp must divide {shape.heads} heads, --pp must divide {shape.layers} layers"
        raise UserError(f"{tp} x {pp} ranks do not divide the model: {remedy}")


def is_megatron(path: Path) -> bool:
    """Return True if the folder looks like a checkpoint folder of Megatron or one iteration in it."""
    if not path.is_dir():
        return False
    return (path / TRACKER).is_file() or any(RANK.fullmatch(p.name) for p in path.iterdir()) or bool(backend(path))


def backend(folder: Path) -> str | None:
    """Return the format of a distributed checkpoint of Megatron-Core; None for any other folder."""
    try:
        found = json.loads((folder / BACKEND_FILE).read_bytes())["sharded_backend"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        found = "torch_dist" if (folder / COMMON).is_file() and (folder / ".metadata").is_file() else None
    return None if found is None else str(found)[:40]


def iteration_folder(path: Path) -> Path:
    """Return the folder of one iteration.

    Raises:
        UserError: it does not exist, or the folder is of no checkpoint.
    """
    tracker = path / TRACKER
    if tracker.is_file():
        text = tracker.read_text(encoding="utf-8", errors="replace").strip()
        if text != "release" and not text.isdecimal():
            raise UserError(f"{tracker} contains {text[:40]!r}; expected a number or release")
        folder = path / (text if text == "release" else f"iter_{int(text):07d}")
        if not folder.is_dir():
            raise UserError(f"{tracker} names {folder.name}, which does not exist; copy it, or give another folder")
        return folder
    if is_megatron(path):
        return path
    raise UserError(f"{path} is not a Megatron-LM checkpoint: it has neither {TRACKER} nor mp_rank_… folders")


def rank_files(folder: Path) -> dict[tuple[int, int], Path]:
    """Map (tensor-parallel rank, stage) to its file, for all ranks; empty if there is none.

    Raises:
        UserError: some ranks are missing.
    """
    found = {}
    for entry in sorted(folder.iterdir()):
        if match := RANK.fullmatch(entry.name):
            file = next((entry / name for name in FILES if (entry / name).is_file()), entry / FILES[0])
            found[int(match[1]), int(match[2] or 0)] = file
    if found:
        tp, pp = 1 + max(t for t, _ in found), 1 + max(p for _, p in found)
        if missing := [rank_name(t, p, pp) for t in range(tp) for p in range(pp) if (t, p) not in found]:
            raise UserError(f"{folder} has no {missing[0]}, one of {tp} x {pp} ranks; copy the whole folder")
    return found


def rank_name(tp: int, pp: int, stages: int) -> str:
    """Return the name of a rank's folder."""
    return f"mp_rank_{tp:02d}" + (f"_{pp:03d}" if stages > 1 else "")
