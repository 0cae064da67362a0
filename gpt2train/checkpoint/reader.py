"""torch's checkpoint reader with a careful unpickler.

`.metadata` of a torch.distributed.checkpoint is a pickle, and unpickling runs whatever code it names. Here it may name
only the handful of classes that such a file is made of.
"""

import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from gpt2train.errors import RunError

# What `.metadata` of tensors is made of. BytesStorageMetadata is left out on purpose: its payload would be unpickled.
SAFE = {
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
}


class SafeReader(dcp.FileSystemReader):
    """Reads a checkpoint's folder; refuses a `.metadata` that asks for foreign code (RunError).

    Reads it once: who loads tensor by tensor asks for it each time, and it has an entry for every piece of the state.
    """

    _read: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._read is None:
            with (Path(self.path) / ".metadata").open("rb") as file:
                self._read = _Unpickler(file).load()
        self._read.storage_meta = self._read.storage_meta or StorageMeta()
        self._read.storage_meta.load_id = self.load_id
        return self._read


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in SAFE or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise RunError(f"the checkpoint's .metadata asks for {module}.{name}, which no checkpoint of ours holds")
