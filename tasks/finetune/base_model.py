"""Model that a fine-tuning starts from: a folder with weights, or a preset with random ones."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2train.config import TrainSettings, preset, presets
from gpt2train.data.tokenizer import load_model_tokenizer, load_tokenizer, tokenizer_hash, vocab_size
from gpt2train.errors import UserError
from gpt2train.settings import build, nearest
from gpt2train.store.hub import TOKENIZER_FILES, local_copy

WEIGHTS = (".safetensors", ".bin", ".pt", ".json")  # suffixes of the files that a model consists of


@dataclass(frozen=True)
class BaseModel:
    """Model before its fine-tuning.

    Attributes:
        source: folder of the weights, for `checkpoints.init_from`; None for random weights.
        model: settings `train.model`, with the whole context of the model.
        vocab: vocabulary size.
        tokenizer: folder or file of the tokenizer.
        tokenizer_hash: hash of the tokenizer.
        identity: hash of the weights, or the name of a preset.
    """

    source: Path | None
    model: dict[str, Any]
    vocab: int
    tokenizer: Path
    tokenizer_hash: str
    identity: str

    @property
    def classes(self) -> int:
        """Number of classes of a classifier; 0 for a language model."""
        return int(self.model.get("labels", 0))


def check_classes(name: str, base: BaseModel, labels: Sequence[str]) -> None:
    """Check that a classifier, of a name, has as many classes as the task that it is tuned for.

    Raises:
        UserError: it has more or fewer.
    """
    if base.classes and base.classes != len(labels):
        shown = ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "")
        raise UserError(
            f"{name} is a classifier of {base.classes:,} classes, but the task has {len(labels):,} labels ({shown}); "
            "correct data.labels or the rows, or start from a language model"
        )


def open_base_model(name: str, tokenizer: str | None) -> BaseModel:
    """Open a model by the name of a preset, or by its folder: of Hugging Face or Megatron-LM, a run, a checkpoint.

    Raises:
        UserError: there is no such model, it is of no known family, or it has no tokenizer or one of another size.
    """
    own = None if tokenizer is None else local_copy(tokenizer, TOKENIZER_FILES).absolute()
    if name in presets():
        if own is None:
            raise UserError(f"preset {name} has no tokenizer; give --tokenizer DIR")
        model = build(TrainSettings, preset(name), source=name).model
        sizes = model.model_dump(mode="json") | {"max_positions": model.positions}
        return BaseModel(None, sizes, vocab_size(load_tokenizer(own)), own, tokenizer_hash(own), f"preset {name}")
    path = local_copy(name).absolute()
    if not path.exists():
        raise UserError(f"model {name!r} is neither a folder nor a preset; {nearest(name, presets())}")
    from gpt2train.checkpoint.manifest import CheckpointManifest, read_manifest
    from gpt2train.convert.detect import check_source, detect, find_source

    kind = detect(path)
    check_source(path, kind, own)
    from gpt2train.convert.opened_source import open_source  # imports torch (1-2 s)

    opened = open_source(path, kind, tokenizer=own)
    if opened.tokenizer is None:
        raise UserError(f"{path} has no tokenizer; give --tokenizer DIR")
    if opened.weights.shape.family == "t5":
        raise UserError(f"{path} is a T5, an encoder and a decoder; fine-tuning takes decoders, as gpt2 and llama")
    shape = opened.weights.shape
    # That of the model's own folder may have fewer tokens.
    found_tokenizer = load_model_tokenizer(opened.tokenizer, shape.vocab)
    if own is not None and (size := vocab_size(found_tokenizer)) != shape.vocab:
        raise UserError(
            f"the tokenizer {opened.tokenizer} has {size:,} tokens, the model {path} {shape.vocab:,}; give the "
            "tokenizer that it was trained with"
        )
    identity = _weights_identity(path, _changed(path))
    if kind == "gpt2train":
        path = find_source(path).checkpoint
        manifest: CheckpointManifest = read_manifest(path)
        identity = hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()
    sizes = {name: getattr(shape, name) for name in ("family", "layers", "heads", "hidden", "labels")}
    sizes |= {"max_positions": shape.context, "options": dict(shape.options)}
    hashed = tokenizer_hash(opened.tokenizer, shape.vocab)
    return BaseModel(path, sizes, shape.vocab, opened.tokenizer, hashed, identity)


def _changed(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files of a model."""
    files = [file for file in sorted(path.rglob("*")) if file.suffix in WEIGHTS and file.is_file()]
    return tuple((str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files)


@functools.lru_cache(maxsize=8)
def _weights_identity(path: Path, files: tuple[tuple[str, int, int], ...]) -> str:
    """Hash of the files of a model, cached: a flow needs it several times."""
    digest = hashlib.sha256()
    for name, *_ in files:
        with (path / name).open("rb") as file:
            digest.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode())
    return digest.hexdigest()
