"""Bootstrap intervals over the items of a task (Efron 1979): percentiles of the metric over resampled items."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt2train.evaluate.metrics import significant

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)


def resampled_sums(columns: Sequence[Sequence[float]], seed: str) -> "np.ndarray[Any, Any]":
    """Return the sums of each column over items drawn with replacement, float64 [columns, resamples].

    The draw depends on the seed, the name of the task, and the number of items, so that two models are compared on the
    same resamples. `columns` are the numbers of the items, [columns, items].
    """
    import numpy as np  # here: the command's help does not need it

    values = np.asarray(columns, dtype=np.float64)
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.PCG64(number))
    count = values.shape[1]
    sums = np.empty((values.shape[0], RESAMPLES))
    for resample in range(RESAMPLES):
        times = np.bincount(generator.integers(0, count, count), minlength=count)
        sums[:, resample] = values @ times
    return sums


def interval(values: "np.ndarray[Any, Any]") -> list[float]:
    """Return the 95 % interval of resampled values, with 6 significant digits."""
    import numpy as np

    return [significant(float(value)) for value in np.percentile(values, PERCENTILES)]
