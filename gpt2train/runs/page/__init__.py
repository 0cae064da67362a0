"""Self-contained HTML page of runs with their table, differing settings, and curves.

The content security policy forbids loading anything and allows only the page's own style and script, by hash, so that
names and settings of runs cannot inject code. The page works from `file://`.
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
from gpt2train.runs.table import NONE, differences, shown, table_rows

MARK = '<meta name="generator" content="gpt2train runs">'
POINTS = 800  # maximum number of points of a curve, about its width in pixels
CURVES = {"loss": "loss", "valid": "valid_loss", "lr": "lr", "speed": "tokens_per_second"}


def render(runs: Sequence[Run]) -> str:
    """Render the page of at least one run."""
    style = _text("serve/base.css") + _text("runs/page/style.css")
    script = _text("runs/page/script.js")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_text("runs/page/page.html"))
    cells = table_rows(runs)
    return template.render(
        mark=MARK,
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:",
        style=style,
        script=script,
        data=_script_json({"runs": [{"name": run.name, "curves": curves(run)} for run in runs]}),
        # Columns of dashes are omitted.
        heads=[head for head in cells[0] if any(row[head] != NONE for row in cells)],
        cells=cells,
        names=[run.name for run in runs],
        different={name: [shown(v) for v in values] for name, values in differences(runs).items()},
        notes=[_notes(run) for run in runs],
    )


def _text(name: str) -> str:
    return files("gpt2train").joinpath(name).read_text(encoding="utf-8")


def curves(run: Run) -> dict[str, list[list[float]]]:
    """Return the points (step, tokens, hours, value) of each curve, at most `POINTS`."""
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
        found[name] = downsample(points)
    return found


def downsample(points: list[list[float]], max_points: int = POINTS) -> list[list[float]]:
    """Reduce points to at most `max_points` by averaging neighbours; the first and the last point do not change."""
    if len(points) > max_points:
        inner, num_groups = points[1:-1], max_points - 2
        bounds = [len(inner) * number // num_groups for number in range(num_groups + 1)]
        groups = [inner[start:end] for start, end in itertools.pairwise(bounds)]
        means = [[sum(column) / len(group) for column in zip(*group, strict=True)] for group in groups]
        points = [points[0], *means, points[-1]]
    return [[float(f"{value:.6g}") for value in point] for point in points]


def _notes(run: Run) -> dict[str, Any]:
    """Return the details of a run: folder, starts, settings and inputs."""
    starts = [
        f"{start.at}: {start.host}, {start.world} x {start.device}, {start.layout}, from step {start.step:,}; "
        + ", ".join(f"{name} {release}" for name, release in sorted(start.versions.items()))
        + (f", commit {start.commit}" if start.commit else "")
        for start in run.record.starts
    ]
    settings = "\n".join(f"{name} = {shown(value)}" for name, value in run.settings.items())
    return {"folder": str(run.folder), "starts": starts, "settings": settings, "inputs": run.record.inputs}


def _script_json(value: Any) -> str:
    """Serialise as JSON that cannot end a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
