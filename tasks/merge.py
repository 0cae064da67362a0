"""The merge step: the latest checkpoint of a training run -> one Hugging Face model folder, `runs/<name>/model/`."""

import shutil
from pathlib import Path

from gpt2train.checkpoint.format import MergeSettings
from gpt2train.errors import RunError, UserError
from tasks.runner import Runner
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

DRAFT = ".tmp-model"


def merge(root: Folder, training: Manifest, tokenizer: Manifest, settings: MergeSettings, runner: Runner) -> Manifest:
    """Training run -> `<run folder>/model/`, which transformers loads.

    Raises:
        UserError: the run is not on a local disk, or the tokenizer is not the one it was trained with.
        RunError: the training's manifest names no checkpoint, or several.
    """
    step = Step(
        root,
        "merge",
        version=1,
        parameters=settings,
        inputs={"train": training, "tokenizer": tokenizer},
        folder=f"{training.folder}/model",
        packages=("safetensors", "torch"),
    )
    if done := runner.finished(step):
        return done
    if not root.is_local:
        raise UserError(f"a training run is read from a local folder, not from {root.url}; copy the run first")
    checkpoint = (root / training.folder).path(checkpoint_name(training))
    folder = (root / tokenizer.folder).path()
    outcomes = runner.batches(step, "part", ["model"], merge_part, checkpoint, folder, settings)
    return step.commit(Outcome.total(outcomes))


def checkpoint_name(training: Manifest) -> str:
    """Path of the checkpoint inside the run folder, as the training's manifest names it.

    Raises:
        RunError: it names none, or several.
    """
    parts = [record.name.split("/") for record in training.outputs]
    found = sorted({part[1] for part in parts if part[0] == "checkpoints" and len(part) > 2})
    if len(found) != 1:
        raise RunError(
            f"the manifest of {training.folder} names {len(found)} checkpoints, one was expected; train again"
        )
    return f"checkpoints/{found[0]}"


def merge_part(
    folder: Folder, name: str, item: str, checkpoint: str, tokenizer: str, settings: MergeSettings
) -> Outcome:
    """Write the files of one model into the step's folder."""
    from gpt2train.checkpoint.merge import fill

    # On the same disk as the folder, so that each file is moved, not copied; one that a killed run left is cleared.
    draft = Path(folder.path(DRAFT))
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        parameters = fill(draft, Path(checkpoint), Path(tokenizer), settings.dtype)
        names = sorted(file.name for file in draft.iterdir())
        for file in names:
            with folder.writing(file) as target:
                (draft / file).replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # a full disk is less full without it
    return Outcome(outputs=tuple(folder.record(file) for file in names), facts={"parameters": parameters})
