"""Epochs on disk, so that a restart need not build them and the processes of a machine share their pages.

A file is named by a hash of everything that its epoch depends on: the documents' lengths, context, seed and number. It
is read through a memory map after its size, its key and its checksum were found right; anything else there (cut off,
foreign, of another version) is built anew. It is written under another name and renamed, by one process at a time
where the disk knows locks, so that any number of processes and nodes can ask at once. A disk that cannot be written
costs nothing but the time to build.

    56 bytes    magic, version, key, checksum of what follows, bytes of an entry of the order, documents, samples
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

log = logging.getLogger("gpt2train")

# Below this many documents and samples building is as fast as looking: 1 million take 0.1 s and 20 MB.
WORTH_KEEPING = 1_000_000
LOCK_SECONDS = 60.0  # longer than 100 million documents take; whoever waited so long builds on its own
MAGIC = b"GPT2EPO\x00"
VERSION = 1
HEADER = struct.Struct("<8sI16sII4xQQ")


def corpus_identity(bounds: np.ndarray) -> bytes:
    """16 bytes that name the lengths of a corpus's documents."""
    return hashlib.blake2b(np.ascontiguousarray(bounds).data, digest_size=16).digest()


def cached_epoch(
    folder: Path,
    identity: bytes,
    bounds: np.ndarray,
    context: int,
    seed: int | None,
    number: int,
) -> Epoch:
    """`Epoch.build` of the same arguments, by way of a file in `folder`.

    Args:
        identity: `corpus_identity(bounds)`, which takes 7 ms a million documents and is the same for every epoch.
    """
    described = f"{VERSION}/{context}/{seed}/{number}/".encode()
    key = hashlib.blake2b(described + identity, digest_size=16).digest()
    path = folder / f"{key.hex()}.epoch"
    if found := read_epoch(path, key, context):
        return found
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, NotImplementedError):  # a filelock.Timeout is an OSError too
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(filelock.FileLock(folder / ".lock", timeout=LOCK_SECONDS))
            if found := read_epoch(path, key, context):  # of whoever held the lock before
                return found
        built = Epoch.build(bounds, context, seed, number)
        try:
            _write(path, key, built)
        except OSError as error:
            log.info("the index of epoch %d is not kept: cannot write %s: %s", number, path, error.strerror)
        return read_epoch(path, key, context) or built


def read_epoch(path: Path, key: bytes, context: int) -> Epoch | None:
    """The epoch of a file, mapped; None where there is no such file, or it is not whole or not this epoch's."""
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
    except (OSError, ValueError):  # removed or cut off since its size was read
        return None
    return Epoch(context, ends, shift, order)


def _write(path: Path, key: bytes, epoch: Epoch) -> None:
    parts = [np.ascontiguousarray(part).data for part in (epoch.ends, epoch.shift, epoch.order)]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    head = HEADER.pack(MAGIC, VERSION, key, checksum, epoch.order.itemsize, len(epoch.ends), len(epoch.order))
    for left in path.parent.glob(f"{path.name}.*"):  # of a process that was killed while it wrote
        left.unlink(missing_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
    try:
        with draft.open("wb") as file:
            file.write(head)
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
