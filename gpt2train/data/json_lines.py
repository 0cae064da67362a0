"""JSON lines: objects of a line, and values under nested keys."""

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

_SEAM = re.compile(rb"\}\s*\{")
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()
PYTHON_ROW = re.compile(rb"\s*\{\s*'")  # as Python prints a dict
PYTHON_REMEDY = (
    "it is a dict as Python prints it, not JSON; convert the file: python -c 'import ast, json, sys; "
    "[print(json.dumps(ast.literal_eval(line))) for line in sys.stdin]' < IN > OUT"
)


def parse(line: bytes) -> Any:
    """Return a JSON value, also one with NaN or lone surrogates as Python writes them.

    Raises:
        ValueError, RecursionError: the line is not JSON.
    """
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(line)


def split_objects(line: bytes) -> list[bytes]:
    """Split a line where files without a last newline were concatenated; what follows the last whole object is one."""
    if not _SEAM.search(line):
        return [line]
    try:
        parse(line)
    except (ValueError, RecursionError):
        return _split(line)
    return [line]


def _split(line: bytes) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    try:
        text = line.decode("utf-8-sig").strip()
        while at < len(text) and text[at] == "{":
            _, end = _DECODER.raw_decode(text, at)
            parts.append(text[at:end].encode())
            at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    except UnicodeDecodeError:
        return [line]
    except (ValueError, RecursionError):  # of the object at `at`
        pass
    return [*parts, text[at:].encode()] if at < len(text) else parts


def find_value(record: Any, key: str) -> Any:
    """Return the value of a key, or of a path of keys through nested objects (`metadata.id`).

    Raises:
        KeyError: there is none.
    """
    if not isinstance(record, Mapping):
        raise KeyError(key)
    if key in record:
        return record[key]
    first, dot, rest = key.partition(".")
    return find_value(record.get(first) if dot else None, rest)
