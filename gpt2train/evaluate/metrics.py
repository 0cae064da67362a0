"""Metrics of an evaluation, and their numbers in result files; does not import torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Result = dict[str, Any]  # JSON-serialisable


@dataclass(frozen=True)
class Metric:
    """Number of a result: a row of the table, and for a main metric a column and a panel of a run's curve.

    Attributes:
        name: head of the row.
        definition: definition in one line.
        scale: `share` of 1 (accuracies), `log` (perplexities) or `linear`; decides digits and axes.
        path: keys of the number in the result; by default the name. A result may lack it.
        error: keys of its standard error, if it has one.
        main: True if a curve and the report show it.
        column: head of the curve's column; by default evaluation and name.
        axis: label of the curve's panel; by default evaluation and name.
    """

    name: str
    definition: str
    scale: Literal["share", "log", "linear"] = "linear"
    path: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    main: bool = False
    column: str = ""
    axis: str = ""

    def value(self, result: Mapping[str, Any]) -> float | None:
        """Return the number of a result; None if it lacks the metric."""
        return _at(result, self.path or (self.name,))

    def text(self, result: Mapping[str, Any]) -> str:
        """Format the number of a result; a dash if it lacks the metric."""
        value = self.value(result)
        if value is None:
            return "–"
        return f"{value:.4f}" if self.scale == "share" else f"{value:.4g}"

    def text_with_error(self, result: Mapping[str, Any]) -> str:
        """Format the number of a result with its standard error, if the metric has one."""
        if not self.error or self.value(result) is None:
            return self.text(result)
        return f"{self.text(result)} ± {_at(result, self.error) or 0:.4f}"


def _at(result: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    found: Any = result
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    number: float | None = found
    return number


def perplexity(nats: float, limit: float = 700.0) -> float:
    """Return exp(nats) with 6 significant digits; the exponent is capped so that JSON can represent the result."""
    return significant(math.exp(min(nats, limit)))


def significant(value: float, digits: int = 6) -> float:
    """Round to significant digits, so that result files do not depend on the last bits of a sum."""
    return float(f"{value:.{digits}g}")
