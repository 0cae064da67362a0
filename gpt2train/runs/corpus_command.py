"""The commands `gpt2train data index` and `gpt2train data contamination`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.errors import UserError


def index(
    source: Path,
    /,
    *,
    split: Literal["train", "valid", "test"] = "train",
    weights: str | None = None,
    output: Path | None = None,
    workers: Annotated[int, Parameter(validator=Number(gte=1, lte=1024))] = 1,
) -> None:
    """Index tokens for gpt2train trace --text, by suffix arrays: 4.1 bytes per token beside the tokens.

    A finished index is kept, an interrupted one is completed. Other tokens get an index of their own.

    Parameters
    ----------
    source
        Output folder of the data steps, run folder (all its corpora), or prefix of token files.
    split
        Split of the tokens.
    weights
        Weights of train, valid and test, such as 949,50,1, to index one part of token files without splits.
    output
        Folder of the indexes; by default token_index beside tokens/, or beside the files of a prefix.
    workers
        Blocks of 67 million tokens that are built at a time; each takes 2 GB of memory.
    """
    from gpt2train.data.suffix_index import build_index, index_root
    from gpt2train.runs.text_trace import find_source
    from gpt2train.store.files import format_bytes

    found = find_source(source, split, weights)
    if not found.corpora:
        raise UserError(f"{source} has no {split} tokens")
    for corpus, dataset in zip(found.corpora, found.open(), strict=True):
        total, done = len(dataset.tokens), 0

        def report(tokens: int, total: int = total) -> None:
            nonlocal done
            done += tokens
            if sys.stderr.isatty():
                print(f"\r{done:,} of {total:,} tokens", end="" if done < total else "\n", file=sys.stderr, flush=True)

        folder = build_index(dataset, output or index_root(corpus.prefix), workers=workers, progress=report)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{corpus.prefix}: {total:,} tokens, {format_bytes(size)}, {size / max(1, total):.2f} bytes per token")
        print(f"index: {folder}")


def contamination(
    sets: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    data: Path | None = None,
    run: Path | None = None,
    key: str | None = None,
    min_tokens: Annotated[int, Parameter(validator=Number(gte=1))] = 13,
    index: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Measure how much of evaluation sets the training tokens contain verbatim; the tokens need an index.

    The result is also written to contamination.json in the output folder of --data.

    Parameters
    ----------
    sets
        JSON lines, Parquet, or texts with a passage per line; packed or not.
    data
        Output folder of the data steps, or prefix of token files.
    run
        Run folder, whose corpora are searched together.
    key
        Key or column of the text; by default all texts of a row.
    min_tokens
        Length of the shortest spans.
    index
        Folder of the indexes; by default token_index beside tokens/.
    json_
        Print JSON with the longest spans.
    """
    from gpt2train.runs.contamination import as_table, measure, write_result
    from gpt2train.runs.text_trace import TextTracer, find_source

    place = run or data
    if place is None or (run and data):
        raise UserError("give --run, a run folder, or --data, an output folder or a prefix of token files")
    if len({path.name for path in sets}) < len(sets):
        raise UserError("two sets have the same file name, by which results are kept; rename one")
    tracer = TextTracer(find_source(place), index)
    found = [measure(tracer, path, key, min_tokens) for path in sets]
    print(json.dumps([asdict(one) for one in found], ensure_ascii=False, indent=1) if json_ else as_table(found))
    if data is not None and (data / "tokens").is_dir():
        written = write_result(data, found, sum(one.tokens for one in tracer.indexes))
        print(f"result: {written}", file=sys.stderr if json_ else sys.stdout)
