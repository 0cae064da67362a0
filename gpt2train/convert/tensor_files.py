"""Tensor files of a Hugging Face model: `model.safetensors` and the older `pytorch_model.bin`.

Both are read lazily, one tensor at a time, and may be split into shards listed in an index. safetensors is written as a
stream, so that the model need not fit into memory: 8 bytes with the length of the header, the header in JSON, the bytes
of the tensors in the header's order (https://github.com/huggingface/safetensors#format).
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpt2train.convert.hf_config import PICKLED, SAFETENSORS, no_weights, weight_files
from gpt2train.convert.safe_pickle import read_pickle
from gpt2train.convert.settings import Dtype
from gpt2train.errors import LFS_POINTER, UserError, check_no_pointer
from gpt2train.model.lazy_weights import LazyTensor

DTYPES: dict[Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Components of names that torch.compile, FSDP, activation checkpointing and DDP add.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module")
CODES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def open_tensors(folder: Path) -> dict[str, LazyTensor]:
    """Open every tensor of a model folder, by its name in the file; safetensors is preferred.

    Raises:
        UserError: there is no such file, a shard is missing, or a file is damaged or contains more than tensors.
    """
    for name, opened in ((SAFETENSORS, _open_safetensors), (PICKLED, _open_pickled)):
        if files := weight_files(folder, name):
            found: dict[str, LazyTensor] = {}
            for file in files:
                # Others stay: the libraries say "No such file" of one that may not be read as well.
                with contextlib.suppress(FileNotFoundError, IsADirectoryError), file.open("rb") as stream:
                    check_no_pointer(stream.read(len(LFS_POINTER)), file)
                found |= opened(file)
            return found
    raise no_weights(folder)


def unwrapped(tensors: Mapping[str, LazyTensor], anchor: str, source: str) -> dict[str, LazyTensor]:
    """Remove from the names what wrappers of a training add: compilation, DDP, FSDP, a module that holds the model.

    Args:
        tensors: tensors of a model, by their names in the file.
        anchor: name that one of them has, with or without its first component, once the wrappers are removed.
        source: folder of the tensors, for the error.

    Raises:
        UserError: two names become one.
    """
    plain = {name: ".".join(part for part in name.split(".") if part not in WRAPPERS) for name in tensors}
    bare = anchor.partition(".")[2] if anchor.count(".") > 1 else anchor
    names = set(plain.values())
    if not names & {anchor, bare}:
        found = sorted((name for name in names if name.endswith(f".{bare}")), key=len)
        prefix = found[0].removesuffix(anchor if found[0].endswith(f".{anchor}") else bare) if found else ""
        plain = {name: own.removeprefix(prefix) for name, own in plain.items()}
    if len(set(plain.values())) < len(plain):
        twice = next(own for own, count in Counter(plain.values()).items() if count > 1)
        raise UserError(f"{source} has several tensors {twice}, below different wrappers; save one model alone")
    return {plain[name]: stored for name, stored in tensors.items()}


def write_tensors(
    path: Path,
    entries: Iterable[tuple[str, tuple[int, ...]]],
    dtype: torch.dtype,
    read: Callable[[str], Tensor],
) -> None:
    """Write a safetensors file, one tensor in memory at a time; its bytes depend on the arguments only.

    Args:
        path: path of the file.
        entries: name and size of each tensor, in the order of the file.
        dtype: data type of all tensors.
        read: returns the tensor of a name, of this size and dtype.
    """
    entries = list(entries)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in entries:
        begin, end = end, end + torch.Size(size).numel() * dtype.itemsize
        header[name] = {"dtype": CODES[dtype], "shape": list(size), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, size in entries:
            tensor = read(name)
            assert tuple(tensor.shape) == tuple(size) and tensor.dtype == dtype, name
            file.write(tensor.contiguous().view(torch.uint8).numpy().data)


def _open_safetensors(file: Path) -> dict[str, LazyTensor]:
    try:
        opened = safe_open(file, "pt")
        return {name: _lazy(file, opened, name) for name in opened.keys()}  # noqa: SIM118 - no mapping, only `keys`
    except (SafetensorError, OSError) as error:
        raise UserError(f"cannot read {file}: {error}; copy or merge the model again") from error


def _lazy(file: Path, opened: Any, name: str) -> LazyTensor:
    def read(dtype: torch.dtype) -> Tensor:
        try:
            tensor: Tensor = opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise UserError(f"cannot read {file}: {error}; copy or merge the model again") from error
        return tensor.to(dtype)

    return LazyTensor(tuple(opened.get_slice(name).get_shape()), read)


def _open_pickled(file: Path) -> dict[str, LazyTensor]:
    """Open a pickle that names only tensors, since a pickle can run the code that it names."""
    tensors = read_pickle(file)
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise UserError(f"{file} is not a table of tensors, as a model's {PICKLED} is; copy the model again")
    return {str(name): LazyTensor(tuple(tensor.shape), tensor.to) for name, tensor in tensors.items()}
