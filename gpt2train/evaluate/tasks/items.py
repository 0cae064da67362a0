"""Items of a task, from the rows of its data files; does not import torch.

Templates and expressions of a task, over the fields of a row, are Jinja in a sandbox. The texts of
lm-evaluation-harness's tasks (`doc_to_text`) are Jinja too, and can be copied.
"""

import contextlib
import io
import json
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gpt2train.errors import UserError, check_not_packed, check_not_utf16
from gpt2train.evaluate.tasks.description import Task

MAX_DIGITS = 10  # of an index in a text
ZIP_START = b"PK\x03\x04"
MAX_UNPACKED = 1 << 30  # bytes of an archive's rows; BLiMP has 29 MB
Row = Mapping[str, Any]


class RowError(ValueError):
    """A row does not fit the task; the message says why."""


@dataclass(frozen=True)
class Item:
    """Question of a task."""

    contexts: tuple[str, ...]  # texts before the continuation; one, but for a schema
    targets: tuple[str, ...]  # continuations; one, but for multiple choice
    answer: int = 0  # index of the right choice
    group: str = ""  # part of the data

    @property
    def choices(self) -> int:
        """Number of choices."""
        return max(len(self.contexts), len(self.targets))

    @property
    def has_equal_choices(self) -> bool:
        """True if two choices are the same text."""
        return len(set(self.contexts)) * len(set(self.targets)) < self.choices


def pick(texts: Sequence[str], answer: int) -> str:
    """Return the text of a choice; a single text is that of all."""
    return texts[answer if len(texts) > 1 else 0]


@dataclass(frozen=True)
class DataFile:
    """Name and content of a data file, which may be a ZIP archive, and of the file of its labels if it has one."""

    name: str
    content: bytes
    labels: bytes | None = None


def find_data(task: Task, name: str, folder: Path) -> list[DataFile]:
    """Read the data files of a task in a folder with the data of several tasks, or the data file of this one.

    Raises:
        UserError: no file of the task's names exists, several do where one is meant, or it cannot be read.
    """
    paths = [folder] if folder.is_file() else _find(task, name, folder)
    try:
        return [DataFile(str(path), path.read_bytes(), _labels(task, path)) for path in paths]
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}; check the path") from error


def _labels(task: Task, path: Path) -> bytes | None:
    """Return the content of the file of labels beside a data file; None if there is none."""
    beside = path.with_name(f"{path.stem}{task.labels}")
    return beside.read_bytes() if task.labels and beside.is_file() else None


def has_data(task: Task, folder: Path) -> bool:
    """Return True if a data file of the task exists below a folder; a malformed name has none."""
    with contextlib.suppress(ValueError, NotImplementedError):
        return folder.is_dir() and any(next(_matches(pattern, folder), None) for pattern in task.data)
    return False


def _matches(pattern: str, folder: Path) -> Iterator[Path]:
    if not PurePosixPath(pattern).parts:  # `Path.glob` has other errors for `.` and `./`
        raise ValueError("it names the folder itself")
    return folder.glob(pattern)


def _find(task: Task, name: str, folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"--data {folder}: there is no such file or folder; give the folder of the data files")
    for pattern in task.data:
        try:
            found = sorted(
                path for path in _matches(pattern, folder) if path.is_file() and not path.name.startswith(".")
            )
        except (ValueError, NotImplementedError) as error:  # an absolute or empty pattern
            raise UserError(f"task {name}: data: {pattern!r} is no name in a folder ({error}); correct it") from error
        if len(found) > 1 and "*" not in Path(pattern).name:
            raise UserError(f"task {name}: {found[0]} and {found[1]} both fit {pattern}; give --data the folder of one")
        if found:
            return found
    origin = f" (from {task.source})" if task.source else ""
    raise UserError(f"task {name}: {folder} has no {' or '.join(task.data)}; put the data there{origin}")


def read_items(task: Task, name: str, data: Sequence[DataFile]) -> list[Item]:
    """Read the items of a task.

    Raises:
        UserError: a line is no JSON object, lacks a field, or its answer is no choice; a template is malformed; there
            are no items.
    """
    build = _builder(task, name)
    items = []
    for file in unpacked(data):
        for number, row in _labelled(file, name):
            try:
                items.append(build(row))
            except RowError as error:
                remedy = "correct the line, or the task"
                if task.labels and file.labels is None and "label" not in row:
                    remedy = f"put the labels beside it, as {Path(file.name).stem}{task.labels} with one per line"
                raise UserError(f"{file.name} line {number}: task {name}: {error}; {remedy}") from error
    if not items:
        raise UserError(f"{', '.join(file.name for file in data)}: no rows for the task {name}; give a file with some")
    if task.shots >= len(items):
        raise UserError(f"task {name}: {task.shots} shots need more than {len(items)} items; give more data")
    # lm-evaluation-harness leaves out the examples that are equal to the item, nanochat the item itself.
    copies = max(Counter(items).values())
    if task.rule == "lm-eval" and task.shots > len(items) - copies:
        raise UserError(
            f"task {name}: {task.shots} shots of other items, but {copies} of the {len(items)} items are equal; remove "
            "the copies, or give more data"
        )
    return items


def unpacked(data: Sequence[DataFile]) -> Iterator[DataFile]:
    """Yield the data files, and in place of a ZIP archive the JSON lines in it, in the order of their names.

    Raises:
        UserError: an archive is damaged, encrypted, has no JSON lines, or more than `MAX_UNPACKED` bytes of them; or a
            file has another compression.
    """
    for file in data:
        check_not_packed(file.content, file.name, "unpack it, or give a ZIP archive")
        if not file.content.startswith(ZIP_START):
            yield file
            continue
        left = MAX_UNPACKED
        try:
            with zipfile.ZipFile(io.BytesIO(file.content)) as archive:
                names = sorted(name for name in archive.namelist() if _has_rows(PurePosixPath(name)))
                for name in names:
                    with archive.open(name) as member:
                        content = member.read(left + 1)
                    left -= len(content)
                    if left < 0:
                        raise UserError(f"{file.name} has more than {MAX_UNPACKED:,} bytes of rows; unpack it")
                    yield DataFile(f"{file.name}/{name}", content)
        # Encryption is a RuntimeError, a method that is not known a NotImplementedError.
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError) as error:
            reason = error if str(error) else type(error).__name__
            raise UserError(f"{file.name} cannot be unpacked ({reason}); unpack it or fetch it again") from error
        if not names:
            raise UserError(f"{file.name} has no *.jsonl in it; give the archive of the rows")


def _has_rows(path: PurePosixPath) -> bool:
    """True of JSON lines, but for those that macOS puts beside each file."""
    return path.suffix == ".jsonl" and not path.name.startswith(".") and "__MACOSX" not in path.parts


def _labelled(file: DataFile, name: str) -> Iterator[tuple[int, Row]]:
    """Yield line number and row of each line, with the label of the file of labels if there is one.

    Raises:
        UserError: the file of labels has another number of lines.
    """
    rows = _rows(file)
    if file.labels is None:
        yield from rows
        return
    labels, found = file.labels.decode("utf-8-sig", "replace").split(), list(rows)
    if len(labels) != len(found):
        remedy = "give the labels of these rows"
        raise UserError(f"{file.name}: task {name}: {len(found)} rows and {len(labels)} labels beside them; {remedy}")
    for (number, row), label in zip(found, labels, strict=True):
        yield number, {**row, "label": label}


def _rows(file: DataFile) -> Iterator[tuple[int, Row]]:
    """Yield line number and JSON object of each line that is not blank."""
    check_not_utf16(file.content, file.name)
    for number, line in enumerate(file.content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # a lone surrogate is valid JSON but not valid text
            if not isinstance(row, dict):
                raise ValueError(type(row).__name__)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file.name} line {number}: no JSON object; correct or remove the line") from error
        yield number, row


def _builder(task: Task, name: str) -> Callable[[Row], Item]:
    """Return the function from a row to its item."""
    where = f"task {name}: "
    group = value_of(task.group, f"{where}group") if task.group else None
    target, choices = task.field("target"), task.field("choices")
    texts = [text_of(task.field("context") or "", f"{where}context")] if task.kind != "schema" else None
    targets = [text_of(target, f"{where}target")] if target is not None else None
    answer = _answer(task.field("answer"), f"{where}answer")
    options = _options(choices, f"{where}choices") if choices is not None else None

    def build(row: Row) -> Item:
        part = "" if group is None else str(group(row))
        alternatives = options(row) if options is not None else ()
        contexts = tuple(text(row) for text in texts) if texts is not None else alternatives
        continuations = tuple(text(row) for text in targets) if targets is not None else alternatives
        if not all(continuations):
            raise RowError("a continuation is empty" if task.kind != "perplexity" else "the text is empty")
        right = answer(row) if options is not None else 0
        if options is not None and len(alternatives) < 2:
            raise RowError(f"an item needs two choices or more, and has {len(alternatives)}")
        if options is not None and not 0 <= right < len(alternatives):
            raise RowError(f"the answer {right} is none of the choices 0 to {len(alternatives) - 1}")
        return Item(contexts, continuations, right, part)

    return build


def _options(choices: str | Sequence[str], where: str) -> Callable[[Row], tuple[str, ...]]:
    if not isinstance(choices, str):
        texts = [text_of(template, where) for template in choices]
        return lambda row: tuple(text(row) for text in texts)
    value = value_of(choices, where)

    def listed(row: Row) -> tuple[str, ...]:
        found = value(row)
        if isinstance(found, str | Mapping) or not isinstance(found, Iterable):
            raise RowError(f"choices: expected a list of texts, got {type(found).__name__}")
        found = tuple(found)
        if not all(isinstance(text, str) for text in found):
            raise RowError("choices: expected a list of texts")
        return found

    return listed


def _answer(answer: str | int | None, where: str) -> Callable[[Row], int]:
    if not isinstance(answer, str):
        return lambda row: answer or 0
    value = value_of(answer, where)

    def index(row: Row) -> int:
        found: Any = value(row)
        if isinstance(found, str) and found.strip().isdecimal() and len(found) < MAX_DIGITS:
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool):
            raise RowError(f"answer: expected the index of a choice, got {found!r}")
        return found

    return index


ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
ENVIRONMENT.filters["regex_replace"] = lambda text, pattern, value="": re.sub(pattern, value, text)


def text_of(template: str, where: str) -> Callable[[Row], str]:
    """Compile a Jinja template to a function from a row to its text; UserError with `where` if it is malformed."""
    try:
        compiled = ENVIRONMENT.from_string(template)
    except TemplateSyntaxError as error:
        raise UserError(f"{where}: {error.message}; correct the template") from error
    return lambda row: _checked(lambda: compiled.render(row))


def value_of(expression: str, where: str) -> Callable[[Row], Any]:
    """Compile an expression to a function from a row to its value; errors as `text_of`."""
    try:
        compiled = ENVIRONMENT.compile_expression(expression, undefined_to_none=False)
    except TemplateSyntaxError as error:
        raise UserError(f"{where}: {error.message}; correct the expression") from error

    def value(row: Row) -> Any:
        found = compiled(row)
        if isinstance(found, StrictUndefined):
            str(found)  # raises UndefinedError, which names the field
        return list(found) if isinstance(found, Iterator) else found  # filters as `map` work only when they are read

    return lambda row: _checked(lambda: value(row))


def _checked(work: Callable[[], Any]) -> Any:
    """Return the result of Jinja's work; whatever a row makes it raise is an error of that row."""
    try:
        return work()
    except Exception as error:
        raise RowError(" ".join(str(error).split()) or type(error).__name__) from error
