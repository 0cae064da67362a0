"""Token files of given documents, and what a token file holds, as lists."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpt2train.indexed_writer import IndexedWriter


def write_documents(prefix: Path, documents: Iterable[Sequence[int]], dtype: str = "<u2") -> Path:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(document)
    return prefix


def sequences(dataset: Any) -> list[list[int]]:
    bounds = [0, *np.cumsum(dataset.lengths).tolist()]
    return [dataset.tokens[start:end].tolist() for start, end in pairwise(bounds)]
