"""An output with its passport, as the tests of both read and change it."""

import json
from pathlib import Path
from typing import Any

EVENTS = "passport/openlineage.jsonl"
LINES = ("croissant.json", "passport/README.md", EVENTS, "passport/eu-summary.md", "passport/spdx.json")


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]


def change(manifest: Path, **outcome: Any) -> None:
    found = json.loads(manifest.read_text())
    found["outcome"] |= outcome
    manifest.write_text(json.dumps(found))
