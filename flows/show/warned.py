"""The warnings of a run, gathered on its page: what steps and ranks log, and what only their numbers show."""

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect.runtime import task_run

from flows.show.page import Page
from gpt2train.errors import redact
from tasks.limits import LimitSettings
from tasks.steps import Manifest

log = logging.getLogger("gpt2train")

MOST = 100  # kinds of warnings that are told apart
NEAR = 0.8  # share of its limit from which a step's rejects are worth a word
HALVINGS = 6  # of the loss scale until it is worth a word

_NUMBER = re.compile(r"\d[\d,.]*")


@dataclass
class _Warned:
    level: str
    step: str
    last: str
    count: int
    first_at: float
    last_at: float

    def words(self) -> str:
        """One line: step, when, how often, the message itself."""
        when = _moment(self.first_at)
        if self.count > 1:
            when = f"{self.count:,} times from {when} to {_moment(self.last_at)}"
        level = "" if self.level == "warning" else f"**{self.level}**, "
        return f"**{self.step or 'run'}**, {level}{when}: {' '.join(self.last.split())}"


class Warnings(logging.Handler):
    """Takes every record from WARNING up and keeps a list of them; the same words with other numbers are one line."""

    def __init__(self, page: Page) -> None:
        super().__init__(logging.WARNING)
        self.page = page
        self._found: dict[tuple[str, str], _Warned] = {}
        self._others = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record; the page is written later."""
        message = redact(record.getMessage())
        step = str(task_run.name or "").partition(" ")[0]
        key = (step, _NUMBER.sub("0", message))
        if (known := self._found.get(key)) is not None:
            known.last, known.count, known.last_at = message, known.count + 1, record.created
        elif len(self._found) < MOST:
            self._found[key] = _Warned(record.levelname.lower(), step, message, 1, record.created, record.created)
        else:
            self._others += 1
        total = sum(one.count for one in self._found.values()) + self._others
        words = f"{total:,} warning{'s' if total != 1 else ''}; the last: {message[:150]}"
        self.page.put("warnings", self._listed, words, of_step=False)

    def _listed(self) -> str:
        """A list, not a table: the pages cut a table's long lines off."""
        lines = [f"- {one.words()}" for one in list(self._found.values())]
        more = [f"- and {self._others:,} others, in the logs"] if self._others else []
        return "\n".join([*lines, *more]) + "\n"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def near_limit(manifest: Manifest, limits: LimitSettings | None) -> str | None:
    """A warning when a step rejected nearly as much as would have stopped the run; None when it did not."""
    seen, rejected = manifest.outcome.seen, sum(manifest.outcome.reasons.values())
    if limits is None or seen < limits.min_rows:
        return None
    limit = limits.share(manifest.step)
    if limit >= 1 or rejected < NEAR * limit * seen:
        return None
    return (
        f"{manifest.step} rejected {rejected / seen:.1%} of {seen:,} rows; above limits.{manifest.step} = {limit:g} "
        "the run would have stopped"
    )


class ScaleWatch:
    """Notices when the loss scale of a float16 training keeps falling: gradients overflow again and again."""

    def __init__(self) -> None:
        self._low: float | None = None

    def look(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """A warning when the scale was halved `HALVINGS` times since the last one, or since the start."""
        first, last = records[0].get("loss_scale"), records[-1].get("loss_scale")
        if not first or not last:
            return None
        low = self._low or first
        if last > low / 2**HALVINGS:
            return None
        self._low = last
        return (
            f"the loss scale fell from 2^{math.log2(low):.0f} to 2^{math.log2(last):.0f} by step "
            f"{records[-1]['step']}: gradients overflow; bfloat16, a lower optimizer.lr or a longer warm-up help"
        )
