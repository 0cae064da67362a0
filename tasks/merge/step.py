"""Merge step: selected checkpoint of a training run to a Hugging Face model folder, `runs/<name>/model/`."""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from gpt2train.convert.settings import CARD, MergeSettings
from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import MANIFEST, Manifest, Outcome, canonical
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.outputs.passport.write import card_sections

DRAFT = ".tmp-model"
RECORDS = "merge"  # folder of the step's records, beside `model/`
CARD_RECORD = "_card.json"
CARD_VERSION = 6  # raised when the contents of a card change: cards that nobody edited are then written again


def merge(
    root: Folder,
    training: Manifest,
    tokenizer: Manifest | None,
    settings: MergeSettings,
    runner: Runner,
    *,
    data: Folder | None = None,
) -> Manifest:
    """Merge the checkpoint of a training run to `<run folder>/model/`, which transformers loads.

    Args:
        root: output folder of the run.
        training: manifest of the train step.
        tokenizer: manifest of the tokenizer step; None: the run folder has a copy, which is part of the training.
        settings: settings of the merge.
        runner: runs the batch.
        data: output that holds the tokenizer, by default `root`. For one in an object store the tokenizer is that
            beside the run's tokens.

    Raises:
        UserError: the run is not on a local disk, or was trained with another tokenizer.
        RunError: the manifest of the training names no checkpoint, or several.
    """
    step = Step(
        root,
        "merge",
        version=6,
        parameters=settings.model_dump(mode="json", exclude={"license"}),  # used only by the model card
        inputs={"train": training} | ({} if tokenizer is None else {"tokenizer": tokenizer}),
        folder=f"{training.folder}/model",
        records=f"{training.folder}/{RECORDS}",  # not in the folder that users upload
        packages=("safetensors", "tokenizers", "torch"),
        shared=True,  # users may edit the model card, which is not an output
    )
    if done := runner.finished(step):
        return done
    if not root.is_local:
        raise UserError(f"a training run is read from a local folder, not from {root.url}; copy the run first")
    old_records = Path(step.folder.path())  # version 1 of the step wrote its records to the model folder
    shutil.rmtree(old_records / "_batches", ignore_errors=True)
    (old_records / MANIFEST).unlink(missing_ok=True)
    checkpoint = (root / training.folder).path(checkpoint_name(training))
    source, folder = data or root, None
    if tokenizer is not None and source.is_local:
        folder = (source / tokenizer.folder).path()
    outcomes = runner.batches(step, "part", ["model"], merge_part, checkpoint, folder, settings)
    manifest = step.commit(Outcome.total(outcomes))
    write_card(root, training, settings)
    return manifest


def write_card(root: Folder, training: Manifest, settings: MergeSettings, scores: Manifest | None = None) -> None:
    """Write the model card, `README.md` next to the weights, with the scores of an evaluation if it is given.

    A card that a user has edited stays: `merge/_card.json` has the hashes of the cards written by this function.
    """
    model, records = root / f"{training.folder}/model", root / f"{training.folder}/{RECORDS}"
    basis = {"version": CARD_VERSION, "license": settings.license, "scores": scores and scores.identity}
    written: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
        written = dict(json.loads(records.read_bytes(CARD_RECORD)))
    hashes = [str(known) for known in written.get("sha256", ())]
    with contextlib.suppress(FileNotFoundError):
        present = hashlib.sha256(model.read_bytes(CARD)).hexdigest()
        if present not in hashes or (present == hashes[-1] and written.get("basis") == basis):
            return
    from gpt2train.convert.merge import merged_card  # imports torch

    checkpoint = Path((root / training.folder).path(checkpoint_name(training)))
    sections = card_sections(root, training.folder.rpartition("/")[2])
    card = merged_card(Path(model.path()), checkpoint, settings.dtype, settings.license, sections).encode()
    # Write the record first, with the previous hash: a run killed between the two writes recognises either card.
    record = {"basis": basis, "sha256": [*hashes[-1:], hashlib.sha256(card).hexdigest()]}
    records.write_bytes(CARD_RECORD, canonical(record) + b"\n")
    model.write_bytes(CARD, card)


def checkpoint_name(training: Manifest) -> str:
    """Path of the checkpoint in the run folder, by the manifest of the training.

    Raises:
        RunError: the manifest names no checkpoint, or several.
    """
    parts = [record.name.split("/") for record in training.outputs]
    found = sorted({part[1] for part in parts if part[0] == "checkpoints" and len(part) > 2})
    if len(found) != 1:
        raise RunError(f"the manifest of {training.folder} names {len(found)} checkpoints, expected 1; train again")
    return f"checkpoints/{found[0]}"


def merge_part(
    folder: Folder, name: str, item: str, checkpoint: str, tokenizer: str | None, settings: MergeSettings
) -> Outcome:
    """Write the files of one model to the folder of the step."""
    from gpt2train.convert.merge import fill

    # On the same disk as the folder, so that files are moved, not copied; the leftover of a killed run is removed.
    draft = Path(folder.path(DRAFT))
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        tokenizer_folder = None if tokenizer is None else Path(tokenizer)
        parameters = fill(draft, Path(checkpoint), tokenizer_folder, settings.dtype)
        names = sorted(file.name for file in draft.iterdir())
        for file in names:
            with folder.writing(file) as target:
                (draft / file).replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # also after an error such as a full disk
    return Outcome(outputs=tuple(folder.record(file) for file in names), facts={"parameters": parameters})
