"""The page of runs: their table, what differs between their settings, and their curves, in one file.

Everything is in the file: its policy forbids to load anything, and names its own style and script by their hashes, so
that text of a run (a name, a setting) stays text. It works from `file://`.
"""

import base64
import hashlib
import itertools
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import jinja2

from gpt2train.runs.reading import Run
from gpt2train.runs.table import NONE, columns, differences, shown

MARK = '<meta name="generator" content="gpt2train runs">'
POINTS = 800  # of a curve: about the pixels that it has
CURVES = {"loss": "loss", "valid": "valid_loss", "lr": "lr", "speed": "tokens_per_second"}


def render(runs: Sequence[Run]) -> str:
    """The page of some runs, at least one."""
    here = files(__name__)
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(here.joinpath("page.html").read_text(encoding="utf-8"))
    cells = [columns(run) for run in runs]
    return template.render(
        mark=MARK,
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:",
        style=style,
        script=script,
        data=_inert({"runs": [{"name": run.name, "curves": curves(run)} for run in runs]}),
        # A column of dashes says nothing.
        heads=[head for head in cells[0] if any(row[head] != NONE for row in cells)],
        cells=cells,
        names=[run.name for run in runs],
        different={name: [shown(v) for v in values] for name, values in differences(runs).items()},
        notes=[_notes(run) for run in runs],
    )


def curves(run: Run) -> dict[str, list[list[float]]]:
    """Points of each curve: step, tokens, hours, value; neighbours averaged where there are more than fit."""
    hours, seconds = [], 0.0
    for row in run.rows:
        seconds += row.get("seconds") or 0.0
        hours.append(seconds / 3600)
    found: dict[str, list[list[float]]] = {}
    for name, key in CURVES.items():
        points = [
            [row["step"], row.get("tokens") or 0, hour, row[key]]
            for row, hour in zip(run.rows, hours, strict=True)
            if isinstance(row.get(key), int | float)
        ]
        found[name] = thinned(points)
    return found


def thinned(points: list[list[float]], most: int = POINTS) -> list[list[float]]:
    """At most `most` points: means of neighbours; the first and the last point stay as they are."""
    if len(points) > most:
        inner, room = points[1:-1], most - 2
        cuts = [len(inner) * number // room for number in range(room + 1)]
        pieces = [inner[start:end] for start, end in itertools.pairwise(cuts)]
        means = [[sum(column) / len(piece) for column in zip(*piece, strict=True)] for piece in pieces]
        points = [points[0], *means, points[-1]]
    return [[float(f"{value:.6g}") for value in point] for point in points]


def _notes(run: Run) -> dict[str, Any]:
    """What the page shows of a run when it is opened."""
    starts = [
        f"{start.at}: {start.host}, {start.world} x {start.device}, {start.layout}, from step {start.step:,}; "
        + ", ".join(f"{name} {release}" for name, release in sorted(start.versions.items()))
        + (f", commit {start.commit}" if start.commit else "")
        for start in run.record.starts
    ]
    settings = "\n".join(f"{name} = {shown(value)}" for name, value in run.settings.items())
    return {"folder": str(run.folder), "starts": starts, "settings": settings, "inputs": run.record.inputs}


def _inert(value: Any) -> str:
    """JSON that ends no script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
