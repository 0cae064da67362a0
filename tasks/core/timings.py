"""Timings of the steps, in `timings.jsonl` beside their folders: the bytes of a manifest do not depend on the clock."""

import contextlib
import json
import time
from typing import Any

import psutil

from gpt2train.store.files import read_json_lines
from gpt2train.store.folder import Folder

TIMINGS = "timings.jsonl"


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants so far.

    Workers that have ended count if their parent waited for them. Workers on other machines do not count.
    """
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def append_timing(root: Folder, step: str, seconds: float, cpu: float, rows: int) -> None:
    """Append a step's timing to `timings.jsonl`."""
    try:
        before = root.read_bytes(TIMINGS)
    except FileNotFoundError:
        before = b""
    ended = round(time.time(), 3)
    line = {"step": step, "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3), "rows": rows, "ended": ended}
    if before and not before.endswith(b"\n"):
        before += b"\n"  # terminate a truncated line, so that it does not damage the next one
    root.write_bytes(TIMINGS, before + json.dumps(line).encode() + b"\n")


def read_timings(root: Folder) -> dict[str, dict[str, Any]]:
    """Return the last timing of each step, by name."""
    try:
        rows, _ = read_json_lines(root.read_bytes(TIMINGS))
    except FileNotFoundError:
        return {}
    return {row["step"]: row for row in rows if isinstance(row.get("step"), str)}
