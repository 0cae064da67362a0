"""Writer of token files, document by document."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2train.data.indexed import bin_path, idx_path, write_index


class IndexedWriter:
    """Writer of `<prefix>.bin`, document by document, and then `<prefix>.idx`. The files are valid only after `finish`.

    Args:
        prefix: path of both files without extension.
        dtype: dtype of a token; see `token_dtype`.
    """

    def __init__(self, prefix: str | Path, dtype: npt.DTypeLike) -> None:
        self.prefix, self.dtype = Path(prefix), np.dtype(dtype)
        self._limits = np.iinfo(self.dtype)
        self._lengths: list[int] = []
        self._file = bin_path(self.prefix).open("wb")

    def add(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Append one document.

        Raises:
            ValueError: an id does not fit the dtype.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        if ids.size and not (self._limits.min <= int(ids.min()) and int(ids.max()) <= self._limits.max):
            raise ValueError(f"token ids {int(ids.min())}..{int(ids.max())} do not fit {self.dtype}")
        self._file.write(ids.astype(self.dtype).data)
        self._lengths.append(len(ids))

    def finish(self) -> None:
        """Close `.bin` and write `.idx`."""
        self._file.close()
        write_index(idx_path(self.prefix), self._lengths, self.dtype)

    def __enter__(self) -> "IndexedWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.finish()
        else:
            self._file.close()


def write_documents(prefix: Path, documents: Iterable[Sequence[int]], dtype: str = "<u2") -> Path:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(document)
    return prefix


def sequences(dataset: Any) -> list[list[int]]:
    bounds = [0, *np.cumsum(dataset.lengths).tolist()]
    return [dataset.tokens[start:end].tolist() for start, end in pairwise(bounds)]
