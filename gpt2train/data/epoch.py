"""One epoch of a corpus: its shuffled documents as a token stream, cut into samples in shuffled order.

The documents are concatenated in shuffled order, and the stream is cut every `context` tokens. A sample is `context`
inputs and the following token, so that neighbours share one token and samples cross documents. The samples are then
shuffled too. All of it is a function of the document lengths, the seed and the epoch number, computed by a few sorts
and sums over whole arrays.

Epochs of a large corpus are cached on disk, so that a restart need not build them and the processes of a machine share
their pages. The file name is a hash of all that the epoch depends on: document lengths, context, seed and number. A
file is memory-mapped after its size, key and checksum have been verified; any other (truncated, foreign, of another
version) is rebuilt. Files are written under a temporary name and renamed, by one process at a time if the file system
supports locks, so that any number of processes and nodes can use the cache. If the folder is not writable, the epoch is
only built in memory.

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
from dataclasses import dataclass
from pathlib import Path

import filelock
import numpy as np

from gpt2train.data.indexed import map_array
from gpt2train.store.files import atomic_file

log = logging.getLogger("gpt2train")

# Below this many documents and samples building is as fast as reading: 1 million take 0.1 s and 20 MB.
MIN_CACHED_DOCUMENTS = 1_000_000
LOCK_SECONDS = 60.0  # longer than 100 million documents take; a process that waited this long builds its own copy
MAGIC = b"GPT2EPO\x00"
VERSION = 1
HEADER = struct.Struct("<8sI16sII4xQQ")


def permutation(count: int, *key: int) -> np.ndarray:
    """Permutation of 0 … count-1 that depends only on the key.

    It sorts raw Philox draws, which numpy guarantees to be the same in all versions, unlike `Generator.permutation`.
    Equal draws (in 1 of 10^7 permutations of a million) are ordered by index.
    """
    draws = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    order = np.argsort(draws)  # five times as fast as a stable sort, and equal to it if all draws differ
    ordered = draws[order]
    return np.argsort(draws, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def samples_in(tokens: int, context: int) -> int:
    """Number of samples in a stream of tokens: each needs `context` tokens and one more to predict."""
    return max(0, (tokens - 1) // context)


@dataclass(frozen=True)
class Epoch:
    """Mapping from the samples of an epoch to tokens of the corpus. Takes 16 bytes per document and 4 per sample."""

    context: int  # inputs per sample
    ends: np.ndarray  # int64 [documents] end of each document in the stream; empty documents are left out
    shift: np.ndarray  # int64 [documents] offset from a position in the stream to that in the corpus
    order: np.ndarray  # uint32 (int64 from 2^32 samples on) [samples] samples in the order of use

    @staticmethod
    def build(bounds: np.ndarray, context: int, seed: int | None, number: int) -> "Epoch":
        """Build one epoch of a corpus, counted from 0; without a seed, documents and samples stay in their order.

        `bounds`, int64 [documents + 1], has the start of each document in the corpus, and the end of the last one.
        """
        documents = len(bounds) - 1
        starts, lengths = bounds[:-1], np.diff(bounds)
        if seed is not None:
            shuffled = permutation(documents, seed, number, 0)
            starts, lengths = starts[shuffled], lengths[shuffled]
        if not lengths.all():
            starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        ends = np.cumsum(lengths)
        # A document occupies the positions ends - length … ends of the stream.
        shift = starts - ends + lengths
        count = samples_in(int(ends[-1]) if len(ends) else 0, context)
        order = np.arange(count) if seed is None else permutation(count, seed, number, 1)
        return Epoch(context, ends, shift, order.astype(np.uint32 if count < 2**32 else np.int64))

    def locate(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions in the corpus, and document numbers in the stream, of the tokens of samples with these indices.

        Both are int64 [len(slots), context + 1].
        """
        stream = self._first(slots)[:, None] + np.arange(self.context + 1)
        documents = np.searchsorted(self.ends, stream, side="right")
        return stream + self.shift[documents], documents

    def document_ends(self, slots: np.ndarray) -> int:
        """Count the inputs of these samples that are the last token of a document."""
        first = self._first(slots)
        # The document that ends at e has its last token at e - 1: first <= e - 1 < first + context.
        low, high = (np.searchsorted(self.ends, position, side="right") for position in (first, first + self.context))
        return int((high - low).sum())

    def containing(self, start: int, end: int) -> np.ndarray:
        """Indices of the samples with any of the tokens `start` … `end` of the corpus, which one document has."""
        begins = np.concatenate(([0], self.ends[:-1]))
        found = np.flatnonzero((begins + self.shift <= start) & (start < self.ends + self.shift))
        if not len(found):
            return np.empty(0, dtype=np.int64)
        first, last = (position - int(self.shift[found[0]]) for position in (start, end - 1))
        # The token at a cut is the last target of one sample and the first input of the next.
        low, high = max(0, first - 1) // self.context, last // self.context
        return np.flatnonzero((self.order >= low) & (self.order <= high))

    def of_documents(self, starts: np.ndarray) -> np.ndarray:
        """Indices of the samples with any token of the documents that start at these tokens of the corpus."""
        begins = np.concatenate(([0], self.ends[:-1]))
        found = np.flatnonzero(np.isin(begins + self.shift, starts))
        marks = np.zeros(len(self.order) + 2, dtype=np.int64)
        limit = len(self.order)  # the tail of the stream is in no sample
        # As in `containing`: the token at a cut is in two samples.
        np.add.at(marks, np.minimum(np.maximum(begins[found] - 1, 0) // self.context, limit), 1)
        np.add.at(marks, np.minimum((self.ends[found] - 1) // self.context, limit) + 1, -1)
        return np.flatnonzero(np.cumsum(marks)[self.order] > 0)

    def _first(self, slots: np.ndarray) -> np.ndarray:
        """Start of each sample in the stream."""
        return self.order[slots].astype(np.int64) * self.context


def corpus_identity(bounds: np.ndarray) -> bytes:
    """Hash (16 bytes) of the document lengths of a corpus."""
    return hashlib.blake2b(np.ascontiguousarray(bounds).data, digest_size=16).digest()


def cached_epoch(
    folder: Path, identity: bytes, bounds: np.ndarray, context: int, seed: int | None, number: int
) -> Epoch:
    """Load an epoch from the cache in a folder, or build and store it; arguments as in `Epoch.build`.

    `identity` is `corpus_identity(bounds)`: it takes 7 ms per million documents and is the same for every epoch.
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
