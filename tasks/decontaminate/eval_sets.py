"""Evaluation sets of the decontamination: files of passages in several formats.

A plain text is read line by line, and each paragraph of several lines again as a whole, so that no n-gram across a line
end is missed.
"""

import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpt2train.data.documents import ARROW_NAMES, COLUMN_NAMES, JSON_NAMES, TEXT_NAMES, find_value, read_lines
from gpt2train.data.parquet_column import read_arrow_cells, read_cells
from gpt2train.errors import UserError, not_utf8
from tasks.core.input_files import InputFile, base_name, find_inputs, kind_of, open_input, open_raw

TEXT = (*TEXT_NAMES, ".raw", ".tokens")
MAX_LINE_BYTES = 2**26
FLAG = "--decontaminate.against"


@dataclass(frozen=True)
class EvaluationSet:
    """File of passages."""

    name: str  # name of the set in the list of cuts
    file: InputFile  # location and content hash
    key: str = "text"  # column, or key of each JSON line, of the passage


def find_sets(named: Sequence[tuple[str, str]], against: Sequence[str], key: str) -> list[EvaluationSet]:
    """Find the files of all evaluation sets: the flow's own by name, then the user's, named after their files.

    `named` has (name, path or URL) of the flow's own sets, whose passages have the key `text`; `against` has files,
    globs, folders or fsspec URLs of the user's, whose passages have the given key.

    Raises:
        UserError: a file does not exist.
    """
    sets = [EvaluationSet(name, find_inputs([path], FLAG, (*JSON_NAMES, *TEXT))[0]) for name, path in named]
    for file in find_inputs(against, FLAG, (*JSON_NAMES, *COLUMN_NAMES, *TEXT)) if against else ():
        plain = base_name(file.name).partition(".")[0] or base_name(file.name)
        taken = {item.name for item in sets}
        name = next(n for n in (plain, *(f"{plain}-{count}" for count in range(2, len(taken) + 3))) if n not in taken)
        sets.append(EvaluationSet(name, file, key))
    return sets


def check_sets(against: Sequence[str], key: str) -> None:
    """Read the first passage of each of the user's sets, to report errors early; see `find_sets`.

    Raises:
        UserError: a file does not exist, has no passage, or does not have the format of its extension.
    """
    for item in find_sets((), against, key):
        next(passages(item))


def passages(item: EvaluationSet) -> Iterator[dict[str, Any]]:
    """Passages of one set as rows (set, row, text); rows are numbered from 1.

    Raises:
        UserError: the set has no passage, or a row does not have the format of the file's extension.
    """
    kind, count = kind_of(item.file.location), 0
    read = _cells if kind in COLUMN_NAMES else _json if kind in JSON_NAMES else _text
    for number, text in read(item):
        if text.strip():
            count += 1
            # Composed, as the cleaning leaves the documents: Hangul is compared unchanged.
            yield {"set": item.name, "row": number, "text": unicodedata.normalize("NFC", text)}
    if not count:
        raise UserError(f"the evaluation set {item.file.location} holds no passage; give another file")


def _json(item: EvaluationSet) -> Iterator[tuple[int, str]]:
    for number, line in _lines(item):
        if not line.strip():
            continue
        try:
            text = find_value(json.loads(line), item.key)
        except (ValueError, KeyError, TypeError) as error:
            found = f"{item.file.location}, row {number} ({type(error).__name__})"
            raise UserError(f'{found}: expected {{"{item.key}": …}}, as in each row of a .jsonl file') from error
        if text is not None and not isinstance(text, str):
            found = f"{item.file.location}, row {number}: {item.key!r} is {type(text).__name__}"
            raise UserError(f"{found}; expected text, see decontaminate.key")
        yield number, (text or "").encode(errors="replace").decode()  # half of a surrogate pair is no text


def _cells(item: EvaluationSet) -> Iterator[tuple[int, str]]:
    path = item.file.location
    read = read_arrow_cells if kind_of(path) in ARROW_NAMES else read_cells
    for cell in read(path, lambda: open_raw(path), item.key, (), MAX_LINE_BYTES, "decontaminate.key"):
        if cell.fault:
            raise UserError(f"{path}, row {cell.number:,}: {cell.fault}; give another file")
        yield cell.number, str(cell.text or b"", "utf-8", "replace")


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


def _whole(paragraph: list[str], next_line: int) -> Iterator[tuple[int, str]]:
    """Paragraph of several lines, with the number of its first line; `next_line` is the number of the line after it."""
    if len(paragraph) > 1:
        yield next_line - len(paragraph), "\n".join(paragraph)


def _lines(item: EvaluationSet) -> Iterator[tuple[int, str]]:
    path = item.file.location
    with open_input(path) as stream:
        for number, line in read_lines(stream, MAX_LINE_BYTES):
            if line is None:
                raise UserError(f"{path}, line {number} has more than {MAX_LINE_BYTES:,} bytes; split it")
            try:
                yield number, line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"the evaluation set {path}, line {number}: {not_utf8(error)}") from error
