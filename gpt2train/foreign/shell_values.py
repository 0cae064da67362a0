"""Tests and arithmetic of a shell, on texts that are expanded already."""

import ast
import operator
import re
from collections.abc import Mapping

from gpt2train.foreign.python_config import MAX_BITS, OPERATORS

COMPARISONS = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def is_true(fields: list[str]) -> bool | None:
    """Truth of `[ … ]`, `[[ … ]]` or `test …`; None if it is another command or another test."""
    if not fields or fields[0] not in ("[", "[[", "test"):
        return None
    inner = [field for field in fields[1:] if field not in ("]", "]]")]
    negative = inner[:1] == ["!"]
    match inner[1:] if negative else inner:
        case []:
            found = False
        case [word]:
            found = bool(word)
        case ["-z" | "-n" as option, word]:
            found = bool(word) == (option == "-n")
        case [left, "=" | "==" | "!=" as sign, right]:
            found = (left == right) == (sign != "!=")
        case [left, sign, right] if sign in COMPARISONS:
            try:
                found = COMPARISONS[sign](int(left or 0), int(right or 0))
            except ValueError:
                return None
        case _:
            return None
    return found != negative


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
