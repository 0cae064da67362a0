"""A JSON schema in words: the type of a setting and its bounds."""

import json
from collections.abc import Mapping
from typing import Any

NAMES = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean", "null": "not set"}
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}
LENGTHS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} entries",
}


def describe(schema: Mapping[str, Any]) -> str:
    """The type and the bounds of a value, for example `integer, from 1 to 64`."""
    if "$ref" in schema:
        return "table"
    if "anyOf" in schema:
        return " or ".join(describe(choice) for choice in schema["anyOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{json.dumps(choice)}`" for choice in schema["enum"])
    if "prefixItems" in schema:
        return "pair of " + " and ".join(describe(item) for item in schema["prefixItems"])
    return ", ".join([_kind(schema), *_bounds(schema)])


def _kind(schema: Mapping[str, Any]) -> str:
    if schema["type"] == "array":
        return f"list of {_several(schema['items'])}"
    if schema["type"] == "object":
        values = schema.get("additionalProperties")
        return f"table of {_several(values)}" if isinstance(values, dict) else "table"
    return "path" if schema.get("format") == "path" else NAMES[schema["type"]]


def _several(schema: Mapping[str, Any]) -> str:
    text = describe(schema)
    if "," in text:
        return f"({text})"
    first, *rest = text.split(" ", 1)
    return " ".join([f"{first}s", *rest])


def _bounds(schema: Mapping[str, Any]) -> list[str]:
    if "minimum" in schema and "maximum" in schema:
        bounds = [f"from {_number(schema['minimum'])} to {_number(schema['maximum'])}"]
    else:
        bounds = [text.format(_number(schema[name])) for name, text in LIMITS.items() if name in schema]
    if 1 in (schema.get("minLength"), schema.get("minItems")):
        bounds.append("not empty")
    bounds += [text.format(schema[name]) for name, text in LENGTHS.items() if schema.get(name, 1) != 1]
    return bounds + ([f"matching `{schema['pattern']}`"] if "pattern" in schema else [])


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
