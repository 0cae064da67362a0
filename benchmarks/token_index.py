"""Index of training tokens: rate of building, bytes per token, and time of a search in real text.

`python -m benchmarks.token_index [--passages N]`

The corpus is reviews, news and speeches in the tokens of the published vocabulary. The searched passages are drawn from
it, and from documentation, which is not in it.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.corpora import DATA, pages, texts
from benchmarks.pairs import machine
from gpt2train.data.indexed import write_index
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.suffix_index import build_index
from gpt2train.data.suffix_search import SuffixIndex, find_spans
from gpt2train.data.tokenizer import build_tokenizer, read_tables

LENGTH = 64  # tokens of a passage


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1000)
    given = parser.parse_args()
    tokenizer = build_tokenizer(*read_tables(DATA / "bpe"))

    def encode(found: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(found, add_special_tokens=False)]

    documents = encode(texts("text/imdb_dev") + texts("text/reuters_dev") + texts("text/speeches_dev"))
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


if __name__ == "__main__":
    main()
