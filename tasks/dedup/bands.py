"""Bands and rows of a signature, derived from the threshold to a stated recall.

A pair of Jaccard similarity `s` has a common band, and so becomes a candidate, with probability
`1 - (1 - s^rows)^bands` (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4.2). More rows a band make fewer
candidates of unlike pairs, and need more bands for the same recall. Of all choices that reach the recall at the
threshold with at most `MAX_PERMUTATIONS` hash functions, the one with the most rows is taken, and as few bands as it
needs.
"""

import math

from tasks.dedup.settings import MAX_BANDS, MAX_ROWS, DedupSettings

MAX_PERMUTATIONS = 128  # of a derived signature: 17 µs for a document of 300 words


def bands_for(similarity: float, rows: int, recall: float) -> int:
    """Number of bands that reach the recall at a similarity, `MAX_BANDS + 1` if more are needed than there may be."""
    if similarity >= 1:
        return 1
    agreement = similarity**rows
    if 1 - (1 - agreement) ** MAX_BANDS < recall:
        return MAX_BANDS + 1
    # The rounding guards a recall that a whole number of bands reaches exactly.
    return max(1, math.ceil(round(math.log1p(-recall) / math.log1p(-agreement), 9)))


def with_bands(settings: DedupSettings) -> DedupSettings:
    """Return the settings with `num_bands` and `rows_per_band` above 0: derived where they are 0.

    Where no choice reaches the recall (a threshold below 0.03), it is one row a band and as many bands as there may be.
    """
    bands, rows = settings.num_bands, settings.rows_per_band
    if not rows:
        limit = settings.num_bands or MAX_BANDS
        rows = max((n for n in range(1, MAX_ROWS + 1) if _fits(settings, n, limit)), default=1)
    if not bands:
        bands = min(bands_for(settings.threshold, rows, settings.recall), MAX_BANDS)
    return settings.model_copy(update={"num_bands": bands, "rows_per_band": rows})


def _fits(settings: DedupSettings, rows: int, max_bands: int) -> bool:
    """Return True if bands of `rows` rows reach the recall within the bounds."""
    bands = bands_for(settings.threshold, rows, settings.recall)
    return bands <= max_bands and bands * rows <= MAX_PERMUTATIONS
