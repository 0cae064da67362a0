"""Warnings of a run, collected on its page: logged warnings of steps and ranks, and checks of their metrics."""

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect.runtime import task_run

from flows.ui.artifact_publisher import ArtifactPublisher
from gpt2train.errors import redact
from gpt2train.store.counts import count_of
from gpt2train.store.manifest import Manifest
from tasks.core.reject_limits import LimitSettings

log = logging.getLogger("gpt2train")

MAX_WARNINGS = 100  # different warnings that are listed; all others are only counted
NEAR_LIMIT_SHARE = 0.8  # share of its reject limit from which a step causes a warning
HALVINGS_TO_WARN = 6  # halvings of the loss scale until a warning

_NUMBER = re.compile(r"\d[\d,.]*")


@dataclass
class _Warning:
    level: str
    step: str
    message: str
    count: int
    first_at: float
    last_at: float

    def line(self) -> str:
        """Format the warning as one line: step, time or times, message."""
        when = _format_time(self.first_at)
        if self.count > 1:
            when = f"{self.count:,} times from {when} to {_format_time(self.last_at)}"
        level = "" if self.level == "warning" else f"**{self.level}**, "
        return f"**{self.step or 'run'}**, {level}{when}: {' '.join(self.message.split())}"


class Warnings(logging.Handler):
    """Handler that collects the records from WARNING up; messages that differ only in numbers share one line."""

    def __init__(self, publisher: ArtifactPublisher) -> None:
        super().__init__(logging.WARNING)
        self.publisher = publisher
        self._found: dict[tuple[str, str], _Warning] = {}
        self._others = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record and publish the list."""
        message = redact(record.getMessage())
        step = str(task_run.name or "").partition(" ")[0]
        key = (step, _NUMBER.sub("0", message))
        if (known := self._found.get(key)) is not None:
            known.message, known.count, known.last_at = message, known.count + 1, record.created
        elif len(self._found) < MAX_WARNINGS:
            self._found[key] = _Warning(record.levelname.lower(), step, message, 1, record.created, record.created)
        else:
            self._others += 1
        total = sum(one.count for one in self._found.values()) + self._others
        text = f"{total:,} warning{'s' if total != 1 else ''}; the last: {message[:150]}"
        self.publisher.publish("warnings", self._as_list, text, of_step=False)

    def _as_list(self) -> str:
        """Format the warnings as a Markdown list; the UI would truncate long lines of a table."""
        lines = [f"- {one.line()}" for one in list(self._found.values())]
        more = [f"- and {count_of(self._others, 'other')}, in the logs"] if self._others else []
        return "\n".join([*lines, *more]) + "\n"


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def near_limit(manifest: Manifest, limits: LimitSettings | None) -> str | None:
    """Return a warning if a step rejected nearly as many rows as its limit allows; None otherwise."""
    seen, rejected = manifest.outcome.seen, sum(manifest.outcome.reasons.values())
    if limits is None or seen < limits.min_rows:
        return None
    limit = limits.share(manifest.step)
    if limit >= 1 or rejected < NEAR_LIMIT_SHARE * limit * seen:
        return None
    return (
        f"{manifest.step} rejected {rejected / seen:.1%} of {seen:,} rows; above limits.{manifest.step} = {limit:g} "
        "the run would have stopped"
    )


class LossScaleMonitor:
    """Detector of a float16 training whose loss scale keeps falling, because gradients overflow repeatedly."""

    def __init__(self) -> None:
        self._low: float | None = None

    def check(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """Return a warning if the scale was halved `HALVINGS_TO_WARN` times since the last warning or the start."""
        first, last = records[0].get("loss_scale"), records[-1].get("loss_scale")
        if not first or not last:
            return None
        low = self._low or first
        if last > low / 2**HALVINGS_TO_WARN:
            return None
        self._low = last
        return (
            f"the loss scale fell from 2^{math.log2(low):.0f} to 2^{math.log2(last):.0f} by step "
            f"{records[-1]['step']}: gradients overflow; bfloat16, a lower optimizer.lr or a longer warm-up help"
        )
