"""Progress of a stage: batches and rows done, rate, and time left."""

import time
from dataclasses import dataclass, field

UNITS = {"blacklist": "URLs", "download": "pages", "extract": "pages"}  # all other steps count documents


@dataclass
class StageProgress:
    """Batches and rows done of a stage."""

    unit: str  # name of the rows, in the plural
    total: int  # number of batches
    done: int = 0  # number of finished batches
    rows: int = 0  # done, including those of batches in flight that report them; 0 if the stage counts none
    all_rows: int = 0  # total number of rows; 0 if unknown
    started: float = field(default_factory=time.monotonic)  # on the monotonic clock, in seconds

    def rate(self, now: float) -> str:
        """Format the rows per second as `1,234 pages/s`; empty before any row is done."""
        seconds = now - self.started
        if not self.rows or seconds <= 0:
            return ""
        value = self.rows / seconds
        return f"{value:,.0f} {self.unit}/s" if value >= 10 else f"{value:.1f} {self.unit}/s"

    @property
    def share(self) -> float:
        """Fraction done, 0 to 1: of the rows if their total is known, else of the batches."""
        return self.rows / self.all_rows if self.all_rows else self.done / self.total

    def left(self, now: float) -> float | None:
        """Estimate the seconds until the end at the average rate so far; None before anything is done."""
        return (now - self.started) * (1 - self.share) / self.share if self.share else None

    def summary(self, now: float) -> str:
        """Summarize done of total, rate and time left in one line."""
        parts = [f"{self.done:,} of {self.total:,} batches"]
        if self.all_rows:
            parts.append(f"{self.rows:,} of {self.all_rows:,} {self.unit}")
        elif self.rows:
            parts.append(f"{self.rows:,} {self.unit}")
        parts += filter(None, [self.rate(now)])
        left = self.left(now)
        if self.done == self.total:
            parts.append(f"took {format_duration(now - self.started)}")
        elif left is not None:
            parts.append(f"{format_duration(left)} left")
        return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """Format a duration as 1:05 or 2:03:04."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
