"""torch's checkpoint reader with a restricted unpickler.

The `.metadata` of a torch.distributed.checkpoint is a pickle, and unpickling runs any code that it names. This reader
allows only the classes that such a file consists of.
"""

import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from gpt2train.compat.torch import CHECKPOINT_METADATA_NAMES
from gpt2train.errors import RunError

# Classes in the `.metadata` of tensors. BytesStorageMetadata is excluded, since its payload would be unpickled.
ALLOWED = CHECKPOINT_METADATA_NAMES | {
    ("torch", "Size"),
    ("torch", "device"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
}


class SafeReader(dcp.FileSystemReader):
    """Reader of a checkpoint folder that refuses a `.metadata` naming any other code (RunError).

    The metadata is read once and cached: loading tensor by tensor requests it each time, and it has an entry for every
    shard.
    """

    _read: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the metadata, once.

        Raises:
            RunError: it names a class that is not allowed.
        """
        if self._read is None:
            with (Path(self.path) / ".metadata").open("rb") as file:
                self._read = _Unpickler(file).load()
        self._read.storage_meta = self._read.storage_meta or StorageMeta()
        self._read.storage_meta.load_id = self.load_id
        return self._read


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise RunError(f"the checkpoint's .metadata names {module}.{name}, which is not allowed; do not use it")
