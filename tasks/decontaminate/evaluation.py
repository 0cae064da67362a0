"""Evaluation sets as the decontamination takes them: files of passages, whatever their format.

A plain text is taken line by line, and each of its paragraphs of several lines once more as a whole, so that no n-gram
is missed where a line ends.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.errors import UserError
from tasks.inputs import InputFile, base_name, find_inputs, kind_of, open_input, read_lines

JSON = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet",)
TEXT = (".txt", ".raw", ".text", ".tokens")
LONGEST = 2**26  # bytes of a line
FLAG = "--decontaminate.against"


@dataclass(frozen=True)
class EvaluationSet:
    """One file of passages.

    Attributes:
        name: what the cuts call it.
        file: where it lies, and the hash of its content.
        key: column, or key of each JSON line, of the passage.
    """

    name: str
    file: InputFile
    key: str = "text"


def find_sets(named: Sequence[tuple[str, str]], against: Sequence[str], key: str) -> list[EvaluationSet]:
    """The evaluation sets: those of the flow by their names, then the user's by the names of their files.

    Args:
        named: (name, path or URL); the passages are under `text`.
        against: files, globs, folders, fsspec URLs.
        key: of the user's.

    Raises:
        UserError: a file is not there.
    """
    sets = [EvaluationSet(name, find_inputs([place], FLAG, (*JSON, *TEXT))[0]) for name, place in named]
    for file in find_inputs(against, FLAG, (*JSON, *PARQUET, *TEXT)) if against else ():
        plain = base_name(file.name).partition(".")[0] or base_name(file.name)
        taken = {item.name for item in sets}
        name = next(n for n in (plain, *(f"{plain}-{count}" for count in range(2, len(taken) + 3))) if n not in taken)
        sets.append(EvaluationSet(name, file, key))
    return sets


def check_sets(against: Sequence[str], key: str) -> None:
    """Look at the first passage of each set.

    Raises:
        UserError: a file is not there, holds no passage, or is not what its name says.
    """
    for item in find_sets((), against, key):
        next(passages(item))


def passages(item: EvaluationSet) -> Iterator[dict[str, Any]]:
    """Passages of one set as rows (set, row, text); rows count from 1.

    Raises:
        UserError: it holds no passage, or a row is not what the file's name says.
    """
    kind, count = kind_of(item.file.place), 0
    read = _parquet if kind in PARQUET else _json if kind in JSON else _text
    for number, text in read(item):
        if text.strip():
            count += 1
            yield {"set": item.name, "row": number, "text": text}
    if not count:
        raise UserError(f"the evaluation set {item.file.place} holds no passage; give another file")


def _json(item: EvaluationSet) -> Iterator[tuple[int, str]]:
    for number, line in _lines(item):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[item.key]
        except (ValueError, KeyError, TypeError) as error:
            found = f"{item.file.place}, row {number} ({type(error).__name__})"
            raise UserError(f'{found}: expected {{"{item.key}": …}}, as in each row of a .jsonl file') from error
        yield number, _string(text, item, number)


def _parquet(item: EvaluationSet) -> Iterator[tuple[int, str]]:
    place, number = item.file.place, 0
    with fsspec.open(place, "rb") as file:
        try:
            table = pq.ParquetFile(file)
            if item.key not in table.schema_arrow.names:
                valid = ", ".join(table.schema_arrow.names)
                raise UserError(f"{place} has no column {item.key!r}, but {valid}; name one with decontaminate.key")
            for batch in table.iter_batches(1024, columns=[item.key]):
                for text in batch[0].to_pylist():
                    number += 1
                    yield number, _string(text, item, number)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{place} is not a Parquet file: {error}; give another file") from error


def _text(item: EvaluationSet) -> Iterator[tuple[int, str]]:
    paragraph: list[str] = []
    number = 0
    for number, line in _lines(item):
        if line.strip():
            yield number, line
            paragraph.append(line)
        else:
            yield from _whole(paragraph, number)
            paragraph = []
    yield from _whole(paragraph, number + 1)


def _whole(paragraph: list[str], behind: int) -> Iterator[tuple[int, str]]:
    """A paragraph of several lines, by the number of its first; `behind` is the line behind it."""
    if len(paragraph) > 1:
        yield behind - len(paragraph), "\n".join(paragraph)


def _lines(item: EvaluationSet) -> Iterator[tuple[int, str]]:
    place = item.file.place
    with open_input(place) as stream:
        for number, line in read_lines(stream, LONGEST):
            if line is None:
                raise UserError(f"{place}, line {number} has more than {LONGEST:,} bytes; cut it")
            try:
                yield number, line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"the evaluation set {place} is not UTF-8 in line {number}: {error}") from error


def _string(text: Any, item: EvaluationSet, number: int) -> str:
    if not isinstance(text, str):
        found = type(text).__name__
        raise UserError(
            f"{item.file.place}, row {number}: {item.key!r} is {found}; expected text, see decontaminate.key"
        )
    return text
