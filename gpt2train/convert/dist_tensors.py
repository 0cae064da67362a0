"""Tensors of a folder of torch.distributed.checkpoint in the form of others, read and written chunk by chunk.

    .metadata            pickle: size and chunks of each tensor, and the place of each chunk
    __0_0.distcp, …      chunks, each as torch.save writes it

torch's own loader is not used: it reads whole tensors only, and Megatron-Core stacks all layers in one.
"""

import io
import math
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from gpt2train.compat.torch import storage_info
from gpt2train.convert.safe_pickle import read_metadata
from gpt2train.errors import UserError
from gpt2train.store.inner_path import inner_path


class DistTensors:
    """Tensors of a folder by key. All files are checked for presence and length at the start.

    Attributes:
        sizes: size of each tensor.
        objects: keys of the entries that are not tensors.

    Raises:
        UserError: the metadata is damaged, or a file is missing or too short.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file = folder / ".metadata"
        if not file.is_file():
            raise UserError(f"{folder} has no .metadata; copy the whole folder")
        metadata = read_metadata(file)
        try:
            entries = metadata.state_dict_metadata
            self._entries = {key: e for key, e in entries.items() if isinstance(e, TensorStorageMetadata)}
            self._places: dict[MetadataIndex, Any] = dict(metadata.storage_data)
            self.sizes = {key: tuple(entry.size) for key, entry in self._entries.items()}
            self.objects = tuple(key for key in entries if key not in self._entries)
            self._check_files()
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(f"cannot read {file}: {error}; copy it again") from error

    def _check_files(self) -> None:
        ends: dict[str, int] = {}
        for place in self._places.values():
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
        for name, end in sorted(ends.items()):
            file = self._folder / inner_path(name, self._folder / ".metadata")
            if not file.is_file():
                raise UserError(f"{self._folder} has no {name}, which its .metadata names; copy the whole folder")
            if file.stat().st_size < end:
                raise UserError(f"{file} ends after {file.stat().st_size:,} of {end:,} bytes; copy it again")

    def read(self, key: str, dtype: torch.dtype, rows: tuple[int, int] | None = None) -> Tensor:
        """Read a tensor, or the rows of its first dimension from a first to before a last one.

        Raises:
            UserError: a chunk is damaged or missing.
        """
        entry = self._entries[key]
        size = tuple(entry.size)
        first, last = rows or (0, size[0] if size else 0)
        whole = torch.empty((last - first, *size[1:]) if size else (), dtype=dtype)
        num_read = 0
        for chunk in entry.chunks:
            offsets, lengths = tuple(chunk.offsets), tuple(chunk.sizes)
            if not size:
                whole.copy_(self._chunk(key, chunk))
                num_read += 1
                continue
            start, end = max(first, offsets[0]), min(last, offsets[0] + lengths[0])
            if start >= end:
                continue
            part = self._chunk(key, chunk)[start - offsets[0] : end - offsets[0]]
            place = [slice(start - first, end - first)]
            place += [slice(at, at + length) for at, length in zip(offsets[1:], lengths[1:], strict=True)]
            if whole[tuple(place)].shape != part.shape:
                raise UserError(f"{self._folder}: a chunk of {key} lies outside of its size; copy the folder again")
            whole[tuple(place)] = part
            num_read += part.numel()
        if num_read != math.prod(whole.shape):
            raise UserError(f"{self._folder} has only {num_read:,} of {math.prod(whole.shape):,} numbers of {key}")
        return whole

    def _chunk(self, key: str, chunk: Any) -> Tensor:
        place = self._places.get(MetadataIndex(key, chunk.offsets))
        if place is None:
            raise UserError(f"{self._folder}/.metadata does not say where {key} is stored; copy the folder again")
        value = self._load(place, key)
        if not isinstance(value, Tensor) or value.shape != torch.Size(chunk.sizes):
            raise UserError(f"{self._folder / place.relative_path} has another content than {key}; copy it again")
        return value

    def entry(self, key: str) -> Any:
        """Read an entry that is not a tensor, of containers, numbers and tensors; None if there is none.

        Raises:
            UserError: it is damaged, or contains anything else.
        """
        place = self._places.get(MetadataIndex(key))
        return None if place is None else self._load(place, key)

    def _load(self, place: Any, key: str) -> Any:
        file = self._folder / place.relative_path
        if getattr(place, "transform_descriptors", None):
            raise UserError(f"{file} is compressed, which is not supported; save it without compression")
        try:
            with file.open("rb") as stream:
                stream.seek(place.offset)
                data = stream.read(place.length)
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise UserError(f"cannot read {key} in {file}: {reason}; copy it again") from error


class DistWriter:
    """Writer of such a folder, chunk by chunk. A chunk may have several keys, so that equal tensors are stored once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        self._places: dict[MetadataIndex, Any] = {}

    def tensor(
        self, file: BinaryIO, keys: Iterable[str], size: Sequence[int], offset: Sequence[int], value: Tensor
    ) -> None:
        """Append a chunk to a file.

        Args:
            file: file in the folder, open for writing.
            keys: keys of the tensor.
            size: size of the whole tensor.
            offset: first index of the chunk in each dimension.
            value: chunk, with all dimensions of the tensor.
        """
        place = self._save(file, value.contiguous().clone())  # torch saves the whole storage of a view
        for key in keys:
            properties = TensorProperties(dtype=value.dtype)
            entry = self._tensors.setdefault(key, TensorStorageMetadata(properties, torch.Size(size), []))
            assert isinstance(entry, TensorStorageMetadata)
            entry.chunks.append(ChunkStorageMetadata(torch.Size(offset), value.shape))
            self._places[MetadataIndex(key, offset)] = place

    def entry(self, file: BinaryIO, keys: Iterable[str], value: object) -> None:
        """Append an object that is not a tensor."""
        place = self._save(file, value)
        for key in keys:
            self._tensors[key] = BytesStorageMetadata()
            self._places[MetadataIndex(key)] = place

    def close(self) -> None:
        """Write the metadata, after all chunks."""
        metadata = Metadata(self._tensors, storage_data=self._places, storage_meta=StorageMeta())
        with (self._folder / ".metadata").open("wb") as file:
            pickle.dump(metadata, file)

    def _save(self, file: BinaryIO, value: object) -> object:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        start = file.tell()
        file.write(buffer.getbuffer())
        return storage_info(Path(file.name).name, start, file.tell() - start)
