"""Values of a config in Python, such as nanoGPT's or ColossalAI's: constants and arithmetic, never executed."""

import ast
import operator
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from gpt2train.errors import UserError

MAX_BITS = 4096  # of an intermediate integer: `2 ** 2 ** 99` is not computed
MAX_LENGTH = 2_000  # characters or leaves of an intermediate value
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class Symbol(str):
    """Source of a part that is no constant, such as `HybridAdam` or `TensorShardStrategy()`."""


@dataclass(frozen=True)
class PythonConfig:
    """Constants of a config in Python."""

    values: dict[str, Any]  # its values by dotted names
    called: bool  # True if one of the given functions is called
    used: frozenset[str]  # names that other values are made of


def read_python(text: str, name: str, calls: Collection[str] = ()) -> PythonConfig:
    """Read the values that a Python config assigns at its top level, nested ones by dotted names.

    The keyword arguments of the functions in `calls` count as values, wherever they are called.

    Raises:
        UserError: it is not Python, or nested too deeply.
    """
    try:
        tree = ast.parse(text)
        values: dict[str, Any] = {}
        for statement in tree.body:
            _assign(statement, values)
        found = list(_called(tree, set(calls)))
        for call in found:
            values |= {keyword.arg: _value(keyword.value, values) for keyword in call.keywords if keyword.arg}
        loaded = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
        return PythonConfig(dict(_flat(values, "")), bool(found), frozenset(node.id for node in loaded))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{name} is no config in Python: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise UserError(f"{name} is nested too deeply for a config in Python") from error


def _assign(node: ast.stmt, values: dict[str, Any]) -> None:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Name | ast.Attribute):
            values[ast.unparse(target)] = _value(node.value, values)


def _called(tree: ast.AST, calls: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in calls:
                yield node


def _value(node: ast.expr, values: dict[str, Any]) -> Any:
    """Value of an expression of constants, names that were assigned, arithmetic, `dict(…)`, lists and mappings."""
    found = _evaluated(node, values)
    if isinstance(found, list | dict) and _leaves(found) > MAX_LENGTH:
        raise ValueError(f"line {node.lineno}: more than {MAX_LENGTH} values")
    return found


def _leaves(value: Any) -> int:
    """Number of values within a list or mapping; a part that occurs twice counts twice."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_leaves, inner))


def _evaluated(node: ast.expr, values: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in values:
        return values[ast.unparse(node)]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, values) for item in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return {str(key): _value(item, values) for key, item in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict" and not node.args:
        return {keyword.arg: _value(keyword.value, values) for keyword in node.keywords if keyword.arg}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, values)
        return -inner if isinstance(inner, int | float) else Symbol(ast.unparse(node))
    if isinstance(node, ast.BinOp):
        return _computed(node, values)
    return Symbol(ast.unparse(node))


def _computed(node: ast.BinOp, values: dict[str, Any]) -> Any:
    left, right = _value(node.left, values), _value(node.right, values)
    function = OPERATORS.get(type(node.op))
    numbers = all(isinstance(side, int | float) for side in (left, right))
    texts = all(isinstance(side, str) and not isinstance(side, Symbol) for side in (left, right))
    if function is None or not (numbers or (texts and function is operator.add)):
        return Symbol(ast.unparse(node))
    if function is operator.pow and (abs(right) > MAX_BITS or _bits(left) * abs(right) > MAX_BITS):
        raise ValueError(f"{ast.unparse(node)} is too large")
    try:
        result = function(left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"{ast.unparse(node)}: {error}") from error
    if (texts and len(result) > MAX_LENGTH) or isinstance(result, complex) or _bits(result) > MAX_BITS:
        raise ValueError(f"{ast.unparse(node)} is too large")
    return result


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
