r"""Token files in Megatron's older format (`--dataset-impl lazy` and `cached`): `<prefix>.bin` and a `TNTIDX` index.

`.bin` contains the tokens of all sequences, concatenated. `.idx`, little endian, contains

    8 bytes   magic TNTIDX\0\0
    u64       version, 1
    u64, u64  dtype code, bytes of a token
    u64       S, number of sequences
    u64       N, number of sizes: one per sequence, for one-dimensional sequences
    u64       D, number of documents + 1
    int64[S + 1]  first size of each sequence: 0, 1, … S
    int64[S + 1]  first token of each sequence, in tokens
    int64[N]      number of tokens of each sequence
    int64[D]      first sequence of each document; starts with 0, ends with S

(Megatron-LM's `IndexedDataset`, after fairseq, whose files have neither D nor the document index: each sequence is a
document.) Megatron-LM's own reader fails with numpy 1.24 and later. This module
only reads the format, to convert it.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from gpt2train.data.indexed import (
    DTYPES,
    IndexedDataset,
    TokenDataset,
    bin_path,
    check_new_pair,
    find_pair,
    idx_path,
    map_array,
    write_index,
)
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.errors import RunError, UserError
from gpt2train.store.files import atomic_file, make_folder, write_error

MAGIC = b"TNTIDX\x00\x00"
HEADER = struct.Struct("<8sQQQQQQ")
FAIRSEQ_HEADER = struct.Struct("<8sQQQQQ")  # without the number of documents
BLOCK = 1 << 22  # tokens copied at a time


class LegacyDataset(IndexedDataset):
    """Token dataset in the older format, memory-mapped."""

    def __init__(self, prefix: str | Path, by_sequence: bool = False) -> None:
        index, data = find_pair(prefix)
        with index.open("rb") as file:
            head = file.read(HEADER.size)
        if len(head) < FAIRSEQ_HEADER.size or not head.startswith(MAGIC):
            raise UserError(f"{index} is not an index of the TNTIDX format; give the prefix of a .bin/.idx pair")
        _, version, code, width, sequences, sizes = FAIRSEQ_HEADER.unpack(head[: FAIRSEQ_HEADER.size])
        if version != 1 or code not in DTYPES or DTYPES[code].itemsize != width:
            raise UserError(f"{index} has version {version} and dtype code {code} of {width} bytes; not supported")
        arrays, size = 8 * (2 * (sequences + 1) + sizes), index.stat().st_size
        is_fairseq = size == FAIRSEQ_HEADER.size + arrays
        marks = 0 if is_fairseq or len(head) < HEADER.size else HEADER.unpack(head)[-1]
        expected = HEADER.size + arrays + 8 * marks
        if sizes != sequences or not (is_fairseq or (marks and size == expected)):
            raise RunError(f"{index} is truncated or damaged: {size:,} bytes, not {expected:,}; make the pair again")
        self.dtype = DTYPES[code]
        _, end = map_array(index, "<i8", sequences + 1, FAIRSEQ_HEADER.size if is_fairseq else HEADER.size)
        starts, end = map_array(index, "<i8", sequences + 1, end)
        self.lengths, end = map_array(index, "<i8", sequences, end)
        self._open(index, data, starts[:-1], 1, 0 if by_sequence else marks, end)


def open_any(prefix: str | Path, by_sequence: bool = False) -> TokenDataset:
    """Open a token dataset in either format, in one pair of files or several shards; see `IndexedDataset`."""
    index = idx_path(prefix)
    if index.is_file():
        with index.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return LegacyDataset(prefix, by_sequence)
    return open_tokens(prefix, by_sequence=by_sequence)


def convert(
    source: str | Path, target: str | Path, dtype: np.dtype[np.generic] | None = None, by_sequence: bool = False
) -> IndexedDataset:
    """Convert a dataset in either format, or its shards, to one `.bin/.idx` pair with the same sequences and documents.

    The folder of the target is created. Without `dtype` the ids keep their width. With `by_sequence` each sequence is a
    document. Returns the new pair, opened and checked.

    Raises:
        UserError: the target exists already or cannot be written, or an id does not fit the dtype.
        RunError: the disk is full.
    """
    dataset = open_any(source, by_sequence)
    kind = np.dtype(dtype or dataset.tokens.dtype)
    data, index = bin_path(target), idx_path(target)
    check_new_pair(Path(target), "target")
    try:
        make_folder(data.parent)
        _write(dataset, source, kind, data, index)
    except OSError as error:
        raise write_error(target, error, "give another target") from error
    return IndexedDataset(target)


def _write(dataset: TokenDataset, source: str | Path, kind: np.dtype[Any], data: Path, index: Path) -> None:
    # The index is renamed last: without it there is no dataset.
    with (
        atomic_file(index, index.with_name(f".tmp-{index.name}")) as index_draft,
        atomic_file(data, data.with_name(f".tmp-{data.name}")) as data_draft,
    ):
        limits, total = np.iinfo(kind), len(dataset.tokens)
        with data_draft.open("wb") as file:
            for start in range(0, total, BLOCK):
                block = dataset.tokens[start : min(start + BLOCK, total)]
                if block.size and not limits.min <= int(block.min()) <= int(block.max()) <= limits.max:
                    raise UserError(f"{source} contains the ids {block.min()} … {block.max()}, which do not fit {kind}")
                file.write(block.astype(kind).data)
        write_index(index_draft, dataset.lengths, kind, dataset.documents)
