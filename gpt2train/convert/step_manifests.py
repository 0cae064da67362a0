"""Manifests of the data steps of an output folder, for cards; imports no torch."""

import contextlib
import json
from pathlib import Path
from typing import Any

from gpt2train.io.inner_path import STEP_MANIFEST

MAX_MANIFESTS = 64  # manifests that are read next to the data


def data_steps(root: Path, last: str, made: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the manifests of the data steps before the step `last` in an output folder, in order.

    Each manifest names its inputs, so that unrelated steps in the same output folder are skipped. With `made`, the last
    step must have this manifest.
    """
    manifests = sorted(root.glob(f"*/{STEP_MANIFEST}"))[:MAX_MANIFESTS] if root.is_dir() else []
    by_identity = {}
    for path in manifests:
        manifest = read_object(path)
        with contextlib.suppress(KeyError, TypeError):
            if all(isinstance(manifest["outcome"][key], int) for key in ("seen", "kept")):
                manifest["parameters"].get("language")
                by_identity[f"{manifest['fingerprint']}:{manifest['content']}"] = manifest
    ends = [step for step in by_identity.values() if step["step"] == last and (made is None or step == made)]
    found: list[dict[str, Any]] = []
    names, pending = {last}, ends[:1]
    while pending:
        manifest = pending.pop(0)
        inputs = [by_identity.get(str(identity)) for _, identity in sorted(manifest["inputs"].items())]
        new = [step for step in inputs if step is not None and step["step"] not in names]
        names |= {step["step"] for step in new}
        found = [*(step for step in new if step["outcome"]["seen"]), *found]
        pending += new
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}
