"""Overlap of evaluation sets with indexed tokens: examples with a span that the tokens contain verbatim.

Every text of a row counts, such as question, choices and answer; with a key only that one. The result is written as
`contamination.json` into the output folder, from which the report of a flow takes its table.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gpt2train.convert.markdown import table
from gpt2train.data.documents import PARQUET_MAGIC, Row, expand, read_rows
from gpt2train.data.suffix_search import Span, find_spans
from gpt2train.data.tokenizer import encode_ordinary
from gpt2train.errors import UserError
from gpt2train.runs.text_trace import TextTracer
from gpt2train.store.files import write_atomic
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import read_manifest

RESULT = "contamination.json"
MIN_TOKENS = 13  # as in the contamination study of GPT-3, in tokens instead of words
MAX_EXAMPLES = 10  # contaminated examples that are listed
BATCH_ROWS = 256  # searched at a time
BREAK = -1  # between two texts; no token
MAX_DEPTH = 20  # of lists and objects in a row


@dataclass(frozen=True)
class Example:
    """Row of an evaluation set that shares a span with the tokens."""

    row: int
    tokens: int  # length of the longest span
    count: int  # occurrences of that span
    text: str
    url: str | None


@dataclass(frozen=True)
class Contamination:
    """Overlap of one evaluation set."""

    name: str
    rows: int
    short: int  # rows without a text of `min_tokens` tokens, which cannot share a span
    contaminated: int
    tokens: int
    covered: int  # tokens in shared spans
    longest: int
    min_tokens: int
    examples: tuple[Example, ...]  # rows with the longest spans


def measure(tracer: TextTracer, path: Path, key: str | None = None, min_tokens: int = MIN_TOKENS) -> Contamination:
    """Measure the overlap of one file.

    Args:
        tracer: opened indexes.
        path: JSON lines, text or Parquet; archives and compressed files too.
        key: key or column of the text; None takes all texts of a row.
        min_tokens: length of the shortest spans.

    Raises:
        UserError: the file cannot be read, or has no text.
    """
    rows = short = contaminated = tokens = covered = longest = 0
    examples: list[Example] = []
    for batch in _batches(_rows(path, key), BATCH_ROWS):
        encoded = [encode_ordinary(tracer.tokenizer, texts) for _, texts in batch]
        lengths = [[len(ids) for ids in texts] for texts in encoded]
        rows += len(batch)
        short += sum(max(row) < min_tokens for row in lengths)
        tokens += sum(map(sum, lengths))
        joined = [token for texts in encoded for ids in texts for token in (*ids, BREAK)]
        ends = np.cumsum([sum(row) + len(row) for row in lengths])
        best: dict[int, Span] = {}
        reached = 0
        for span in find_spans(tracer.indexes, joined, min_tokens, breaks=frozenset((BREAK,)), limit=1):
            covered += span.end - max(span.start, reached)
            reached = span.end
            row = int(np.searchsorted(ends, span.start, side="right"))
            if row not in best or span.end - span.start > best[row].end - best[row].start:
                best[row] = span
        contaminated += len(best)
        found = [_example(tracer, batch[row][0], span, joined) for row, span in best.items()]
        examples = sorted([*examples, *found], key=lambda one: (-one.tokens, one.row))[:MAX_EXAMPLES]
        longest = max(longest, *(one.tokens for one in examples), 0)
    if not rows:
        raise UserError(f"{path} holds no text{f' under {key!r}' if key else ''}; give another file or --key")
    return Contamination(path.name, rows, short, contaminated, tokens, covered, longest, min_tokens, tuple(examples))


def _example(tracer: TextTracer, row: int, span: Span, ids: Sequence[int]) -> Example:
    corpus = next(number for number, places in enumerate(span.positions) if places)
    text = tracer.tokenizer.decode(list(ids[span.start : span.end]), skip_special_tokens=False)
    url = tracer.place(corpus, span.positions[corpus][0]).url
    return Example(row, span.end - span.start, span.count, text, url)


def write_result(folder: Path, found: Sequence[Contamination], indexed_tokens: int) -> Path:
    """Write the result for the report of the flow; earlier results of other sets with the same tokens stay."""
    path, identity = folder / RESULT, _identity(folder)
    earlier = parse_result(path.read_bytes()) if path.is_file() else []
    sets = {one["name"]: one for one in earlier if one["tokens_identity"] == identity}
    about = {"indexed_tokens": indexed_tokens, "tokens_identity": identity}
    sets |= {one.name: asdict(one) | about for one in found}
    text = json.dumps([sets[name] for name in sorted(sets)], ensure_ascii=False, indent=1) + "\n"
    write_atomic(path, text.encode())
    return path


def parse_result(content: bytes) -> list[dict[str, Any]]:
    """Parse a result; empty if it is none."""
    try:
        found = json.loads(content)
    except ValueError:
        return []
    keys = {"name", "tokens_identity", *Contamination.__dataclass_fields__}
    return [one for one in found if isinstance(one, dict) and keys <= one.keys()] if isinstance(found, list) else []


def _identity(folder: Path) -> str | None:
    """Identity of the tokens by the manifest of the step that made them; None if there is none."""
    made = read_manifest(Folder(folder / "tokens"))
    return made.identity if made else None


def as_table(found: Sequence[Contamination]) -> str:
    """Table of the sets, in Markdown."""
    rows = [
        (
            one.name,
            f"{one.rows:,}",
            f"{one.contaminated:,}",
            f"{100 * one.contaminated / one.rows:.1f} %",
            f"{100 * one.covered / max(1, one.tokens):.1f} %",
            f"{one.longest:,}",
        )
        for one in found
    ]
    return table(("set", "rows", "contaminated", "share", "tokens covered", "longest span"), rows)


def _batches(rows: Iterator[tuple[int, list[str]]], size: int) -> Iterator[list[tuple[int, list[str]]]]:
    while batch := list(islice(rows, size)):
        yield batch


def _rows(path: Path, key: str | None) -> Iterator[tuple[int, list[str]]]:
    """Number, from 1, and texts of each row that has any."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the files of the evaluation sets")
    for number, row in enumerate(_cells(expand([path])[0], key), 1):
        texts = [text for text in _texts(row, key) if text.strip()]
        if texts:
            yield number, texts


def _cells(path: Path, key: str | None) -> Iterator[Any]:
    with path.open("rb") as start:
        is_parquet = start.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
    if is_parquet:
        yield from _parquet(path, key)
        return
    for row in read_rows(path, key or "text"):
        yield from _values(row)


def _parquet(path: Path, key: str | None) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if key is not None and key not in file.schema_arrow.names:
                raise UserError(f"{path} has no column {key!r}, but {', '.join(file.schema_arrow.names)}")
            for batch in file.iter_batches(1024, columns=None if key is None else [key]):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0][:150]
        raise UserError(f"{path} is not a valid Parquet file ({reason}); copy it again") from error


def _values(row: Row) -> Iterator[Any]:
    if row.kind == "broken_file":
        raise UserError(f"{row.place} is damaged after row {row.number - 1:,}: {row.content.decode()}; copy it again")
    if row.kind == "json":
        try:
            yield json.loads(row.content)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{row.place}, line {row.number} is not JSON: {error}; correct the line") from error
    elif row.kind == "text":  # a passage per line
        yield from row.content.decode(errors="replace").splitlines()


def _texts(value: Any, key: str | None, depth: int = 0) -> Iterator[str]:
    """Texts of a row, in order."""
    if key is not None:
        value, key = (value.get(key) if isinstance(value, dict) else value), None
    if isinstance(value, str):
        yield value.encode("utf-8", "replace").decode()
    elif isinstance(value, dict | list) and depth < MAX_DEPTH:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one, None, depth + 1)
