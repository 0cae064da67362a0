"""`gpt2train runs`: runs side by side."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from gpt2train.errors import UserError
from gpt2train.files import write_whole
from gpt2train.runs.reading import Run, read_runs
from gpt2train.runs.table import Sort, differences, sort_runs, text


def runs(
    *places: Path,
    sort: Sort = "started",
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    html: Path | None = None,
) -> None:
    """Show runs side by side: data, tokens, layout, loss, scores, hours, and what differs between their settings.

    A run that is going on is shown as far as it is; one that stopped says at which step. A folder that looks like a
    run and cannot be read is named on standard error, and the others are shown.

    Parameters
    ----------
    places
        Output folders, their runs/, or folders of single runs; all runs below them are taken. Without any: out.
    sort
        What to sort by; the best, greatest or first come first.
    json_
        Print JSON, with every setting and result.
    html
        File to write: one page with the table and the curves, which needs nothing from elsewhere.
    """
    found, broken = read_runs(places or (Path("out"),))
    found = sort_runs(found, sort)
    for one in broken:
        print(f"warning: {one.reason}", file=sys.stderr)
    if not found:
        raise UserError("none of the runs can be read")
    if html is not None:
        _check_page(html)
        from gpt2train.runs.page import render  # jinja2 takes 0.1 s

        write_whole(html, render(found).encode())
    if json_:
        answer = {
            "runs": [as_json(run) for run in found],
            "differences": differences(found),
            "broken": [{"folder": str(one.folder), "reason": one.reason} for one in broken],
        }
        print(json.dumps(answer, ensure_ascii=False, indent=1))
    else:
        print(text(found))
    if html is not None:
        print(f"page: {html}", file=sys.stderr if json_ else sys.stdout)


def as_json(run: Run) -> dict[str, Any]:
    """A run without its rows, which stand in its metrics.jsonl."""
    plain = asdict(run) | {"folder": str(run.folder), "record": run.record.model_dump(mode="json")}
    del plain["rows"]
    return plain


def _check_page(path: Path) -> None:
    """Refuse to write over what is no page of runs.

    Raises:
        UserError: the place holds something else.
    """
    from gpt2train.runs.page import MARK

    if path.is_dir():
        raise UserError(f"{path} is a folder; give --html FILE")
    if path.exists() and MARK.encode() not in path.read_bytes()[:2000]:
        raise UserError(f"{path} holds something else than a page of runs; give another --html FILE")
