"""A checkpoint of this project made from weights of elsewhere, for training to begin with."""

import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from gpt2train.checkpoint.store import FORMAT, MANIFEST, CheckpointManifest, Position, StoredFile, sha256
from gpt2train.checkpoint.weights import Weights, check_sizes, sizes
from gpt2train.data.tokenizer import load_tokenizer, read_tables, save_tokenizer, tokenizer_hash
from gpt2train.errors import UserError
from gpt2train.files import folder_whole


def write_checkpoint(folder: Path, weights: Weights, tokenizer: Path | None = None) -> None:
    """Write a checkpoint with the weights alone, float32, whole or not at all; the model is in memory meanwhile.

    `checkpoints.init_from` takes it on every layout; so do `merge` and `convert`.

    Args:
        folder: not there yet, or empty.
        weights: of a model of any format.
        tokenizer: its folder; it is copied along, and its hash is written down.

    Raises:
        UserError: something is at `folder`, or the tokenizer does not fit.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give another place")
    shape = weights.shape
    check_sizes({name: stored.size for name, stored in weights.tensors.items()}, sizes(shape), "the model")
    if tokenizer is not None and (size := load_tokenizer(tokenizer).get_vocab_size()) != shape.vocab:
        raise UserError(f"the tokenizer {tokenizer} has {size} entries, the model {shape.vocab}; give the model's own")
    state = {f"model.{name}": stored.read(torch.float32) for name, stored in sorted(weights.tensors.items())}
    with folder_whole(folder) as draft:
        with warnings.catch_warnings():  # it warns that there is no process group, which is what no_dist says
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.save(state, storage_writer=dcp.FileSystemWriter(draft), no_dist=True)
        files = {
            file.name: StoredFile(bytes=file.stat().st_size, sha256=sha256(file)) for file in sorted(draft.iterdir())
        }
        model = {"layers": shape.layers, "heads": shape.heads, "hidden": shape.hidden, "context": shape.context}
        identity = tokenizer_hash(tokenizer) if tokenizer is not None else None
        manifest = CheckpointManifest(
            format=FORMAT,
            position=Position(step=0, samples=0, updates=0, skipped=0),
            config={"model": model, "vocab": shape.vocab, "tokenizer_hash": identity},
            tokenizer_hash=identity,
            torch=torch.__version__,
            files=files,
        )
        (draft / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
        if tokenizer is not None:
            (draft / "tokenizer").mkdir()
            save_tokenizer(draft / "tokenizer", *read_tables(tokenizer))
