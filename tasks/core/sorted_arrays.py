"""Sets as ascending arrays of numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]


def sorted_unique(numbers: Numbers) -> Numbers:
    """Distinct numbers in ascending order.

    `numpy.unique` hashes numbers since NumPy 2.3, which takes 5 to 30 times as long as sorting them.
    """
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def isin_sorted(numbers: Numbers, ascending: Numbers) -> npt.NDArray[np.bool_]:
    """Mask of the numbers that are in an ascending array."""
    if not len(ascending):
        return np.zeros(len(numbers), dtype=bool)
    return ascending[np.minimum(np.searchsorted(ascending, numbers), len(ascending) - 1)] == numbers
