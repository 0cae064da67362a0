r"""Token files in Megatron's memory-mapped format: `<prefix>.bin` and `<prefix>.idx`, byte for byte.

`.bin` contains the tokens of all sequences, concatenated. `.idx`, little endian, contains

    9 bytes  magic MMIDIDX\0\0
    u64      version, 1
    u8       dtype code of a token
    u64      S, number of sequences
    u64      D, number of documents + 1
    int32[S] number of tokens of each sequence
    int64[S] byte offset of each sequence in .bin
    int64[D] first sequence of each document; starts with 0, ends with S

(Megatron-LM, core/datasets/indexed_dataset.py. Its recent versions may append int8[S] sequence modes, which are
accepted and not read. fairseq's files have neither D nor the document index: each sequence is a document.) The arrays
start at byte 34 and are therefore unaligned, which numpy supports. In files written here, a sequence is a document.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2train.data.token_arrays import ConcatenatedArrays
from gpt2train.errors import RunError, UserError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
FAIRSEQ_HEADER = struct.Struct("<9sQBQ")  # without the number of documents
# Codes 6 and 7 (floats) are swapped between Megatron versions and meaningless for tokens: they are refused.
DTYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(name) for code, name in {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}.items()
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
CHECK_CHUNK = 1 << 20  # sequences checked at a time when a file is opened: 20 MB of memory for any length of the index


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Dtype of token ids by Megatron's rule: uint16 below 65,500 ids, otherwise int32."""
    return np.dtype("<u2") if vocab_size < 65500 else np.dtype("<i4")


def write_index(
    path: str | Path, lengths: npt.ArrayLike, dtype: npt.DTypeLike, documents: npt.ArrayLike | None = None
) -> None:
    """Write one `.idx` file.

    Args:
        path: path of the file, not a prefix.
        lengths: [S] number of tokens of each sequence.
        dtype: dtype of a token in the `.bin`.
        documents: [D + 1] first sequence of each document; by default each sequence is a document.
    """
    kind = _known(dtype)
    sizes = np.asarray(lengths, dtype=np.int64)
    if sizes.size and not 0 <= int(sizes.min()) <= int(sizes.max()) < 2**31:
        raise RunError(f"a document of {int(sizes.max()):,} tokens does not fit the index format (below 2^31)")
    starts = np.arange(len(sizes) + 1) if documents is None else np.asarray(documents)
    pointers = np.zeros(len(sizes), dtype="<i8")
    np.cumsum(sizes[:-1] * kind.itemsize, out=pointers[1:])
    with Path(path).open("wb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, CODES[kind], len(sizes), len(starts)))
        file.write(sizes.astype("<i4").data)
        file.write(pointers.data)
        file.write(starts.astype("<i8").data)


class TokenDataset:
    """Tokens of sequences and documents.

    Attributes:
        lengths: [S] number of tokens of each sequence.
        documents: int64[D + 1] first sequence of each document.
        tokens: [total] concatenated tokens, read-only.
    """

    def __init__(self, lengths: np.ndarray, documents: np.ndarray, tokens: np.ndarray | ConcatenatedArrays) -> None:
        self.lengths, self.documents, self.tokens = lengths, documents, tokens

    def bounds(self) -> np.ndarray:
        """Compute the first token of each document, and the end of the last one: int64 [documents + 1]."""
        return np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))[self.documents]

    def __len__(self) -> int:
        return len(self.lengths)


class IndexedDataset(TokenDataset):
    """Memory-mapped token dataset: opening takes no memory, and `dataset[i]` copies nothing.

    Args:
        prefix: path of both files without extension.
        by_sequence: take each sequence as a document, whatever the document index says.

    Attributes:
        pointers: int64[S] byte offset of each sequence in `.bin`.
        dtype: dtype of a token.

    Raises:
        UserError: a file is missing or has another format, or the document index ends early.
        RunError: the files are truncated or do not belong together.
    """

    def __init__(self, prefix: str | Path, by_sequence: bool = False) -> None:
        index, data = find_pair(prefix)
        self.dtype, sequences, marks, end = _read_header(index)
        self.lengths, end = map_array(index, "<i4", sequences, end)
        self.pointers, end = map_array(index, "<i8", sequences, end)
        self._open(index, data, self.pointers, self.dtype.itemsize, 0 if by_sequence else marks, end)

    def _open(self, index: Path, data: Path, offsets: np.ndarray, unit: int, marks: int, end: int) -> None:
        """Check the arrays, of which the offsets have `unit` for a token, and map the documents and tokens."""
        self._offsets, self._unit = offsets, unit
        self._check(index)
        self.documents = np.arange(len(self) + 1)
        if marks:
            self.documents, _ = map_array(index, "<i8", marks, end)
            _check_documents(self.documents, len(self), index)
        size, total = data.stat().st_size, int(self.lengths.sum(dtype=np.int64))
        if size != total * self.dtype.itemsize:
            problem = "is truncated" if size < total * self.dtype.itemsize else "does not belong to its index"
            raise RunError(
                f"{data} {problem}: {size:,} bytes, but its .idx has {total:,} tokens of {self.dtype.itemsize} bytes;"
                " make the pair again"
            )
        self.tokens: np.ndarray = map_array(data, self.dtype, total, 0)[0]

    def __getitem__(self, index: int) -> np.ndarray:
        """Tokens of one sequence, a read-only view."""
        number = range(len(self))[index]
        start = int(self._offsets[number]) // self._unit
        return self.tokens[start : start + int(self.lengths[number])]

    def _check(self, index: Path) -> None:
        """Check that sequences are contiguous, on which `tokens` and the samplers rely."""
        good, expected = True, 0
        for start in range(0, len(self), CHECK_CHUNK):
            sizes = self.lengths[start : start + CHECK_CHUNK].astype(np.int64) * self._unit
            ends = expected + np.cumsum(sizes)
            good &= bool((sizes >= 0).all())
            good &= np.array_equal(self._offsets[start : start + CHECK_CHUNK], ends - sizes)
            expected = int(ends[-1])
        if not good:
            raise RunError(f"{index} is damaged: its offsets do not follow from its lengths; make the pair again")


def _check_documents(documents: np.ndarray, sequences: int, index: Path) -> None:
    """Check a document index.

    Raises:
        UserError: it ends before the last sequence.
        RunError: it is out of order, or refers to sequences that there are not.
    """
    last = int(documents[-1])
    if documents[0] != 0 or last > sequences or bool((np.diff(documents) < 0).any()):
        raise RunError(f"{index} is damaged: its documents are not in the order of its sequences; make the pair again")
    if last < sequences:
        raise UserError(
            f"{index}: its document index ends at {last:,} of {sequences:,} sequences, as some programs that merge "
            "files write it; each sequence is taken as a document by gpt2train data convert SOURCE TARGET --by-sequence"
        )


def bin_path(prefix: str | Path) -> Path:
    """Path `<prefix>.bin`; a dot in the prefix does not start a suffix."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """Path `<prefix>.idx`."""
    return Path(f"{prefix}.idx")


def check_new_pair(prefix: Path, flag: str) -> None:
    """Check that a pair can have a prefix; UserError if it is a folder's alone, such as `.`, or a file of it exists."""
    if prefix.name in ("", ".."):
        raise UserError(f"{prefix} is a folder; give {flag} a name in it, such as {prefix / 'tokens'}")
    for path in (bin_path(prefix), idx_path(prefix)):
        if path.exists():
            raise UserError(f"{path} exists already; remove it or give another {flag}")


def find_pair(prefix: str | Path) -> tuple[Path, Path]:
    """Paths of the index and the data of a token dataset.

    Raises:
        UserError: one of them is missing.
    """
    pair = idx_path(prefix), bin_path(prefix)
    for path in pair:
        if not path.is_file():
            raw = f"; raw tokens of nanoGPT or llm.c have their ending in the name: {pair[1]}"
            remedy = raw if pair[1].is_file() else ""
            raise UserError(f"{path} is missing; a token dataset is a pair of .bin and .idx files{remedy}")
    return pair


def shard_name(name: str, number: int, of: int) -> str:
    """Name of one shard of a dataset; a single shard has no number."""
    return name if of == 1 else f"{name}-{number:05d}-of-{of:05d}"


def _known(dtype: npt.DTypeLike) -> np.dtype[Any]:
    kind = np.dtype(dtype).newbyteorder("<")
    if kind not in CODES:
        raise ValueError(f"tokens are integers of {', '.join(map(str, CODES))}; got {kind}")
    return kind


def _read_header(index: Path) -> tuple[np.dtype[Any], int, int, int]:
    """Read dtype, S and D of an index, and check them against its size; D is 0 in a file of fairseq.

    Returns also the size of the header.
    """
    with index.open("rb") as file:
        head = file.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise UserError(f"{index} is not a token index: it does not start with MMIDIDX; give the prefix of a .bin/.idx")
    if len(head) < FAIRSEQ_HEADER.size:
        raise RunError(f"{index} is truncated: {len(head)} bytes are not a complete header; make the pair again")
    _, version, code, sequences = FAIRSEQ_HEADER.unpack(head[: FAIRSEQ_HEADER.size])
    if version != VERSION:
        raise UserError(f"{index} has version {version}, only version {VERSION} is supported; convert it")
    if code not in DTYPES:
        raise UserError(f"{index} has the dtype code {code}; token ids have one of {sorted(DTYPES)}")
    size = index.stat().st_size
    if size == FAIRSEQ_HEADER.size + 12 * sequences:
        return DTYPES[code], sequences, 0, FAIRSEQ_HEADER.size
    marks = HEADER.unpack(head)[-1] if len(head) == HEADER.size else 0
    plain = HEADER.size + 12 * sequences + 8 * marks
    if size not in (plain, plain + sequences) or marks < 1:
        raise RunError(
            f"{index} is truncated or damaged: {size:,} bytes, {plain:,} expected for {sequences:,} sequences;"
            " make the pair again"
        )
    return DTYPES[code], sequences, marks, HEADER.size


def map_array(path: Path, dtype: npt.DTypeLike, count: int, offset: int) -> tuple[np.ndarray, int]:
    """Memory-map `count` items at a byte offset. An empty range cannot be mapped and needs no file.

    Returns:
        The array, read-only, and the byte offset of its end.
    """
    kind = np.dtype(dtype)
    if count == 0:
        empty = np.empty(0, dtype=kind)
        empty.flags.writeable = False
        return empty, offset
    return np.memmap(path, dtype=kind, mode="r", offset=offset, shape=(count,)), offset + count * kind.itemsize
