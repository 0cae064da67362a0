"""The data path with datatrove's own blocks: WARC -> shuffled tokens. Runs in datatrove's virtual environment.

    python -m venv /tmp/datatrove
    /tmp/datatrove/bin/pip install 'datatrove[io,processing]' lxml_html_clean spacy

Steps and settings are those of `flows.dataprep`: trafilatura without its precision mode and without its memory of
earlier pages, ftfy, fastText language identification (the same model file as ours, since its own is fetched from the
network), at least 128 GPT-2 tokens, no 13-gram of the evaluation set, MinHash of word 5-grams with 16 bands of 8 rows,
tokens shuffled and merged. The block that builds the decontamination index needs a package that fetches data sets; the
index is written here in its format instead, with its own hash and normalisation.

Usage: datatrove_path.py WARC_FOLDER OUTPUT WORKERS TOKENIZER_JSON LAMBADA_JSONL LANGUAGE_MODEL
"""

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import LambdaFilter, LanguageFilter
from datatrove.pipeline.formatters import FTFYFormatter
from datatrove.pipeline.readers import JsonlReader, WarcReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger, TokensCounter
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import create_hash_func
from datatrove.utils.lid import FT176LID
from datatrove.utils.text import ngrams, simplify_text
from datatrove.utils.word_tokenizers import load_word_tokenizer
from fasttext.FastText import _FastText

MIN_TOKENS = 128
DECONTAMINATION = NGramsDecontConfig(n_grams=13)
MINHASH = MinhashConfig(n_grams=5, num_buckets=16, hashes_per_bucket=8)


class BundledModel(FT176LID):
    """fastText's language model from a file that is there."""

    _loaded: Any = None

    @property
    def model(self) -> Any:
        """The model, loaded once a process."""
        if self._loaded is None:
            self._loaded = _FastText(os.environ["LANGUAGE_MODEL"])
        return self._loaded


def long_enough(document: Document) -> bool:
    """At least so many tokens."""
    return bool(document.metadata["token_count"] >= MIN_TOKENS)


def write_index(lambada: Path, folder: Path) -> None:
    """The evaluation set's n-grams in the format of datatrove's index."""
    words, hashed = load_word_tokenizer("eng"), create_hash_func(DECONTAMINATION.hash_config)
    found: set[int] = set()
    for line in lambada.read_text().splitlines():
        tokens = words.word_tokenize(simplify_text(json.loads(line)["text"], DECONTAMINATION.norm_config))
        found.update(hashed(" ".join(gram)) for gram in ngrams(tokens, DECONTAMINATION.n_grams))
    folder.mkdir(parents=True)
    np.array(sorted(found), dtype=DECONTAMINATION.hash_config.np_descr).tofile(folder / "lambada.index.hashes")


def main() -> None:
    """Run all stages; prints the documents and tokens that came out."""
    warcs, output, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    tokenizer, lambada = sys.argv[4], Path(sys.argv[5])
    os.environ["LANGUAGE_MODEL"] = sys.argv[6]
    tasks = len(list(warcs.glob("*.warc.gz")))
    write_index(lambada, output / "index")
    language = LanguageFilter(languages=["en"])
    language.model = BundledModel(["en"])

    def stage(name: str, pipeline: list, tasks: int) -> None:
        logs = str(output / "logs" / name)
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=min(workers, tasks), logging_dir=logs).run()

    stage(
        "clean",
        [
            WarcReader(str(warcs)),
            Trafilatura(favour_precision=False, deduplicate=False, timeout=30),
            FTFYFormatter(),
            language,
            TokensCounter(tokenizer),
            LambdaFilter(long_enough),
            NGramsDecontFilter(str(output / "index"), DECONTAMINATION),
            JsonlWriter(str(output / "clean")),
        ],
        tasks,
    )
    signatures, buckets, removed = (str(output / part) for part in ("signatures", "buckets", "remove"))
    cleaned = JsonlReader(str(output / "clean"))
    stage("signatures", [cleaned, MinhashDedupSignature(signatures, MINHASH)], tasks)
    stage("buckets", [MinhashDedupBuckets(signatures, buckets, config=MINHASH)], MINHASH.num_buckets)
    stage("cluster", [MinhashDedupCluster(buckets, removed, config=MINHASH)], 1)
    tokens = DocumentTokenizer(str(output / "tokens"), tokenizer, eos_token="<|endoftext|>", seed=1)
    stage("tokens", [cleaned, MinhashDedupFilter(removed), tokens], tasks)
    stage("merged", [DocumentTokenizerMerger(str(output / "tokens"), str(output / "merged"), "train", seed=1)], 1)
    documents = 0
    for file in sorted((output / "clean").glob("*.jsonl.gz")):
        with gzip.open(file) as lines:
            documents += sum(1 for _ in lines)
    size = sum(file.stat().st_size for file in (output / "merged").glob("*.ds"))
    print(json.dumps({"clean_documents": documents, "tokens": size // 2}))


if __name__ == "__main__":
    main()
