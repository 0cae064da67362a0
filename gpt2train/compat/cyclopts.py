"""Private part of cyclopts: the conversion of a flag's text to a whole number or a path."""

from pathlib import Path

from cyclopts import _convert

from gpt2train.settings import in_home

_rounded = _convert._converters[int]


def convert_flags() -> None:
    """Let flags of whole numbers refuse a fraction: cyclopts takes `--depth 2.5` for 2. Those of paths know `~/`.

    Breaks when cyclopts keeps its converters elsewhere, with an error at import or in
    tests/gpt2train/compat/test_cyclopts.py.
    """
    _convert._converters[int] = whole_number
    _convert._converters[Path] = lambda text: Path(in_home(text))


def whole_number(text: str) -> int:
    """Convert the text of a whole number, such as 30, 30.0 or 0x1e; ValueError if it is none."""
    if "." in text and not float(text).is_integer():
        raise ValueError(f"{text} is not a whole number")
    number: int = _rounded(text)
    return number
