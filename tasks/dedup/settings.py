"""Settings of the deduplication."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from gpt2train.settings import Settings

MAX_BANDS, MAX_ROWS = 256, 64
Policy = Literal["greedy", "connected", "containment"]

MEGATRON: dict[str, Any] = {
    # find_duplicates.py of Megatron-LM's tools/openwebtext as its README runs it. It records pairs above 0.5, but
    # group_duplicate_url.py then uses those from 0.7 on, so the threshold is 0.7. Two of its errors are not reproduced:
    # the last shingle of each text is missing (off by one), and the signatures of all short texts collide.
    "shingle": "characters",
    "ngram": 5,
    "normalise": False,
    "num_bands": 10,
    "rows_per_band": 10,
    "threshold": 0.7,
    "policy": "connected",
}


class DedupSettings(Settings):
    """Definition of a duplicate, and the choice of the kept document."""

    parity: Literal["megatron"] | None = None
    """`megatron`: defaults of Megatron-LM's tools (raw texts, character 5-grams, 10 bands of 10 rows, threshold 0.7,
    connected), to compare counts; other settings override them."""
    shingle: Literal["words", "characters"] = "words"
    """Units of a shingle. Characters find more edits inside words, but the sets are seven times as large, and templates
    with common phrases become similar sooner. In scripts without spaces between words (Chinese, Japanese, Thai) each
    letter is a word."""
    ngram: int = Field(default=5, ge=1, le=32)
    """Words or characters per shingle; documents with fewer are compared by exact hash only."""
    normalise: bool = True
    """Compare texts after NFKC, case folding, collapsing of white space and removal of invisible characters; False:
    unchanged."""
    threshold: float = Field(default=0.8, gt=0, le=1)
    """Minimum exact similarity of the shingle sets of two near duplicates."""
    jaccard: Literal["union", "min", "max"] = "union"
    """Denominator of the similarity: the union of both sets (Jaccard), the smaller or the larger set. Candidates are
    always found by `union`."""
    recall: float = Field(default=0.94, ge=0.5, lt=1)
    """Share of the pairs with similarity `threshold` that become candidates, where `num_bands` or `rows_per_band` is
    derived; of more similar pairs it is larger. A higher recall makes more bands, and more candidates to verify."""
    num_bands: int = Field(default=0, ge=0, le=MAX_BANDS)
    """Bands of a signature. 0: as many as `recall` needs at the threshold, or those of `previous`."""
    rows_per_band: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Rows (hash functions) per band; all must agree for a candidate pair. 0: the most with which up to 128 hash
    functions reach `recall`: 16 bands of 8 rows at the threshold 0.8, 16 of 5 at 0.7; or those of `previous`."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seed of the permutations, as in datasketch."""
    sketch_characters: int = Field(default=500_000, ge=1)
    """Maximum characters of a text in its sketch: signatures of longer texts saturate. The verification reads all."""
    bucket_pivots: int = Field(default=64, ge=1)
    """Buckets of up to `bucket_pivots + 1` documents yield all pairs; in larger ones each document is paired with the
    `bucket_pivots` best-ranked ones (fewer above 2^20 pairs)."""
    policy: Policy = "greedy"
    """`greedy`: drop a document only if it is verified against a kept one. `connected`: keep one per cluster.
    `containment`: as `greedy`, and only if the kept one holds its text (`dedup.containment`)."""
    containment: float = Field(default=0.95, gt=0, le=1)
    """Policy `containment`: minimum share of the 3-grams of words of a dropped near duplicate that the kept document
    has too. A near duplicate of fewer than three words is kept."""
    stop_on_lost_source: bool = False
    """Stop the run after this step if a host or a source has lost more than 90 % of its documents, of which it had at
    least 20; without it they are named in the log and in the report. It changes no fingerprint."""
    engine: Literal["compiled", "datasketch"] = "compiled"
    """Code of the sketches, shingles and buckets; the results are equal. `compiled`: numba kernels if their sketches
    equal those of datasketch on a sample of the corpus, else datasketch. `datasketch`: plain Python and datasketch,
    many times slower."""
    previous: tuple[str, ...] = ()
    """Folders or URLs of previous deduplications (`old-output/dedup`): duplicates of documents that were kept there are
    dropped. They must have the same sketch settings, and must still exist with their texts."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_parity(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("parity") == "megatron":
            return {**MEGATRON, **given}
        return given


WORD_NGRAM = 3
"""Words of the n-grams by which it is measured how much of a dropped document the kept one holds."""

SKETCH = ("shingle", "ngram", "normalise", "num_bands", "rows_per_band", "seed", "sketch_characters")
"""Settings that must be equal in sketches that are compared."""


def word_shingles(settings: DedupSettings) -> DedupSettings:
    """Return the settings with shingles of `WORD_NGRAM` words, whatever the pairs are compared by.

    Three characters occur in any long text, so the containment is measured in words with shingles of characters too.
    """
    return settings.model_copy(update={"shingle": "words", "ngram": WORD_NGRAM})
