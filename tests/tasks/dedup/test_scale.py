"""Sixty thousand synthetic documents: what is planted is found, in bounded time and memory. `benchmarks.dedup` does it
with a million."""

from pathlib import Path

import pytest

from benchmarks.dedup import GIGA, measure, recall
from benchmarks.synthetic import COPIES, HUNDRED
from gpt2train.store.folder import Folder
from tasks.dedup.bands import with_bands
from tasks.dedup.settings import DedupSettings

COUNT = 60_000


@pytest.mark.slow
@pytest.mark.alone
def test_sixty_thousand_documents_are_deduplicated_in_bounds(tmp_path: Path) -> None:
    settings = with_bands(DedupSettings())
    measured = measure(Folder(tmp_path), COUNT, 2, settings)
    reasons = measured.manifest.outcome.reasons
    # One word of the 300 differs at 0.99, and in a few documents by chance it does not.
    assert COUNT * COPIES // HUNDRED <= reasons["exact_duplicate"] < COUNT * COPIES // HUNDRED + 10
    for similarity, share in recall(Folder(tmp_path), measured.manifest, COUNT, settings).items():
        promised = 1 - (1 - similarity**settings.rows_per_band) ** settings.num_bands
        # Of 600 pairs each: three standard deviations, and what became an exact copy at 0.99.
        assert share > promised - 3 * (promised * (1 - promised) / 600) ** 0.5 - 0.005
    assert measured.bytes < 2 * GIGA  # the gate of a million is 4
    assert measured.core_seconds / COUNT < 1800e-6  # 15 minutes of two cores for a million
