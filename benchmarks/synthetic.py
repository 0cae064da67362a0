"""Synthetic documents with planted duplicates of known similarity: vectorised, seeded, of any number.

Every word of every document is a function of (seed, document, place), so that a copy can be written without its
original at hand. Of each hundred documents 80 are originals, 5 exact copies of an original anywhere, and 15 begin with
the words of an original and go on with their own; how far they do gives the Jaccard similarity of word 5-grams.
"""

import functools

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import CLEAN, write_table
from tasks.core.step import Step

WORDS = 300
NGRAM = 5
VOCABULARY = 50_000
HUNDRED, ORIGINALS, COPIES = 100, 80, 5
SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.78, 0.82, 0.84, 0.86, 0.88, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)

Numbers = npt.NDArray[np.int64]


def documents(
    root: Folder, count: int, runner: Runner, per_shard: int = 10_000, seed: int = 1, copies: int = COPIES
) -> Manifest:
    """A finished step `clean` of this many documents, `copies` of each hundred exact copies."""
    parameters = {"count": count, "seed": seed, "copies": copies}
    step = Step(root, "clean", version=1, parameters=parameters, inputs={}, folder="clean")
    if done := runner.finished(step):
        return done
    starts = range(0, count, per_shard)
    return step.commit(Outcome.total(runner.batches(step, "part", starts, write_shard, per_shard, count, seed, copies)))


def write_shard(folder: Folder, name: str, start: int, per_shard: int, count: int, seed: int, copies: int) -> Outcome:
    """Write the documents from `start` on."""
    table = shard(np.arange(start, min(start + per_shard, count)), count, seed, copies)
    return Outcome(outputs=(write_table(folder, f"{name}.parquet", table),), seen=len(table), kept=len(table))


def shard(numbers: Numbers, count: int, seed: int, copies: int = COPIES) -> pa.Table:
    """These documents of `count`, in schema CLEAN; the url ends with the number."""
    originals, shared = plan(numbers, count, seed, copies)
    place = np.arange(WORDS)
    author = np.where(place[None, :] < shared[:, None], originals[:, None], numbers[:, None])
    draws = mix(mix(author.astype(np.uint64) + np.uint64(seed << 40)) + place.astype(np.uint64)[None, :])
    words, limits = vocabulary()
    chosen = np.searchsorted(limits, draws.ravel() >> np.uint64(11))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(len(numbers) + 1) * WORDS, pa.int32()), words.take(chosen))
    ids = [f"{number:032x}" for number in mix(numbers.astype(np.uint64)).tolist()]
    columns = {
        "id": pa.array(ids),
        "url": pa.array([f"http://example.org/{number}" for number in numbers.tolist()]),
        "text": pc.binary_join(lists, " ").cast(pa.large_string()),
        "source": pa.array(["synthetic"] * len(numbers)),
        "split": pa.array(["train"] * len(numbers)),
    }
    rest = {field.name: pa.nulls(len(numbers), field.type) for field in CLEAN if field.name not in columns}
    return pa.table({name: (columns | rest)[name] for name in CLEAN.names}, schema=CLEAN)


def plan(numbers: Numbers, count: int, seed: int, copies: int = COPIES) -> tuple[Numbers, Numbers]:
    """For each document the one that it repeats (itself if none), and how many of its words it repeats.

    With more exact copies there are fewer originals; the share of similar documents stays.
    """
    kind, whole = numbers % HUNDRED, HUNDRED - len(SIMILARITIES)
    authors = whole - copies
    other = (mix(numbers.astype(np.uint64) + np.uint64(seed)) % np.uint64(max(1, count // HUNDRED))).astype(np.int64)
    other = other * HUNDRED + numbers % authors
    originals = np.where(kind < authors, numbers, other)
    per_document = WORDS - NGRAM + 1
    similar = np.array(SIMILARITIES)
    common = np.rint(2 * per_document * similar / (1 + similar)).astype(np.int64) + NGRAM - 1
    shared = common[np.maximum(kind - whole, 0)]
    return originals, np.where(kind < whole, WORDS, shared)


@functools.cache
def vocabulary() -> tuple[pa.Array, npt.NDArray[np.uint64]]:
    """The words, and the limits between them for a draw of 53 bits: frequencies as 1 / (rank + 10)."""
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    random = np.random.default_rng(0)
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        length = 2 + len(words).bit_length() // 3 + int(random.integers(0, 4))
        words["".join(letters[letter] for letter in random.integers(0, 26, length).tolist())] = None
    weights = 1 / (np.arange(VOCABULARY) + 10)
    limits = (np.cumsum(weights) / weights.sum() * 2**53).astype(np.uint64)
    limits[-1] = 2**53
    return pa.array(list(words)), limits


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
