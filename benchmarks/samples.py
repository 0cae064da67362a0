"""Building the order of an epoch, against Megatron's rule as a plain loop, and keeping it on disk.

    python -m benchmarks.samples [--documents 1000000] [--tokens 1000000000] [--context 1024]

Lengths are drawn from a log-normal distribution, as those of web pages are; no token is read, so the .bin is a hole.
Expected: 10^9 tokens in 10^6 documents at 1,024 in at most 5 seconds.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.pairs import compare, machine
from gpt2train.data.epoch import Epoch, cached_epoch, corpus_identity
from gpt2train.data.indexed import bin_path, idx_path, write_index
from gpt2train.data.samples import Samples

LOOP_DOCUMENTS = 100_000  # of the plain loop, which is timed on a part


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=1_000_000_000)
    parser.add_argument("--context", type=int, default=1024)
    given = parser.parse_args()
    print(machine())
    lengths = draw_lengths(given.documents, given.tokens)
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    with tempfile.TemporaryDirectory() as folder:
        whole(Path(folder), lengths, given.context)
        identity = corpus_identity(bounds)
        cached_epoch(Path(folder), identity, bounds, given.context, 1, 0)
        compare(
            "an epoch again",
            "documents",
            given.documents,
            {
                "build": lambda: Epoch.build(bounds, given.context, 1, 0),
                "load what is kept": lambda: cached_epoch(Path(folder), identity, bounds, given.context, 1, 0),
            },
            clock=time.process_time,
        )
    some = bounds[: LOOP_DOCUMENTS + 1]
    compare(
        "the order of an epoch",
        "documents",
        len(some) - 1,
        {"ours": lambda: Epoch.build(some, given.context, 1, 0), "a plain loop": lambda: loop(some, given.context)},
        rounds=3,
        clock=time.process_time,
    )


def whole(folder: Path, lengths: np.ndarray, context: int) -> None:
    """From opening the files to the first batch: seconds, processor seconds, and memory that it took at its peak."""
    prefix = folder / "tokens"
    write_index(idx_path(prefix), lengths, "<u2")
    with bin_path(prefix).open("wb") as file:
        file.truncate(2 * int(lengths.sum()))
    before, started, computed = _peak(), time.perf_counter(), time.process_time()
    samples = Samples(prefix, context, 50257, seed=1)
    samples.locate([0])
    seconds, processor = time.perf_counter() - started, time.process_time() - computed
    print(
        f"{int(lengths.sum()):,} tokens, {len(lengths):,} documents, {samples.per_epoch:,} samples of {context}: open "
        f"and build in {seconds:.2f} s, {processor:.2f} s of one core, {_peak() - before:.0f} MiB more at the peak"
    )


def loop(bounds: np.ndarray, context: int) -> list[tuple[int, int]]:
    """Megatron-LM's sample index: for each sample its first document in the shuffled order and its offset in it."""
    random = np.random.RandomState(1)
    documents = np.arange(len(bounds) - 1)
    random.shuffle(documents)
    sizes = np.diff(bounds)
    index, place, offset = [(0, 0)], 0, 0
    for _ in range((int(bounds[-1]) - 1) // context):
        left = context + 1
        while left:
            there = int(sizes[documents[place]]) - offset
            left -= there
            if left <= 0:
                offset += left + there - 1  # the next sample begins with this one's last token
                left = 0
            else:
                place += 1
                offset = 0
        index.append((place, offset))
    random.shuffle(order := np.arange(len(index) - 1))
    return [index[number] for number in order]


def draw_lengths(documents: int, tokens: int) -> np.ndarray:
    """int64 [documents], 1 or more each, together `tokens`."""
    shape = np.random.default_rng(1).lognormal(0, 1, documents)
    ends = np.floor(np.cumsum(shape) / shape.sum() * (tokens - documents)).astype(np.int64)
    ends[-1] = tokens - documents
    return np.diff(ends, prepend=0) + 1


def _peak() -> float:
    """Largest resident memory so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
