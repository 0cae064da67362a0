"""Search of token sequences in indexed tokens: every maximal span that occurs verbatim within one document.

All positions of a text are searched at once, by binary searches over whole arrays: first among the keys of a block,
which stay in memory, then among the 256 suffixes between two keys. Files are memory-mapped; a search of one position
reads about ten pages of a block.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt2train.data.indexed import TokenDataset, map_array
from gpt2train.data.suffix_index import index_folder, key_bytes, read_index_manifest
from gpt2train.data.token_arrays import read_ahead
from gpt2train.errors import UserError

COMPARED = 16  # tokens that are compared at a time
MAX_COMPARED = 1 << 16  # of all matches together, once they are long
SHORT = 256  # tokens of a match that is searched from each start alone
MAX_LISTED = 1 << 16  # occurrences of a span in a block among which the first ones are found


@dataclass(frozen=True)
class Span:
    """Part of a text that occurs verbatim in the tokens and is contained in no longer one."""

    start: int  # first token, counted from the start of the text
    end: int  # end of the span (exclusive)
    counts: tuple[int, ...]  # occurrences in each of the searched datasets
    positions: tuple[tuple[int, ...], ...]  # first token of some occurrences in each dataset, ascending

    @property
    def count(self) -> int:
        """Occurrences in all datasets."""
        return sum(self.counts)


class SuffixIndex:
    """Index of a token dataset, opened for searches.

    Raises:
        UserError: the tokens have no index there.
        RunError: the index is damaged.
    """

    def __init__(self, dataset: TokenDataset, root: Path) -> None:
        folder = index_folder(dataset, root)
        manifest = read_index_manifest(folder)
        if manifest is None:
            raise UserError(f"{root} has no index of these tokens; build it with gpt2train data index")
        self.dataset, self.bounds, self.folder = dataset, dataset.bounds(), folder
        self.tokens: int = manifest["tokens"]
        self._blocks = [_Block(folder, record, manifest, self) for record in manifest["blocks"] if record["tokens"]]

    def longest(self, text: np.ndarray, starts: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """Length of the longest match that begins at some tokens of a text and ends at its limit at the latest.

        Args:
            text: int64 [tokens].
            starts: int64 [matches] tokens of the text.
            limits: int64 [matches] end of the longest possible match.
        """
        found = np.zeros(len(starts), dtype=np.int64)
        for block in self._blocks:
            np.maximum(found, block.longest(text, starts, limits), out=found)
        return found

    def occurrences(
        self, text: np.ndarray, starts: np.ndarray, ends: np.ndarray, limit: int
    ) -> tuple[list[int], list[list[int]]]:
        """Count the occurrences of each `text[start:end]`, and list at most `limit` of them, in ascending order."""
        counts, listed = np.zeros(len(starts), dtype=np.int64), [list[int]() for _ in range(len(starts))]
        for block in self._blocks:
            low, high = block.intervals(text, starts, ends)
            counts += high - low
            for row in np.flatnonzero(low < high).tolist():
                if wanted := limit - len(listed[row]):  # blocks are in the order of the tokens
                    first = np.sort(block.suffixes[low[row] : min(high[row], low[row] + MAX_LISTED)])[:wanted]
                    listed[row] += (first.astype(np.int64) + block.first).tolist()
        return counts.tolist(), listed


def find_spans(
    indexes: Sequence[SuffixIndex],
    ids: Sequence[int],
    min_tokens: int,
    *,
    breaks: frozenset[int] = frozenset(),
    limit: int = 3,
) -> list[Span]:
    """Find every maximal span of at least `min_tokens` of a text that occurs in one of the indexed datasets.

    Args:
        indexes: opened indexes.
        ids: tokens of the text.
        min_tokens: length of the shortest spans.
        breaks: token ids that no span contains, such as the end of a document.
        limit: occurrences of a span to list for each dataset.

    Returns:
        The spans in the order of the text; they may overlap.
    """
    text = np.asarray(ids, dtype=np.int64)
    if len(text) < min_tokens:
        return []
    stops = np.append(np.flatnonzero(np.isin(text, sorted(breaks))), len(text))
    limits = stops[np.searchsorted(stops, np.arange(len(text)))]
    ends = _ends(indexes, text, limits)
    lengths = ends - np.arange(len(text))
    # A match that begins later ends no earlier, so that a span is maximal if it ends later than the one before it.
    maximal = (lengths >= min_tokens) & (ends > np.concatenate(([0], ends[:-1])))
    starts = np.flatnonzero(maximal)
    if not len(starts):
        return []
    found = [index.occurrences(text, starts, ends[starts], limit) for index in indexes]
    return [
        Span(
            start,
            int(ends[start]),
            tuple(counts[row] for counts, _ in found),
            tuple(tuple(listed[row]) for _, listed in found),
        )
        for row, start in enumerate(starts.tolist())
    ]


def _ends(indexes: Sequence[SuffixIndex], text: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """End of the longest match that begins at each token of a text.

    A match of more than `SHORT` tokens is searched once for all starts whose matches end with it: else a text of n
    tokens that is copied as a whole would take n^2 / 2 comparisons.
    """

    def ends_from(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        found = np.zeros(len(starts), dtype=np.int64)
        for index in indexes:
            np.maximum(found, index.longest(text, starts, stops), out=found)
        return starts + found

    starts = np.arange(len(text))
    short = np.minimum(limits, starts + SHORT)
    ends = ends_from(starts, short)
    cut = np.flatnonzero((ends == short) & (short < limits))  # longer matches may begin there
    exact = functools.cache(
        lambda number: int(ends_from(cut[number : number + 1], limits[cut[number : number + 1]])[0])
    )
    at = 0
    while at < len(cut):
        end, last = exact(at), at
        high = int(np.searchsorted(cut, exact(at)))  # a match ends after its start
        # Ends never decrease: the last start with this end, of which most have that of the whole range.
        middle = high - 1
        while high - last > 1:
            last, high = (middle, high) if exact(middle) == end else (last, middle)
            middle = (last + high) // 2
        ends[cut[at : last + 1]] = end
        at = last + 1
    return ends


class _Block:
    """Suffix array of consecutive documents."""

    def __init__(self, folder: Path, record: dict[str, Any], manifest: dict[str, Any], index: SuffixIndex) -> None:
        self.first, self.count, self.width = record["first_token"], record["tokens"], manifest["width"]
        self.stride, self.key_tokens = manifest["stride"], manifest["key_tokens"]
        suffixes, keys = record["files"]
        self.suffixes, _ = map_array(folder / suffixes, "<u4", self.count, 0)
        # Bytes of a fixed length are compared as unsigned numbers, and zeros at the end do not count: both are wanted.
        size = self.key_tokens * self.width
        self.keys = np.fromfile(folder / keys, dtype=np.uint8).reshape(-1, size).view(f"S{size}")[:, 0]
        self._dataset, self._bounds = index.dataset, index.bounds

    def longest(self, text: np.ndarray, starts: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """Length of the longest match of `text[start:limit]` for each start."""
        places = self._search(text, starts, limits, after=False)
        found = np.zeros(len(starts), dtype=np.int64)
        for neighbours in (places - 1, places):
            rows = np.flatnonzero((neighbours >= 0) & (neighbours < self.count))
            lengths, _ = self._compare(text, starts[rows], limits[rows], neighbours[rows])
            found[rows] = np.maximum(found[rows], lengths)
        return found

    def intervals(self, text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last (exclusive) of the suffixes that begin with each `text[start:end]`."""
        return self._search(text, starts, ends, after=False), self._search(text, starts, ends, after=True)

    def _search(self, text: np.ndarray, starts: np.ndarray, limits: np.ndarray, after: bool) -> np.ndarray:
        """Number of suffixes before `text[start:limit]`; with `after` also of those that begin with it."""
        low, high = self._between_keys(text, starts, limits)
        while len(rows := np.flatnonzero(low < high)):
            middle = (low[rows] + high[rows]) // 2
            lengths, larger = self._compare(text, starts[rows], limits[rows], middle)
            whole = lengths == limits[rows] - starts[rows]
            before = np.where(whole, after, ~larger)
            low[rows] = np.where(before, middle + 1, low[rows])
            high[rows] = np.where(before, high[rows], middle)
        return low

    def _between_keys(self, text: np.ndarray, starts: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the search, from the keys: those below it are before it, those above it are after it."""
        places = starts[:, None] + np.arange(self.key_tokens)
        inside = places < limits[:, None]
        values = np.minimum(text[np.minimum(places, len(text) - 1)] + 1, 256**self.width - 1)
        smallest, largest = np.where(inside, values, 0), np.where(inside, values, 256**self.width - 1)
        below = np.searchsorted(self.keys, self._as_keys(smallest), side="left")
        above = np.searchsorted(self.keys, self._as_keys(largest), side="right")
        return np.maximum(below - 1, 0) * self.stride, np.minimum(above * self.stride, self.count)

    def _as_keys(self, values: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(key_bytes(values, self.width)).reshape(len(values), self.key_tokens * self.width)
        return raw.view(self.keys.dtype)[:, 0]

    def _compare(
        self, text: np.ndarray, starts: np.ndarray, limits: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compare `text[start:limit]` with the suffixes at some places of the array.

        Returns:
            Number of equal tokens, and True where the suffix is the larger one after them.
        """
        read_ahead(self.suffixes, places, 1)
        positions = self.suffixes[places].astype(np.int64) + self.first
        tokens = self._dataset.tokens
        read_ahead(tokens, positions, COMPARED)
        stops = self._bounds[np.searchsorted(self._bounds, positions, side="right")]
        lengths = np.zeros(len(starts), dtype=np.int64)
        larger = np.zeros(len(starts), dtype=bool)
        rows, width = np.arange(len(starts)), COMPARED
        while len(rows):
            steps = lengths[rows, None] + np.arange(width)
            here, there = starts[rows, None] + steps, positions[rows, None] + steps
            ours = np.where(here < limits[rows, None], text[np.minimum(here, len(text) - 1)], -1)
            theirs = tokens[np.minimum(there, self.first + self.count - 1)].astype(np.int64)
            theirs[there >= stops[rows, None]] = -2  # never equal to the end of the text
            different = ours != theirs
            first = different.argmax(axis=1)
            done = different[np.arange(len(rows)), first]
            lengths[rows] += np.where(done, first, width)
            ended, at = rows[done], first[done]
            larger[ended] = theirs[done, at] > ours[done, at]
            rows = rows[~done]
            width = max(COMPARED, min(2 * width, MAX_COMPARED // max(1, len(rows))))
        return lengths, larger
