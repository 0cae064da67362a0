"""Files of texts for the tests, and the step that reads them."""

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

from gpt2train.store.manifest import Folder, Manifest
from tasks.core.runner import Runner
from tasks.sources.documents import find_documents
from tasks.sources.texts import TextsSettings, texts
from tests.tasks.corpus import Inline
from tests.tasks.sources.archives import zstd

COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


def read(root: Path, *places: Path, key: str = "text", runner: Runner | None = None, **chosen: Any) -> Manifest:
    settings = TextsSettings(**chosen)
    found = find_documents([str(place) for place in places], key, settings.max_bytes)
    return texts(Folder(root), found.texts, key, settings, runner or Inline())


def write(path: Path, *lines: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path
