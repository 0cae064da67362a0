"""One line of the verdict, and the stream of lines that a part prints."""

import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

BEGIN = "begin"  # marks the start of a check in the stream, so that a process that dies names the check it died in


@dataclass(frozen=True)
class Result:
    """Outcome of one check or measurement.

    Attributes:
        part: "correctness", "speed", "memory" or "features".
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

    def line(self) -> str:
        """Format as a line of JSON."""
        return json.dumps(asdict(self), allow_nan=True)


class NotAvailable(Exception):
    """The check cannot run on this device; not a failure."""


def at_most(part: str, name: str, value: float, bound: float, unit: str = "", detail: str = "") -> Result:
    """Result that is good if the value is at most the bound; NaN is not."""
    return Result(part, name, bool(value <= bound), value, bound, unit, detail)


def at_least(part: str, name: str, value: float, bound: float, unit: str = "", detail: str = "") -> Result:
    """Result that is good if the value is at least the bound; NaN is not."""
    return Result(part, name, bool(value >= bound), value, bound, unit, detail)


Check = Callable[[], Iterator[Result]]


def run_checks(part: str | None, checks: dict[str, Check], skip: set[str]) -> None:
    """Run checks and print their results as lines of JSON; a check that raises is a failure of its own.

    Args:
        part: part of the checks; None if it is the first word of their names.
        checks: checks by name.
        skip: names of checks to leave out.
    """
    for name, check in checks.items():
        if name in skip:
            continue
        print(json.dumps({BEGIN: name}), flush=True)
        started, in_part = time.perf_counter(), part or name.split()[0]
        try:
            results = list(check())
        except NotAvailable as reason:
            results = [Result(in_part, name, None, detail=f"not available here: {reason}")]
        except Exception as error:  # noqa: BLE001 - whatever torch, a driver or a compiler raises is the finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            first = str(error).strip().splitlines()[:1]
            text = f"{type(error).__name__}: {first[0] if first else ''} ({where.filename}:{where.lineno})"
            results = [Result(in_part, name, False, detail=text)]
        share = (time.perf_counter() - started) / len(results)
        for result in results:
            print(Result(**(asdict(result) | {"seconds": share})).line(), flush=True)
