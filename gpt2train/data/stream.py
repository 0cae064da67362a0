"""A token data set as one stream, whether it lies in one `.bin/.idx` pair or in many.

Shards are named `<prefix>-00000-of-00003.bin`: the name says how many there are, so that one that is missing is seen.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpt2train.data.indexed import IndexedDataset, idx_path, shard_name
from gpt2train.errors import RunError, UserError


class Tokens(Protocol):
    """All tokens of a data set in a row: slices and arrays of places are read."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, places: Any) -> np.ndarray: ...


class TokenDataset(Protocol):
    """What the samplers ask of a data set."""

    @property
    def lengths(self) -> np.ndarray:
        """[S] tokens of each sequence."""

    @property
    def documents(self) -> np.ndarray:
        """int64 [D + 1] first sequence of each document."""

    @property
    def tokens(self) -> Tokens:
        """All tokens in a row."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> np.ndarray: ...


class Joined:
    """Arrays read as if they lay one after the other; nothing is copied before it is asked for."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        self.dtype = parts[0].dtype

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, places: Any) -> np.ndarray:
        """A slice of step 1, or an integer array of any shape, with places from 0."""
        if isinstance(places, slice):
            start, stop, _ = places.indices(len(self))
            found = []
            for part, end in zip(self._parts, self._ends.tolist(), strict=True):
                first = end - len(part)
                if start < end and first < stop:
                    found.append(part[max(start - first, 0) : stop - first])
            return found[0] if len(found) == 1 else np.concatenate([np.empty(0, self.dtype), *found])
        wanted = np.asarray(places, dtype=np.int64)
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self):
            raise IndexError(
                f"places 0 … {len(self) - 1} are there, {int(wanted.min())} … {int(wanted.max())} asked for"
            )
        holders = np.searchsorted(self._ends, wanted, side="right")
        result = np.empty(wanted.shape, dtype=self.dtype)
        for holder in np.unique(holders):
            here = holders == holder
            part = self._parts[holder]
            result[here] = part[wanted[here] - (int(self._ends[holder]) - len(part))]
        return result


class ShardedDataset:
    """Several `.bin/.idx` pairs, read as one.

    Attributes:
        lengths: int32[S] tokens of each sequence (in memory, as are the documents: 12 bytes a document).
        documents: int64[D + 1] first sequence of each document.
        tokens: all tokens in a row.

    Raises:
        RunError: the pairs are not of one dtype.
    """

    def __init__(self, prefixes: Sequence[str | Path]) -> None:
        self.shards = [IndexedDataset(prefix) for prefix in prefixes]
        kinds = {str(shard.dtype) for shard in self.shards}
        if len(kinds) > 1:
            raise RunError(f"{prefixes[0]} and its shards hold tokens of {', '.join(sorted(kinds))}; make them again")
        self.lengths = np.concatenate([shard.lengths for shard in self.shards])
        ends = np.cumsum([len(shard) for shard in self.shards])
        marks = [shard.documents[:-1] + (end - len(shard)) for shard, end in zip(self.shards, ends, strict=True)]
        self.documents = np.concatenate([*marks, ends[-1:]]).astype(np.int64)
        self.tokens = Joined([shard.tokens for shard in self.shards])
        self._ends = ends

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Tokens of one sequence, a read-only view."""
        number = range(len(self))[index]
        holder = int(np.searchsorted(self._ends, number, side="right"))
        return self.shards[holder][number - int(self._ends[holder]) + len(self.shards[holder])]


def shard_prefixes(prefix: str | Path) -> list[Path]:
    """The prefixes of a data set's pairs: `prefix` itself, or its shards in order.

    Raises:
        UserError: shards of two sets lie there.
        RunError: a shard is missing.
    """
    place = Path(prefix)
    if idx_path(place).exists():
        return [place]
    pattern = re.compile(re.escape(place.name) + r"-\d{5}-of-(\d{5})\.idx")
    names = [path.name for path in place.parent.glob("*.idx")] if place.parent.is_dir() else []
    counts = {int(found[1]) for name in names if (found := pattern.fullmatch(name))}
    if not counts:
        return [place]  # opening it says what is missing
    if len(counts) > 1:
        raise UserError(f"{prefix} has shards of {len(counts)} data sets ({sorted(counts)} shards); keep one set")
    count = counts.pop()
    wanted = [place.with_name(shard_name(place.name, number, count)) for number in range(count)]
    for one in wanted:
        if not idx_path(one).exists():
            raise RunError(f"{idx_path(one)} is missing, one of {count} shards; make the tokens again")
    return wanted


def open_tokens(prefix: str | Path) -> TokenDataset:
    """Open the token data set of a prefix, one pair or many shards.

    Raises:
        UserError: a file is missing, or is not of this format.
        RunError: the files are truncated or do not belong together.
    """
    prefixes = shard_prefixes(prefix)
    return IndexedDataset(prefixes[0]) if len(prefixes) == 1 else ShardedDataset(prefixes)
