"""Files of a checkpoint (`gpt2train.store.run_folder` has their folder), and its manifest; imports no torch.

__0_0.distcp, … .metadata         torch.distributed.checkpoint: one file per process
manifest.json                     size and SHA-256 of each file; step, sample index, settings, tokenizer, data
.manifest.sha256                  SHA-256 of the manifest; not in it, since earlier versions refuse a key that is new
"""

import hashlib
from operator import not_
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, NonNegativeInt, ValidationError

from gpt2train.config import ModelSettings
from gpt2train.errors import RunError, UserError
from gpt2train.model.objectives import label_names
from gpt2train.model.shape import Shape
from gpt2train.settings import Record, explain
from gpt2train.store.inner_path import InnerPath
from gpt2train.store.run_folder import MANIFEST, MANIFEST_HASH, checkpoint_step, is_checkpoint_name
from gpt2train.training.train_state import TrainState

FORMAT: Final = 1


class StoredFile(Record):
    """File of a checkpoint."""

    bytes: NonNegativeInt  # size in bytes
    sha256: str  # SHA-256 of the content, lower-case hex


class StoredCorpus(Record):
    """Training corpus of a run, as stored in checkpoints."""

    identity: str  # hash of its document lengths and of a sample of its tokens, independent of its path
    tokens: NonNegativeInt  # number of tokens; 0 if they are no token files
    share: float  # share of the samples, 0 to 1


class CheckpointManifest(Record):
    """Content of `manifest.json`, whose presence makes a folder a checkpoint."""

    format: Literal[1]  # version of the layout on disk: FORMAT
    position: TrainState  # train state of the run
    config: dict[str, Any]  # complete settings of the run
    tokenizer_hash: str | None  # hash of the tokenizer that the weights belong to
    data: tuple[StoredCorpus, ...] = ()  # training corpora, whose samples `position.samples` counts
    validation: str | None = None  # identity of the validation set; losses of different sets are not compared
    valid_loss: float | None = Field(None, allow_inf_nan=True)
    """Validation loss of these weights, if they were validated."""
    valid_metrics: dict[str, float] = Field({}, exclude_if=not_)
    """Further measures of that validation, by the names of the objective."""
    torch: str  # version of torch that wrote the checkpoint
    files: dict[InnerPath, StoredFile]  # all other files of the folder, by name


def read_manifest(checkpoint: str | Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint.

    Raises:
        UserError: there is no checkpoint at this path, it names a file outside of its folder, it cannot be read, or
            another version of the package wrote it: it may be intact, so that a run must not fall back and replace it.
        RunError: its manifest is damaged.
    """
    path, hashed = Path(checkpoint) / MANIFEST, Path(checkpoint) / MANIFEST_HASH
    try:
        content = path.read_bytes()
        # Earlier versions wrote no hash.
        if hashed.exists() and hashed.read_bytes()[:64] != hashlib.sha256(content).hexdigest().encode():
            raise RunError(f"{path} is damaged (its hash is not that in {MANIFEST_HASH}); use another checkpoint")
        found = CheckpointManifest.model_validate_json(content, context={"place": path})
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{checkpoint} is not a checkpoint: it has no {MANIFEST}") from error
    except OSError as error:  # the checkpoint may be intact, so that a run must not replace it
        raise UserError(f"cannot read {path}: {error.strerror}; repair it, or remove the checkpoint") from error
    except ValidationError as error:
        if what := _of_other_version(error):
            remedy = "install that version, or use another checkpoint"
            raise UserError(f"another version of gpt2train wrote {path} ({what}); {remedy}") from error
        raise RunError(f"{path} is damaged; use another checkpoint") from error
    if is_checkpoint_name(path.parent.name) and checkpoint_step(path.parent) != found.position.step:
        raise RunError(f"{path} is damaged (it has the step {found.position.step:,}); use another checkpoint")
    return found


def _of_other_version(error: ValidationError) -> str:
    """Return what only a manifest of another version has: its format, or a key beside all of ours; else ""."""
    found = error.errors()
    formats = [one for one in found if one["loc"] == ("format",) and isinstance(one["input"], int)]
    # A damaged name of a key is unknown too, and the key is missing.
    keys = found if all(one["type"] == "extra_forbidden" for one in found) else []
    for one in (*formats, *keys):
        return " ".join(f"{'.'.join(map(str, one['loc']))} = {one['input']}".split())[:60]
    return ""


def verify(checkpoint: str | Path, part: int = 0, of: int = 1) -> CheckpointManifest:
    """Compare the files of a checkpoint with its manifest, sizes first, then hashes: every `of`-th file from `part` on.

    Raises:
        UserError: there is no checkpoint at this path.
        RunError: a file is missing, truncated or altered; the message names it.
    """
    manifest = read_manifest(checkpoint)
    for name, stored in sorted(manifest.files.items())[part::of]:
        path = Path(checkpoint) / name
        size = path.stat().st_size if path.is_file() else None
        if size != stored.bytes:
            what = "is missing" if size is None else f"has {size:,} bytes instead of {stored.bytes:,}"
            raise RunError(f"the checkpoint is damaged: {path} {what}; use another checkpoint")
        if sha256(path) != stored.sha256:
            what = "has changed since it was written"
            raise RunError(f"the checkpoint is damaged: {path} {what}; use another checkpoint")
    return manifest


def stored_shape(manifest: CheckpointManifest, checkpoint: str | Path) -> Shape:
    """Sizes of a checkpoint's model; RunError if its manifest lacks them."""
    try:
        return ModelSettings.model_validate(manifest.config["model"]).shape(manifest.config["vocab"])
    except (KeyError, TypeError, ValueError) as error:
        reason = explain(error, ModelSettings, "model") if isinstance(error, ValidationError) else error
        raise RunError(f"{Path(checkpoint) / MANIFEST} lacks the sizes of the model ({reason})") from error


def stored_labels(manifest: CheckpointManifest) -> tuple[str, ...]:
    """Names of the classes of a checkpoint's classifier; empty if it is none, or if they are not known."""
    try:
        return label_names(manifest.config["objective"]["options"]["labels"])
    except (KeyError, TypeError, ValueError):
        return ()


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
