"""Limits on the share of rows that each step may reject before the run stops.

A crawl that loses three of four pages to dead links is normal; a cleaning step that drops 99 % suggests a wrong setting
or a wrong list. Batches are counted in the order of the items, not of their ends, so that a run stops at the same batch
with 1 worker and with 16. Committed batches stay: after a limit is raised, the same command continues from there.
Limits are not part of any fingerprint.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from pydantic import Field

from gpt2train.errors import RunError
from gpt2train.settings import Settings

FORGOTTEN = "forgotten"  # reason of rows that the user wants to be dropped (`tasks.core.forgotten`)
MAX_SHOWN = 6  # reasons that an error names; the others are summed


class LimitSettings(Settings):
    """Maximum share of rejected rows for each step, above which the run stops. 1 disables a limit."""

    min_rows: int = Field(1000, ge=1)
    """Rows that a step must have seen before the limits apply, unless it has rejected every row."""
    blacklist: float = Field(0.95, ge=0, le=1)
    """URLs. Raw lists of submissions lose a tenth to a half."""
    download: float = Field(0.95, ge=0, le=1)
    """Pages. An old list loses three of four pages to dead links."""
    warcs: float = Field(0.95, ge=0, le=1)
    """Responses in archives. A general crawl also holds pictures and error pages."""
    webpages: float = Field(0.5, ge=0, le=1)
    """HTML files. They were collected on purpose."""
    texts: float = Field(0.5, ge=0, le=1)
    """Records of JSON lines, Parquet and text files. They were written on purpose."""
    extract: float = Field(0.95, ge=0, le=1)
    """Pages without text, or not fit for training."""
    boilerplate: float = Field(0.5, ge=0, le=1)
    """Documents. Few of them have no line of their own."""
    clean: float = Field(0.95, ge=0, le=1)
    """Documents. A list in many languages, of which one is kept, loses most."""
    decontaminate: float = Field(0.5, ge=0, le=1)
    """Documents. Few of them contain evaluation sets, unless these are in the list itself."""
    dedup: float = Field(0.95, ge=0, le=1)
    """Documents. A crawl holds each page a few times, not twenty times."""
    substrings: float = Field(0.5, ge=0, le=1)
    """Documents. Those that repeat as a whole are already gone."""

    def share(self, step: str) -> float:
        """Return the limit of a step; 1 (no limit) for a step that rejects nothing."""
        return float(getattr(self, step, 1.0))


def check_reject_rate(limits: LimitSettings, step: str, folder: str, seen: int, reasons: Mapping[str, int]) -> None:
    """Check a step's rejected rows, by reason code, against its limit; `folder` is its URL, for the message.

    Forgotten rows do not count.

    Raises:
        RunError: More of the `seen` rows were rejected than the limit allows.
    """
    forgotten = reasons.get(FORGOTTEN, 0)
    rejected, limit = sum(reasons.values()) - forgotten, limits.share(step)
    seen -= forgotten
    if rejected <= limit * seen or (seen < limits.min_rows and rejected < seen):
        return
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    counts = [f"{reason} {count:,}" for reason, count in ranked[:MAX_SHOWN]]
    if len(ranked) > MAX_SHOWN:
        counts.append(f"others {sum(count for _, count in ranked[MAX_SHOWN:]):,}")
    raise RunError(
        f"{step} rejected {rejected:,} of {seen:,} rows, {rejected / seen:.1%}, more than limits.{step} = {limit:g} "
        f"allows ({', '.join(counts)}); see {folder}/rejected, then fix the cause and remove {folder} to repeat the "
        f"step, or raise limits.{step} to go on from what is done"
    )


class Tally:
    """Running check of a stage's reject rate, over its batches in the order of the items up to the first gap.

    `folder` is the URL of the step's folder, for the message.
    """

    def __init__(self, limits: LimitSettings, step: str, folder: str, batches: Sequence[str]) -> None:
        self._limits, self._step, self._folder = limits, step, folder
        self._pending = deque(batches)
        self._ended: dict[str, tuple[int, Mapping[str, int]]] = {}
        self._seen, self._reasons = 0, Counter[str]()

    def add(self, batch: str, seen: int, reasons: Mapping[str, int]) -> None:
        """Add an ended batch: its input rows, and its rejected rows by reason code.

        Raises:
            RunError: More rows were rejected so far than the limit allows.
        """
        self._ended[batch] = (seen, reasons)
        while self._pending and self._pending[0] in self._ended:
            counted, rejected = self._ended.pop(self._pending.popleft())
            self._seen += counted
            self._reasons.update(rejected)
            if self._seen >= self._limits.min_rows:
                check_reject_rate(self._limits, self._step, self._folder, self._seen, self._reasons)
