"""Index of training tokens: rate of building, bytes per token, and time of a search in real text.

`python -m benchmarks.token_index [--passages N] [--blocks N]`

The corpus is reviews, news and speeches in the tokens of the published vocabulary. The searched passages are drawn from
it, and from documentation, which is not in it.

With --blocks the corpus is repeated, in another order of its documents, until it fills a block of the index, and the
block is copied: 15 blocks are 10^9 tokens. They are searched first with the files out of the page cache.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.corpora import DATA, pages, texts
from benchmarks.pairs import machine
from gpt2train.data.indexed import write_index
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.suffix_index import BLOCK_TOKENS, build_index
from gpt2train.data.suffix_search import SuffixIndex, find_spans
from gpt2train.data.tokenizer import load_tokenizer

LENGTH = 64  # tokens of a passage


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1000)
    parser.add_argument("--blocks", type=int)
    given = parser.parse_args()
    tokenizer = load_tokenizer(DATA / "bpe")
    assert isinstance(tokenizer, Tokenizer)

    def encode(found: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(found, add_special_tokens=False)]

    documents = encode(texts("text/imdb_dev") + texts("text/reuters_dev") + texts("text/speeches_dev"))
    if given.blocks:
        search_blocks(documents, given.blocks, given.passages)
        return
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "tokens"
        np.concatenate([np.array(document, dtype="<u2") for document in documents]).tofile(f"{prefix}.bin")
        write_index(f"{prefix}.idx", [len(document) for document in documents], "<u2")
        dataset = open_tokens(prefix)
        started = time.process_time()
        built = build_index(dataset, Path(folder) / "index")
        spent = time.process_time() - started
        size, count = sum(file.stat().st_size for file in built.iterdir()), len(dataset.tokens)
        print(machine())
        print(f"{count / 1e6:.1f} million tokens: {count / spent / 1e6:.2f} million tokens a core second to build, ")
        print(f"{size / count:.2f} bytes per token")
        index, rng = SuffixIndex(dataset, Path(folder) / "index"), random.Random(1)
        long = [document for document in documents if len(document) > LENGTH]
        planted = [(document := rng.choice(long))[(at := rng.randrange(len(document) - LENGTH)) : at + LENGTH]
                   for _ in range(given.passages)]  # fmt: skip
        others = [ids[:LENGTH] for ids in encode(pages(given.passages)) if len(ids) >= LENGTH]
        for name, passages in (("in the corpus", planted), ("not in the corpus", others)):
            started = time.perf_counter()
            spans = [find_spans([index], passage, 8) for passage in passages]
            each = (time.perf_counter() - started) / len(passages)
            whole = sum(any(span.end - span.start == LENGTH for span in found) for found in spans)
            print(
                f"{len(passages)} passages of {LENGTH} tokens {name}: {whole} found whole, "
                f"{sum(map(len, spans))} spans, {1e3 * each:.2f} ms a passage, {1e6 * each / LENGTH:.0f} us a position"
            )


def search_blocks(documents: list[list[int]], blocks: int, passages: int) -> None:
    """Print the time of a search in a number of full blocks."""
    rng, order, total = np.random.default_rng(1), list[int](), 0
    while total < BLOCK_TOKENS - 100_000:
        order += (shuffled := rng.permutation(len(documents)).tolist())
        total += sum(len(documents[n]) for n in shuffled)
    arrays = [np.array(document, dtype="<u2") for document in documents]
    while total > BLOCK_TOKENS:
        total -= len(arrays[order.pop()])
    with tempfile.TemporaryDirectory(dir=".") as folder:  # on the disk: /tmp may be in memory
        places = [Path(folder) / str(number) for number in range(blocks)]
        places[0].mkdir()
        np.concatenate([arrays[n] for n in order]).tofile(places[0] / "tokens.bin")
        write_index(places[0] / "tokens.idx", [len(arrays[n]) for n in order], "<u2")
        build_index(open_tokens(places[0] / "tokens"), places[0] / "index")
        for place in places[1:]:
            shutil.copytree(places[0], place)
        print(f"{machine()}\n{blocks * total / 1e6:,.0f} million tokens in {blocks} blocks")
        long = [n for n in order if len(arrays[n]) > LENGTH]
        indexes: list[SuffixIndex] = []
        for name in ("files out of the page cache", "in the page cache"):
            found = []
            if not name.startswith("files"):
                read_all(Path(folder))
            for _ in range(passages):
                document = documents[long[int(rng.integers(len(long)))]]
                at = int(rng.integers(len(document) - LENGTH))
                if name.startswith("files"):
                    indexes.clear()  # mapped pages would stay
                    drop_from_cache(Path(folder))
                    indexes += [SuffixIndex(open_tokens(place / "tokens"), place / "index") for place in places]
                started = time.perf_counter()
                spans = find_spans(indexes, document[at : at + LENGTH], 8)
                found.append(time.perf_counter() - started)
                assert any(span.end - span.start == LENGTH for span in spans)
            times = f"median {np.median(found):.3f} s, most {max(found):.3f} s"
            print(f"{passages} passages of {LENGTH} tokens, {name}: {times}", flush=True)


def read_all(folder: Path) -> None:
    """Read all files, so that the system keeps them in its page cache: 6 bytes a token of free memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(2**24):
                    pass


def drop_from_cache(folder: Path) -> None:
    """Let the system forget the pages of all files that no process has mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
