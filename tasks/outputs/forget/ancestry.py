"""Runs that began from another run's weights, and what these had read."""

from pathlib import Path

from gpt2train.config import CONFIG_FILE, RunConfig, read_run_config
from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import read_manifest
from gpt2train.store.run_folder import FOLDER, checkpoint_step

MERGED = "model"  # folder of a run with its weights for transformers
MERGE_RECORDS = "merge"  # folder that says that these are complete


def start_of(config: RunConfig) -> tuple[Path, int | None] | None:
    """Return the run whose weights a run began from, and the step of its checkpoint; None for any other start.

    The step is None for the newest checkpoint of a run, or its merged model: that may be of any step so far.
    """
    if config.checkpoints.init_from is None:
        return None
    source = Path(config.checkpoints.init_from)
    if source.parent.name == FOLDER:
        try:
            run, step = source.parent.parent, checkpoint_step(source)
        except ValueError:
            return None
    else:
        run, step = source.parent if source.name == MERGED else source, None
    return (run, step) if (run / CONFIG_FILE).is_file() else None


def ancestors(config: RunConfig) -> list[tuple[Path, int | None]]:
    """Return the run that a run began from, the one that this one began from, and so on, each with its step."""
    found: list[tuple[Path, int | None]] = []
    while (start := start_of(config)) is not None and start[0] not in [run for run, _ in found]:
        found.append(start)
        try:
            config = read_run_config(start[0] / CONFIG_FILE)
        except (UserError, RunError, OSError):
            break
    return found


def merged_checkpoint(run: Path) -> str | None:
    """Return the name of the checkpoint whose weights a run's merged model has; None if there is no such model.

    Empty if the record of the training is gone or damaged.
    """
    if not (run / MERGED).is_dir():
        return None
    training = read_manifest(Folder(run))
    files = [record.name.split("/") for record in training.outputs] if training else []
    names = {parts[1] for parts in files if parts[0] == FOLDER and len(parts) > 2}
    return names.pop() if len(names) == 1 else ""
