"""Tests and arithmetic of a shell, on texts that are expanded already."""

import ast
import re
from collections.abc import Mapping

from gpt2train.foreign.python_config import MAX_BITS, OPERATORS

COMPARISONS = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
}


def is_true(fields: list[str]) -> bool | None:
    """Truth of `[ … ]`, `[[ … ]]` or `test …`; None if it is another command or another test."""
    if not fields or fields[0] not in ("[", "[[", "test"):
        return None
    inner = [field for field in fields[1:] if field not in ("]", "]]")]
    negative = bool(inner) and inner[0] == "!"
    inner = inner[1:] if negative else inner
    found = _test(inner)
    return None if found is None else found != negative


def _test(inner: list[str]) -> bool | None:
    if len(inner) == 0:
        return False
    if len(inner) == 1:
        return bool(inner[0])
    if len(inner) == 2 and inner[0] in ("-z", "-n"):
        return bool(inner[1]) == (inner[0] == "-n")
    if len(inner) == 3 and inner[1] in ("=", "==", "!="):
        return (inner[0] == inner[2]) == (inner[1] != "!=")
    if len(inner) == 3 and inner[1] in COMPARISONS:
        try:
            return COMPARISONS[inner[1]](int(inner[0] or 0), int(inner[2] or 0))
        except ValueError:
            return None
    return None


def arithmetic(expression: str, names: Mapping[str, str]) -> int | None:
    """Value of a shell's arithmetic on whole numbers; None if it is no such expression."""
    try:
        return _whole(ast.parse(re.sub(r"[${}]", "", expression).strip(), mode="eval").body, names)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _whole(node: ast.expr, names: Mapping[str, str]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return int(names[node.id] or 0)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_whole(node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not isinstance(node.op, ast.Pow):
        kind = ast.FloorDiv if isinstance(node.op, ast.Div) else type(node.op)
        value = int(OPERATORS[kind](_whole(node.left, names), _whole(node.right, names)))
        if value.bit_length() <= MAX_BITS:
            return value
    raise ValueError("not whole numbers")
