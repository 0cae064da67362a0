"""Token dataset read as one stream, from one `.bin/.idx` pair, one raw `.bin` file, or several shards of either.

Shards are named `<prefix>-00000-of-00003.bin`. The name contains the number of shards, so that a missing one is
detected.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt2train.data.document_split import PARTS, Part, split_documents
from gpt2train.data.indexed import IndexedDataset, idx_path, shard_name
from gpt2train.data.mock_tokens import MOCK, MockDataset
from gpt2train.data.raw_tokens import RawDataset, is_raw, plain_prefix
from gpt2train.data.read_ahead import read_ahead
from gpt2train.errors import RunError, UserError
from gpt2train.store.removal import check_no_removal_above


class ConcatenatedArrays:
    """Lazy concatenation of arrays; data is copied only when it is read."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        self.dtype = parts[0].dtype

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Read a slice of step 1, or an integer array of indices of any shape."""
        if isinstance(indices, slice):
            start, stop, _ = indices.indices(len(self))
            found = []
            for part, end in zip(self._parts, self._ends.tolist(), strict=True):
                first = end - len(part)
                if start < end and first < stop:
                    found.append(part[max(start - first, 0) : stop - first])
            return found[0] if len(found) == 1 else np.concatenate([np.empty(0, self.dtype), *found])
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self):
            raise IndexError(f"valid indices are 0 … {len(self) - 1}, got {int(wanted.min())} … {int(wanted.max())}")
        numbers = np.searchsorted(self._ends, wanted, side="right")
        result = np.empty(wanted.shape, dtype=self.dtype)
        for number in np.unique(numbers):
            mask = numbers == number
            part = self._parts[number]
            result[mask] = part[wanted[mask] - (int(self._ends[number]) - len(part))]
        return result

    def read_ahead(self, places: np.ndarray, items: int) -> None:
        """Begin to read `items` items at each place, as `read_ahead.read_ahead` of one array."""
        numbers = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(numbers):
            part = self._parts[number]
            read_ahead(part, places[numbers == number] - (int(self._ends[number]) - len(part)), items)

    def part(self, start: int, stop: int) -> "ConcatenatedArrays":
        """View of the items from `start` to `stop`; unlike a slice, it copies nothing."""
        firsts = [end - len(part) for part, end in zip(self._parts, self._ends.tolist(), strict=True)]
        bounds = [(max(start - first, 0), max(stop - first, 0)) for first in firsts]
        return ConcatenatedArrays([part[low:high] for part, (low, high) in zip(self._parts, bounds, strict=True)])


def _open_one(prefix: str | Path, by_sequence: bool) -> IndexedDataset | RawDataset:
    return RawDataset(prefix) if is_raw(prefix) else IndexedDataset(prefix, by_sequence)


class ShardedDataset:
    """Several pairs or raw files, read as one `IndexedDataset`; `lengths` and `documents` take 12 bytes of memory each.

    Arguments are those of `IndexedDataset`.

    Raises:
        RunError: the pairs have different dtypes.
    """

    def __init__(self, prefixes: Sequence[str | Path], by_sequence: bool = False) -> None:
        self.shards = [_open_one(prefix, by_sequence) for prefix in prefixes]
        kinds = {str(shard.dtype) for shard in self.shards}
        if len(kinds) > 1:
            raise RunError(f"{prefixes[0]} and its shards have the dtypes {', '.join(sorted(kinds))}; make them again")
        self.lengths = np.concatenate([shard.lengths for shard in self.shards])
        ends = np.cumsum([len(shard) for shard in self.shards])
        marks = [shard.documents[:-1] + (end - len(shard)) for shard, end in zip(self.shards, ends, strict=True)]
        self.documents = np.concatenate([*marks, ends[-1:]]).astype(np.int64)
        self.tokens = ConcatenatedArrays([shard.tokens for shard in self.shards])
        self._ends = ends

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Tokens of one sequence, a read-only view."""
        number = range(len(self))[index]
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return self.shards[shard][number - int(self._ends[shard]) + len(self.shards[shard])]


class DatasetPart:
    """Consecutive documents of a dataset, as a dataset of their own; no token is copied."""

    def __init__(self, dataset: "IndexedDataset | RawDataset | ShardedDataset | MockDataset", documents: range) -> None:
        first, last = (int(dataset.documents[number]) for number in (documents.start, documents.stop))
        self.lengths = dataset.lengths[first:last]
        self.documents = dataset.documents[documents.start : documents.stop + 1] - first
        start = int(dataset.lengths[:first].sum(dtype=np.int64))
        stop = start + int(self.lengths.sum(dtype=np.int64))
        whole = dataset.tokens
        self.tokens = whole.part(start, stop) if isinstance(whole, ConcatenatedArrays) else whole[start:stop]
        self.dtype = whole.dtype
        self._dataset, self._first = dataset, first

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Tokens of one sequence, a read-only view."""
        return self._dataset[range(len(self))[index] + self._first]


TokenDataset = IndexedDataset | RawDataset | ShardedDataset | MockDataset | DatasetPart


def shard_prefixes(prefix: str | Path) -> list[Path]:
    """List the prefixes of a dataset's pairs: `prefix` itself, or its shards in order.

    A raw file stands for itself, and a pattern such as `fineweb_train_*.bin` for its files in the order of their names.

    Raises:
        UserError: the folder has shards of several datasets with this prefix.
        RunError: a shard is missing.
    """
    base = Path(plain_prefix(prefix))
    if is_raw(base):
        pattern, mark, end = base.name.partition("#")
        files = sorted(base.parent.glob(pattern)) if "*" in pattern else []
        return [Path(f"{file}{mark}{end}") for file in files] or [base]
    if idx_path(base).exists():
        return [base]
    numbered = re.compile(re.escape(base.name) + r"-\d{5}-of-(\d{5})\.idx")
    names = [path.name for path in base.parent.glob("*.idx")] if base.parent.is_dir() else []
    counts = {int(found[1]) for name in names if (found := numbered.fullmatch(name))}
    if not counts:
        return [base]  # opening it raises an error that names the missing file
    if len(counts) > 1:
        raise UserError(f"{prefix} has shards of {len(counts)} datasets ({sorted(counts)} shards); keep one set")
    count = counts.pop()
    shards = [base.with_name(shard_name(base.name, number, count)) for number in range(count)]
    for shard in shards:
        if not idx_path(shard).exists():
            raise RunError(f"{idx_path(shard)} is missing, one of {count} shards; make the tokens again")
    return shards


def open_tokens(
    prefix: str | Path, split: Sequence[float] | None = None, part: Part = "train", *, by_sequence: bool = False
) -> TokenDataset:
    """Open the token dataset of a prefix, one pair or several shards; with weights of a split, one part of it.

    `mock:VOCAB` is no prefix, but mock tokens of a vocabulary.

    Errors are those of `IndexedDataset` and `shard_prefixes`.

    Raises:
        UserError: a removal of pages was interrupted in the output that has the tokens.
    """
    dataset: IndexedDataset | RawDataset | ShardedDataset | MockDataset
    if str(prefix).startswith(MOCK):
        dataset = MockDataset(str(prefix))
    else:
        check_no_removal_above(prefix)
        prefixes = shard_prefixes(prefix)
        one = len(prefixes) == 1
        dataset = _open_one(prefixes[0], by_sequence) if one else ShardedDataset(prefixes, by_sequence)
    if split is None:
        return dataset
    return DatasetPart(dataset, split_documents(len(dataset.documents) - 1, split)[PARTS.index(part)])
