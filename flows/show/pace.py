"""How far a stage has come, how fast it goes, and how long it still takes."""

import time
from dataclasses import dataclass, field

UNITS = {"blacklist": "URLs", "download": "pages", "extract": "pages"}  # what other steps count is documents


@dataclass
class Pace:
    """Batches done of a total, and the rows in them.

    Attributes:
        unit: name of a row.
        total: batches.
        done: batches that have ended.
        rows: done, those of batches in flight among them where these tell; 0 where a stage counts none.
        all_rows: to be done; 0 where that is not known.
        started: by the monotonic clock, in seconds.
    """

    unit: str
    total: int
    done: int = 0
    rows: int = 0
    all_rows: int = 0
    started: float = field(default_factory=time.monotonic)

    def rate(self, now: float) -> str:
        """Rows a second, `1,234 pages/s`; empty as long as there is nothing to say."""
        seconds = now - self.started
        if not self.rows or seconds <= 0:
            return ""
        value = self.rows / seconds
        return f"{value:,.0f} {self.unit}/s" if value >= 10 else f"{value:.1f} {self.unit}/s"

    @property
    def share(self) -> float:
        """Done of all, 0 to 1: rows where they are known, else batches."""
        return self.rows / self.all_rows if self.all_rows else self.done / self.total

    def left(self, now: float) -> float | None:
        """Seconds until the end at the pace so far; None before anything is done."""
        return (now - self.started) * (1 - self.share) / self.share if self.share else None

    def words(self, now: float) -> str:
        """Done of total, rate and time left in one line."""
        parts = [f"{self.done:,} of {self.total:,} batches"]
        if self.all_rows:
            parts.append(f"{self.rows:,} of {self.all_rows:,} {self.unit}")
        elif self.rows:
            parts.append(f"{self.rows:,} {self.unit}")
        parts += filter(None, [self.rate(now)])
        left = self.left(now)
        if self.done == self.total:
            parts.append(f"took {clock(now - self.started)}")
        elif left is not None:
            parts.append(f"{clock(left)} left")
        return ", ".join(parts)


def clock(seconds: float) -> str:
    """A duration as 1:05 or 2:03:04."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
