"""Results of checks, and the verdict made of them: as JSON, as a page, and as a table for the end of a log."""

import html
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LEFT_OUT = "left out: "  # start of the detail of a check that did not run
TABLE_SIZE = 11_000  # characters of the table; a log may be cut to its last 12,000


@dataclass(frozen=True)
class Result:
    """Outcome of one check or measurement.

    Attributes:
        part: "correctness", "speed" or "ceilings".
        name: name of the check.
        ok: True or False against the bound; None if it has none, or could not run here.
        value: measured value.
        bound: bound of the value; None if it has none.
        unit: unit of both.
        detail: what was compared, or why it did not run.
        seconds: wall time of the check.
    """

    part: str
    name: str
    ok: bool | None
    value: float | None = None
    bound: float | None = None
    unit: str = ""
    detail: str = ""
    seconds: float = 0.0

    def line(self, size: int = 1_000) -> str:
        """Format as one line of at most `size` characters."""
        mark = {True: "ok  ", False: "FAIL", None: "    "}[self.ok]
        value = "" if self.value is None else f" {self.value:.4g} {self.unit}"
        bound = "" if self.bound is None else f" (bound {self.bound:g})"
        text = " ".join(f"{mark} {self.part}: {self.name}{value}{bound}; {self.detail}".split("\n"))
        return text if len(text) <= size else f"{text[: size - 1]}…"

    @property
    def left_out(self) -> bool:
        """True if the check did not run."""
        return self.detail.startswith(LEFT_OUT)


class NotAvailable(Exception):
    """The check cannot run on this device; not a failure."""


def at_most(part: str, name: str, value: float, bound: float, unit: str = "", detail: str = "") -> Result:
    """Result that is good if the value is at most the bound; NaN is not."""
    return Result(part, name, bool(value <= bound), value, bound, unit, detail)


def at_least(part: str, name: str, value: float, bound: float, unit: str = "", detail: str = "") -> Result:
    """Result that is good if the value is at least the bound; NaN is not."""
    return Result(part, name, bool(value >= bound), value, bound, unit, detail)


class Verdict:
    """Results so far. Each one is printed and written at once, so that a kill loses nothing.

    Args:
        file: JSON file; a page of the same name lies beside it.
        machine: hardware and versions.
        bars: names of the results without which the verdict is incomplete.
        print_line: function that prints a line.
    """

    def __init__(
        self,
        file: Path,
        machine: Mapping[str, str],
        bars: Iterable[str] = (),
        print_line: Callable[[str], None] = lambda line: print(line, flush=True),
    ) -> None:
        self.file, self.machine, self.bars = file, dict(machine), tuple(bars)
        self.results: list[Result] = []
        self._print, self._started, self._lock = print_line, time.monotonic(), threading.Lock()

    def __call__(self, result: Result) -> None:
        """Record a result."""
        with self._lock:
            self._print(result.line())
            self.results.append(result)
            self._write()

    def failed(self) -> list[Result]:
        """Results that broke their bound, and checks that died, hung or raised."""
        return [result for result in self.results if result.ok is False]

    def missing(self) -> list[str]:
        """Names of the checks that were left out, and of the bars without a measured value."""
        measured = {result.name for result in self.results if result.ok is not None}
        left_out = [result.name for result in self.results if result.left_out]
        return [*left_out, *(bar for bar in self.bars if bar not in measured and bar not in left_out)]

    def outcome(self) -> dict[str, Any]:
        """Everything as JSON: `complete` if nothing is missing, `ok` if moreover something was checked and held."""
        failed, missing = self.failed(), self.missing()
        checked = sum(result.ok is not None for result in self.results)
        return {
            "ok": not failed and not missing and checked > 0,
            "complete": not missing,
            "failed": [f"{result.part}: {result.name}" for result in failed],
            "missing": missing,
            "checked": checked,
            "seconds": round(time.monotonic() - self._started, 1),
            "machine": self.machine,
            "results": [asdict(result) for result in self.results],
        }

    def table(self, size: int = TABLE_SIZE) -> str:
        """Format failures, speeds and ceilings in at most `size` characters; the last line says if it is complete."""
        outcome, failed = self.outcome(), self.failed()
        of = {part: [r for r in self.results if r.part == part and not r.left_out] for part in ("speed", "ceilings")}
        missing = ", ".join(outcome["missing"])
        end = [
            f"{len(failed)} failed of {outcome['checked']} in {outcome['seconds']:.0f} s; {self.file}",
            "complete" if outcome["complete"] else f"INCOMPLETE: {missing}"[: size // 8],
        ]
        sections = [
            _section("failed", failed, size // 3),
            _section("ceilings", of["ceilings"], size // 5, 110),
            _section("speed", of["speed"], size // 3, 300),
        ]
        return "\n".join([*filter(None, sections), *end])

    def _write(self) -> None:
        outcome = self.outcome()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_finite(outcome), indent=1) + "\n"
        for path, content in ((self.file, text), (self.file.with_suffix(".html"), page(outcome))):
            part = path.with_name(f".{path.name}.part")
            part.write_text(content, encoding="utf-8")
            part.replace(path)


def _section(title: str, results: list[Result], size: int, line_size: int = 260) -> str:
    """Lines of results in at most `size` characters."""
    if not results:
        return ""
    lines, remaining = [f"== {title} =="], size - len(title) - 60
    for index, result in enumerate(results):
        line = result.line(line_size)
        if len(line) + 1 > remaining:
            lines.append(f"… and {len(results) - index} more in the JSON file")
            break
        remaining -= len(line) + 1
        lines.append(line)
    return "\n".join(lines)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not have by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c1c1c }
table { border-collapse: collapse; width: 100%; margin: 0 0 2rem }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.ok { color: #17643a } .failed { color: #b3261e; font-weight: 600 } .open { color: #666 }
"""
STATE = {True: ("ok", "passed"), False: ("failed", "failed"), None: ("open", "no bound")}


def page(outcome: Mapping[str, Any]) -> str:
    """Format a verdict as one HTML page without scripts."""
    facts = ", ".join(f"{name} {value}" for name, value in outcome["machine"].items())
    failed, checked = len(outcome["failed"]), outcome["checked"]
    head = f"{checked - failed} of {checked} checks passed" if failed else f"all {checked} checks passed"
    if not outcome["complete"]:
        head += f"; incomplete: {', '.join(outcome['missing'])}"
    parts: dict[str, list[str]] = {}
    for row in outcome["results"]:
        kind, text = STATE[row["ok"]]
        value, bound = (_number(row[name]) for name in ("value", "bound"))
        parts.setdefault(row["part"], []).append(
            f"<tr><td>{html.escape(row['name'])}<td class='{kind}'>{text}<td class='number'>{value} "
            f"{html.escape(row['unit'])}<td class='number'>{bound}<td>{html.escape(row['detail'])}"
            f"<td class='number'>{row['seconds']:.1f}</tr>"
        )
    columns = "<tr><th>check<th>outcome<th>value<th>bound<th>detail<th>seconds</tr>"
    tables = "".join(
        f"<h2>{html.escape(part)}</h2><table>{columns}{''.join(rows)}</table>" for part, rows in parts.items()
    )
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>GPU verdict</title><style>{STYLE}</style>"
        f"<h1>{html.escape(head)}</h1><p>{html.escape(facts)}; {outcome['seconds']:g} s</p>{tables}</html>\n"
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if math.isfinite(value) else "not a number"
