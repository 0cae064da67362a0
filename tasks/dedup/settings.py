"""The settings of deduplication."""

from typing import Literal

from pydantic import Field

from gpt2train.settings import Settings


class DedupSettings(Settings):
    """What counts as a repetition, and which one stays."""

    threshold: float = Field(default=0.8, gt=0, le=1)
    """Two documents are near duplicates from this exact Jaccard similarity of their word n-grams on (Megatron: 0.7)."""
    ngram: int = Field(default=5, ge=1, le=32)
    """Words in a shingle; documents with fewer words are compared by exact hash only."""
    bands: int = Field(default=16, ge=1, le=256)
    """Bands of the signature. 16 bands of 8 rows make 95 % of the pairs at Jaccard 0.8 candidates, 99.4 % at 0.85."""
    rows: int = Field(default=8, ge=1, le=64)
    """Rows (hash functions) in a band; all must agree to make a candidate pair."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seed of the permutations, as datasketch's."""
    sketch_characters: int = Field(default=500_000, ge=1)
    """The sketch reads so much of a text: signatures of longer ones saturate. The verification reads all of it."""
    pivots: int = Field(default=64, ge=1)
    """In a bucket, each document is paired with so many of the best-ranked ones; smaller buckets give all pairs."""
    policy: Literal["greedy", "connected"] = "greedy"
    """`greedy`: drop a document only if it is verified against one that is kept. `connected`: keep one a cluster."""
