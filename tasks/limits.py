"""How much of what comes in a step may reject before the run stops.

A crawl that loses three pages of four to dead links is fine; a cleaning step that drops 99 % says that the wrong
setting, or the wrong list, was given. Batches are counted in the order of the items, whichever ended first, so that
the same run stops at the same batch with 1 worker and with 16. What is committed stays: after a limit was raised the
same command goes on from there. Limits are part of no fingerprint.
"""

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from pydantic import Field

from gpt2train.errors import RunError
from gpt2train.settings import Settings

SHOWN = 6  # reasons that an error names; the rest is one number


class LimitSettings(Settings):
    """Share of the rows seen that each step may reject; past it the run stops. 1 lifts the limit."""

    min_rows: int = Field(1000, ge=1)
    """Rows that a step must have seen before a share counts; that it rejected every single row counts always."""
    blacklist: float = Field(0.95, ge=0, le=1)
    """URLs. Raw lists of submissions lose a tenth to a half."""
    download: float = Field(0.95, ge=0, le=1)
    """Pages. An old list loses three of four to dead links."""
    warcs: float = Field(0.95, ge=0, le=1)
    """Responses in archives. A crawl of everything holds pictures and error pages too."""
    webpages: float = Field(0.5, ge=0, le=1)
    """Files of HTML. They were put there on purpose."""
    texts: float = Field(0.5, ge=0, le=1)
    """Records of JSON lines, Parquet and text files. They were written on purpose."""
    extract: float = Field(0.95, ge=0, le=1)
    """Pages without a text, or of another kind than wanted."""
    clean: float = Field(0.95, ge=0, le=1)
    """Documents. A list in many languages, of which one is kept, loses most."""
    decontaminate: float = Field(0.5, ge=0, le=1)
    """Documents. The evaluation sets are in few of them, unless they are in the list itself."""
    dedup: float = Field(0.95, ge=0, le=1)
    """Documents. A crawl holds each page a few times, not twenty times."""

    def share(self, step: str) -> float:
        """The limit of a step; 1, which is none, for a step that rejects nothing."""
        return float(getattr(self, step, 1.0))


def judge(limits: LimitSettings, step: str, place: str, seen: int, reasons: Mapping[str, int]) -> None:
    """Compare what a step rejected with its limit.

    Args:
        limits: what each step may reject.
        step: name of the step.
        place: its folder, for the error.
        seen: rows that came in.
        reasons: rows rejected, by reason code.

    Raises:
        RunError: it is more than the limit allows.
    """
    rejected, limit = sum(reasons.values()), limits.share(step)
    if rejected <= limit * seen or (seen < limits.min_rows and rejected < seen):
        return
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    counts = [f"{reason} {count:,}" for reason, count in ranked[:SHOWN]]
    if len(ranked) > SHOWN:
        counts.append(f"others {sum(count for _, count in ranked[SHOWN:]):,}")
    raise RunError(
        f"{step} rejected {rejected:,} of {seen:,} rows, {rejected / seen:.1%}, where limits.{step} = {limit:g} is the "
        f"most that is allowed ({', '.join(counts)}); look at {place}/rejected, then mend the cause and remove {place} "
        f"to do the step again, or raise limits.{step} to go on from what is done"
    )


class Tally:
    """Judges a stage while its batches end: counted in the order of the items, as far as there is no gap."""

    def __init__(self, limits: LimitSettings, step: str, place: str, batches: Sequence[str]) -> None:
        self._limits, self._step, self._place = limits, step, place
        self._waiting = deque(batches)
        self._ended: dict[str, tuple[int, Mapping[str, int]]] = {}
        self._seen, self._reasons = 0, Counter[str]()
        self._lock = threading.Lock()

    def add(self, batch: str, seen: int, reasons: Mapping[str, int]) -> None:
        """Take a batch that has ended, from any thread: the rows it saw, and those it rejected by reason.

        Raises:
            RunError: more was rejected so far than the limit allows.
        """
        with self._lock:
            self._ended[batch] = (seen, reasons)
            while self._waiting and self._waiting[0] in self._ended:
                counted, rejected = self._ended.pop(self._waiting.popleft())
                self._seen += counted
                self._reasons.update(rejected)
                if self._seen >= self._limits.min_rows:
                    judge(self._limits, self._step, self._place, self._seen, self._reasons)
