"""Disk cache of epochs, so that a restart need not build them and the processes of a machine share their pages.

The file name is a hash of everything that the epoch depends on: document lengths, context, seed and number. A file is
memory-mapped after its size, key and checksum have been verified; any other file (truncated, foreign, of another
version) is rebuilt. Files are written under a temporary name and renamed, by one process at a time if the file system
supports locks, so that any number of processes and nodes can use the cache at once. If the folder is not writable, the
epoch is only built in memory.

    56 bytes    magic, version, key, checksum of the rest, bytes per entry of the order, documents, samples
    int64[D]    ends, int64[D] shift, then the order of the samples
"""

import contextlib
import hashlib
import logging
import os
import secrets
import struct
import zlib
from pathlib import Path

import filelock
import numpy as np

from gpt2train.data.epoch import Epoch
from gpt2train.data.indexed import map_array
from gpt2train.io.files import atomic_file

log = logging.getLogger("gpt2train")

# Below this many documents and samples building is as fast as reading: 1 million take 0.1 s and 20 MB.
MIN_CACHED_DOCUMENTS = 1_000_000
LOCK_SECONDS = 60.0  # longer than 100 million documents take; a process that waited this long builds its own copy
MAGIC = b"GPT2EPO\x00"
VERSION = 1
HEADER = struct.Struct("<8sI16sII4xQQ")


def corpus_identity(bounds: np.ndarray) -> bytes:
    """Hash (16 bytes) of the document lengths of a corpus."""
    return hashlib.blake2b(np.ascontiguousarray(bounds).data, digest_size=16).digest()


def cached_epoch(
    folder: Path,
    identity: bytes,
    bounds: np.ndarray,
    context: int,
    seed: int | None,
    number: int,
) -> Epoch:
    """Load an epoch from the cache, or build and store it.

    Args:
        folder: folder of the cache.
        identity: `corpus_identity(bounds)`, which takes 7 ms per million documents and is the same for every epoch.
        bounds: as in `Epoch.build`.
        context: as in `Epoch.build`.
        seed: as in `Epoch.build`.
        number: as in `Epoch.build`.
    """
    described = f"{VERSION}/{context}/{seed}/{number}/".encode()
    key = hashlib.blake2b(described + identity, digest_size=16).digest()
    path = folder / f"{key.hex()}.epoch"
    if found := read_epoch(path, key, context):
        return found
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):  # a filelock.Timeout is an OSError too
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(filelock.FileLock(folder / ".lock", timeout=LOCK_SECONDS))
            if found := read_epoch(path, key, context):  # written by the previous holder of the lock
                return found
        built = Epoch.build(bounds, context, seed, number)
        try:
            _write(path, key, built)
        except OSError as error:
            log.info("the index of epoch %d is not cached: cannot write %s: %s", number, path, error.strerror)
        return read_epoch(path, key, context) or built


def read_epoch(path: Path, key: bytes, context: int) -> Epoch | None:
    """Memory-map the epoch in a file; None if the file is missing, incomplete or of another epoch."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
            size = os.fstat(file.fileno()).st_size
        if len(head) < HEADER.size:
            return None
        magic, version, of, checksum, width, documents, samples = HEADER.unpack(head)
        if (magic, version, of) != (MAGIC, VERSION, key) or width not in (4, 8):
            return None
        if size != HEADER.size + 16 * documents + width * samples:
            return None
        if zlib.crc32(map_array(path, "u1", size - HEADER.size, HEADER.size)[0].data) != checksum:
            return None
        ends, place = map_array(path, "<i8", documents, HEADER.size)
        shift, place = map_array(path, "<i8", documents, place)
        order, _ = map_array(path, "<u4" if width == 4 else "<i8", samples, place)
    except (OSError, ValueError):  # removed or truncated since its size was read
        return None
    return Epoch(context, ends, shift, order)


def _write(path: Path, key: bytes, epoch: Epoch) -> None:
    parts = [np.ascontiguousarray(part).data for part in (epoch.ends, epoch.shift, epoch.order)]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    head = HEADER.pack(MAGIC, VERSION, key, checksum, epoch.order.itemsize, len(epoch.ends), len(epoch.order))
    for left in path.parent.glob(f"{path.name}.*"):  # left by a process that was killed while writing
        left.unlink(missing_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
    with atomic_file(path, draft), draft.open("wb") as file:
        file.write(head)
        for part in parts:
            file.write(part)
