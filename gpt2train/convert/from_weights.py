"""Writing of a checkpoint from imported weights, as the start of a training."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from gpt2train.checkpoint.manifest import FORMAT, CheckpointManifest, StoredFile, sha256
from gpt2train.checkpoint.writer import write_manifest
from gpt2train.config import ModelSettings
from gpt2train.data.chat_template import copy_chat_template
from gpt2train.data.tokenizer import copy_tokenizer, load_model_tokenizer, tokenizer_hash
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights, check_sizes
from gpt2train.store.files import atomic_folder, check_new
from gpt2train.training.train_state import START


def write_checkpoint(
    folder: Path,
    weights: LazyWeights,
    tokenizer: Path | None = None,
    optimizer: Mapping[str, LazyTensor] | None = None,
    base: str | None = None,
) -> None:
    """Write a checkpoint of float32 weights, and optimizer state if it is given, atomically; all of it is in memory.

    `checkpoints.init_from` accepts it on every layout; `merge` and `convert` accept it too.

    Args:
        folder: folder to write; it must not exist, or be empty.
        weights: weights of the model.
        tokenizer: tokenizer folder of the model; it is copied, and its hash is recorded.
        optimizer: state of AdamW, by the names of `AdamW.state`.
        base: address of the model on the hub, with its commit; it is recorded.

    Raises:
        UserError: the folder is not empty, or the tokenizer does not fit the model.
    """
    check_new(folder)
    shape = weights.shape
    check_sizes({name: stored.size for name, stored in weights.tensors.items()}, sizes(shape), "the model")
    if tokenizer is not None:
        load_model_tokenizer(tokenizer, shape.vocab)
    state = {f"model.{name}": stored.read(torch.float32) for name, stored in sorted(weights.tensors.items())}
    state |= {f"optim.{name}": stored.read(torch.float32) for name, stored in sorted((optimizer or {}).items())}
    with atomic_folder(folder) as draft:
        with warnings.catch_warnings():  # torch warns about the missing process group, despite no_dist
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.save(state, storage_writer=dcp.FileSystemWriter(draft), no_dist=True)
        written = sorted(draft.iterdir())
        files = {file.name: StoredFile(bytes=file.stat().st_size, sha256=sha256(file)) for file in written}
        sizes_only = {"layers": shape.layers, "heads": shape.heads, "hidden": shape.hidden, "context": shape.context}
        settings = ModelSettings(family=shape.family, options=dict(shape.options), labels=shape.labels, **sizes_only)
        model = settings.model_dump(include={"family", "options", "labels", *sizes_only})
        identity = None
        if tokenizer is not None:
            (draft / "tokenizer").mkdir()
            copy_tokenizer(tokenizer, draft / "tokenizer", shape.vocab)
            copy_chat_template(tokenizer, draft / "tokenizer")
            identity = tokenizer_hash(draft / "tokenizer")
        config: dict[str, Any] = {"model": model, "vocab": shape.vocab, "tokenizer_hash": identity}
        if base is not None:
            config["checkpoints"] = {"init_from": base}
        if weights.labels:  # where the checkpoints of a classification have the names of its classes
            names = json.dumps(list(weights.labels), ensure_ascii=False)
            config["objective"] = {"name": "classification", "options": {"labels": names}}
        manifest = CheckpointManifest(
            format=FORMAT, position=START, config=config, tokenizer_hash=identity, torch=torch.__version__, files=files
        )
        write_manifest(draft, manifest)
