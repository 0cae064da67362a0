"""MinHash signatures of real texts: ours and `datasketch.MinHash.bulk`, on one core.

`python -m benchmarks.sketch [--texts FILE.jsonl.gz] [--count N]`

1. Texts in, signatures out: ours against what a user of datasketch writes, word 5-grams joined by spaces and hashed by
   its default, sha1 to 32 bits; the splitting is in both.
2. The same shingles ready made: ours on 32-bit hashes, datasketch on the bytes of the shingles (it has to hash them).
3. The same 32-bit hashes given to both: the hardest peer, the permutations alone. They must give equal bits.
"""

import argparse
import gzip
import json
import re
import time

import numpy as np
import pyarrow as pa
from datasketch import MinHash
from datasketch.hashfunc import sha1_hash32
from rensa import RMinHash, RMinHashDigestMatrix

from benchmarks.pairs import compare, machine
from benchmarks.synthetic import shard
from tasks.dedup import kernels
from tasks.dedup.bands import with_bands
from tasks.dedup.minhash import Signatures, permutations, sign, sketch_texts
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Offsets, folded
from tasks.dedup.unicode_tables import normalise

WORD = re.compile(r"\w+")
SETTINGS = with_bands(DedupSettings())
COUNT = SETTINGS.num_bands * SETTINGS.rows_per_band


def shingles_of(text: str) -> list[bytes]:
    """Distinct word n-grams, as bytes."""
    words = WORD.findall(normalise(text))
    return list({" ".join(words[start : start + 5]).encode() for start in range(len(words) - 4)})


def bulk(shingles: list[list[bytes]]) -> list[MinHash]:
    """Signatures by datasketch with its default hash."""
    return MinHash.bulk(shingles, num_perm=COUNT, seed=SETTINGS.seed, scheme="affine32")


def rensa_matrix(shingles: list[list[bytes]]) -> RMinHashDigestMatrix:
    """Signatures by rensa's compiled kernel, of every shingle; its hash family is its own."""
    return RMinHash.digest_matrix_from_token_byte_sets(shingles, COUNT, SETTINGS.seed)


def bulk_hashed(hashes: list[list[int]]) -> list[MinHash]:
    """Signatures by datasketch of hashes that are there already."""
    return MinHash.bulk(hashes, num_perm=COUNT, seed=SETTINGS.seed, scheme="affine32", hashfunc=int)


def signatures_of(hashes: Signatures, starts: Offsets) -> Signatures:
    """Our signatures [documents, permutations] of 32-bit hashes; `starts` [documents + 1] delimits the documents."""
    a, b = permutations(COUNT, SETTINGS.seed)
    signatures = np.full((len(starts) - 1, COUNT), kernels.HIGH, dtype=np.uint32)
    for signature, begin, end in zip(signatures, starts, starts[1:], strict=False):
        kernels.sign(hashes, begin, end, a, b, signature)
    return signatures


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", help='lines of {"text": …}, gzipped; else synthetic documents of 300 words')
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    if given.texts:
        with gzip.open(given.texts, "rt", encoding="utf-8") as file:
            texts = [json.loads(line)["text"] for _, line in zip(range(given.count), file, strict=False)]
    else:
        texts = shard(np.arange(given.count), given.count, 1)["text"].to_pylist()
    texts = [text for text in texts if len(WORD.findall(text)) >= 5]
    column = pa.array(texts, pa.large_string())
    shingles = [shingles_of(text) for text in texts]
    lists = [[sha1_hash32(shingle) for shingle in some] for some in shingles]
    starts = np.cumsum([0, *map(len, lists)])
    hashes = np.array([value for some in lists for value in some], dtype=np.uint32)
    total = int(starts[-1])
    print(f"{machine()}; {len(texts):,} texts, {total / len(texts):.0f} shingles each, {COUNT} permutations")

    ours = signatures_of(hashes, starts)
    theirs = np.array([sketch.hashvalues for sketch in bulk(shingles)])
    assert (ours == theirs).all(), "the signatures differ"
    print("signatures of the same hashes: equal bit for bit")

    compare(
        "texts -> signatures",
        "docs",
        len(texts),
        {
            "ours": lambda: sign(folded(column, SETTINGS), SETTINGS),
            "ours, with bands and content": lambda: sketch_texts(column, SETTINGS),
            "datasketch bulk": lambda: bulk([shingles_of(text) for text in texts]),
            "rensa (other hashes)": lambda: rensa_matrix([shingles_of(text) for text in texts]),
        },
        rounds=5,
        clock=time.process_time,
    )
    compare(
        "shingles -> signatures",
        "docs",
        len(texts),
        {
            "ours, from texts": lambda: sign(folded(column, SETTINGS), SETTINGS),
            "datasketch bulk, sha1": lambda: bulk(shingles),
            "rensa (other hashes)": lambda: rensa_matrix(shingles),
        },
        rounds=5,
        clock=time.process_time,
    )
    compare(
        "32-bit hashes -> signatures",
        "docs",
        len(texts),
        {
            "ours": lambda: signatures_of(hashes, starts),
            "datasketch bulk, hashed": lambda: bulk_hashed(lists),
        },
        rounds=5,
        clock=time.process_time,
    )


if __name__ == "__main__":
    main()
