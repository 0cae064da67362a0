"""The settings of deduplication."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from gpt2train.settings import Settings

MEGATRON: dict[str, Any] = {
    # find_duplicates.py of Megatron-LM's tools/openwebtext as its README runs it. It records pairs above 0.5, but
    # group_duplicate_url.py then takes those from 0.7 on, so that 0.7 is what counts. Its shingles leave out the last
    # one of each text (off by one), and its signatures let all short texts collide: neither is repeated here.
    "shingle": "characters",
    "ngram": 5,
    "normalise": False,
    "bands": 10,
    "rows": 10,
    "threshold": 0.7,
    "policy": "connected",
}


class DedupSettings(Settings):
    """What counts as a repetition, and which one stays."""

    parity: Literal["megatron"] | None = None
    """`megatron`: the parameters of Megatron-LM's tools (raw texts, character 5-grams, 10 bands of 10 rows, threshold
    0.7, connected), to compare counts; what is set beside it wins."""
    shingle: Literal["words", "characters"] = "words"
    """What n-grams are made of. Characters find more edits inside words, but sets are seven times as large, and
    templates that share phrases look alike sooner; take them for languages without spaces between words."""
    ngram: int = Field(default=5, ge=1, le=32)
    """Words or characters in a shingle; documents with fewer are compared by exact hash only."""
    normalise: bool = True
    """Compare texts after NFKC, casefolding and joining of white space; False: as they stand."""
    threshold: float = Field(default=0.8, gt=0, le=1)
    """Two documents are near duplicates from this exact similarity of their shingles on."""
    jaccard: Literal["union", "min", "max"] = "union"
    """What the common shingles are divided by: those of both (Jaccard), of the smaller or of the larger document. The
    candidates are found by `union` in any case."""
    bands: int = Field(default=16, ge=1, le=256)
    """Bands of the signature. 16 bands of 8 rows make 95 % of the pairs at Jaccard 0.8 candidates, 99.4 % at 0.85."""
    rows: int = Field(default=8, ge=1, le=64)
    """Rows (hash functions) in a band; all must agree to make a candidate pair."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seed of the permutations, as datasketch's."""
    sketch_characters: int = Field(default=500_000, ge=1)
    """The sketch reads so much of a text: signatures of longer ones saturate. The verification reads all of it."""
    pivots: int = Field(default=64, ge=1)
    """Up to so many documents and one more, a bucket gives all its pairs; in a larger one each document is paired with
    so many of the best-ranked ones, and with fewer where that makes more than a million pairs."""
    policy: Literal["greedy", "connected"] = "greedy"
    """`greedy`: drop a document only if it is verified against one that is kept. `connected`: keep one a cluster."""
    earlier: tuple[str, ...] = ()
    """Folders or URLs of earlier deduplications (`old-output/dedup`): documents that repeat one which was kept there
    are dropped. They must have been made with the same sketch settings, and must still be there with their texts."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_parity(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("parity") == "megatron":
            return {**MEGATRON, **given}
        return given


SKETCH = ("shingle", "ngram", "normalise", "bands", "rows", "seed", "sketch_characters")
"""The settings that must agree between sketches that are compared."""
