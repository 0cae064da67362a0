"""Checkpoints in a run folder: names of folders and files, listing them without reading them, and the last step.

    RUN/checkpoints/step-00000100/        written as step-00000100.tmp, renamed when every byte is on disk
        manifest.json                     written after the tensors
        .manifest.sha256                  hash of manifest.json, as sha256sum writes it
    RUN/checkpoints/latest                name of the newest checkpoint
    RUN/checkpoints/best                  name of the checkpoint with the best validation, by default the lowest loss

A folder without a manifest is no checkpoint, nor is one with another name, such as a copy step-00000100-good, which
its owner keeps.
"""

import contextlib
import json
import re
from pathlib import Path

from gpt2train.errors import UserError

FOLDER = "checkpoints"
FLOW_RUN = ".flow-run"  # file in the output folder of a flow: who writes there, or has written last
MANIFEST, MANIFEST_HASH = "manifest.json", ".manifest.sha256"
RECORD = "run.json"  # record of the run, see gpt2train.monitoring.run_record
LATEST, BEST = "latest", "best"
TEMPORARY = ".tmp"
_PREFIX = "step-"
_NAME = re.compile(rf"{_PREFIX}\d+", re.ASCII)


def checkpoint_name(step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"{_PREFIX}{step:08d}"


def checkpoint_step(checkpoint: Path) -> int:
    """Step of a checkpoint, by the name of its folder."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def is_checkpoint_name(name: str) -> bool:
    """Return True if a folder is named like a checkpoint, by its step."""
    return _NAME.fullmatch(name) is not None


def last_step(run: str | Path, steps: int) -> int:
    """Step at which a run is finished: `steps`, or that at which a callback ended it, by the record of the run."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # no record, or a damaged one
        return int(json.loads((Path(run) / RECORD).read_bytes())["early_stop"]["step"])
    return steps


def list_checkpoints(run: str | Path) -> list[Path]:
    """List the complete checkpoints of a run folder, oldest first, without verifying them."""
    return [folder for folder in _folders(run) if (folder / MANIFEST).exists()]


def list_without_manifest(run: str | Path) -> list[Path]:
    """List the folders of a run that are named like a checkpoint but have no manifest, oldest first, without drafts."""
    return [folder for folder in _folders(run) if not (folder / MANIFEST).exists()]


def list_drafts(run: str | Path) -> list[Path]:
    """List the drafts of checkpoints that interrupted saves have left."""
    return _folders(run, TEMPORARY)


def list_no_folders(run: str | Path) -> list[Path]:
    """List what is named like a checkpoint but is no folder, such as a link to a disk that is not there."""
    return [path for path in _named(run) if not path.is_dir()]


def _folders(run: str | Path, ending: str = "") -> list[Path]:
    return [path for path in _named(run, ending) if path.is_dir()]


def _named(run: str | Path, ending: str = "") -> list[Path]:
    """List what is named by a step and an ending in the folder of checkpoints, oldest first."""
    found = (Path(run) / FOLDER).glob(f"{_PREFIX}*{ending}")
    return sorted(path for path in found if is_checkpoint_name(path.name.removesuffix(ending)))


def newest_checkpoint(run: str | Path) -> Path:
    """Find the newest checkpoint of a run folder; UserError if it has none."""
    found = list_checkpoints(run)
    if not found:
        raise UserError(f"no checkpoint in {Path(run) / FOLDER}; give the folder of a run that has saved one")
    return found[-1]


def selected_checkpoint(run: str | Path, select: str) -> Path:
    """Find the "last" or the "best" checkpoint of a run folder; the last one if none was validated.

    Raises:
        UserError: the run has no checkpoint.
    """
    newest = newest_checkpoint(run)
    with contextlib.suppress(OSError, ValueError):  # missing, or damaged
        best = newest.parent / (newest.parent / BEST).read_text(encoding="utf-8").strip()
        if select == "best" and best in list_checkpoints(run):
            return best
    return newest
