"""The verdict as one HTML page without scripts."""

import html
import math
from collections.abc import Mapping
from typing import Any

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c1c1c }
table { border-collapse: collapse; width: 100%; margin: 0 0 2rem }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.ok { color: #17643a } .failed { color: #b3261e; font-weight: 600 } .open { color: #666 }
"""
STATE = {True: ("ok", "passed"), False: ("failed", "failed"), None: ("open", "no bound")}


def page(outcome: Mapping[str, Any]) -> str:
    """Format the verdict of `benchmarks.gpu` as a page."""
    facts = ", ".join(f"{name} {value}" for name, value in outcome["machine"].items())
    failed, checked = len(outcome["failed"]), outcome["checked"]
    head = f"{checked - failed} of {checked} checks passed" if failed else f"all {checked} checks passed"
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for result in outcome["results"]:
        parts.setdefault(result["part"], []).append(result)
    tables = "".join(f"<h2>{html.escape(part)}</h2>{_table(rows)}" for part, rows in parts.items())
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>GPU verdict</title><style>{STYLE}</style>"
        f"<h1>{html.escape(head)}</h1><p>{html.escape(facts)}; {outcome['seconds']:g} s</p>{tables}</html>\n"
    )


def _table(rows: list[Mapping[str, Any]]) -> str:
    head = "<tr><th>check<th>outcome<th>value<th>bound<th>detail<th>seconds</tr>"
    return f"<table>{head}{''.join(map(_row, rows))}</table>"


def _row(row: Mapping[str, Any]) -> str:
    kind, text = STATE[row["ok"]]
    return (
        f"<tr><td>{html.escape(row['name'])}<td class='{kind}'>{text}<td class='number'>{_number(row['value'])} "
        f"{html.escape(row['unit'])}<td class='number'>{_number(row['bound'])}<td>{html.escape(row['detail'])}"
        f"<td class='number'>{row['seconds']:.1f}</tr>"
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if math.isfinite(value) else "not a number"
