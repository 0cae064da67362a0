"""Conversion of field values shared by both APIs."""

from typing import Any


def whole(value: Any) -> Any:
    """Convert a float without a fraction to int, as 1.0 is an integer to JSON Schema and JavaScript; keep the rest."""
    return int(value) if type(value) is float and value.is_integer() else value
