"""Tail of the log files of a job's ranks, independent of the machines on which they run.

Every line of rank 0 is forwarded; of the other ranks only warnings and errors, prefixed with the rank. Equal messages
of several ranks are merged into one line. The output is rate-limited: `LINES_PER_SECOND` of each kind on average, and a
count of the lines that were left out.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpt2train.launch.rank_logs import LogLine, read_line
from tasks.train.metrics_tail import polling

log = logging.getLogger("gpt2train")

POLL_SECONDS = 1.0  # between two reads of rank 0's log
ALL_POLL_SECONDS = 5.0  # between two reads of all logs: there may be a thousand files on a shared disk
LINES_PER_SECOND, BURST = 10.0, 200.0  # rate limit: average rate, and lines at once after a pause
HOLD_SECONDS = 10.0  # for which an error that the launcher printed is held back: it may be the reason of the job's end
DEDUP_SECONDS = 60.0  # during which a message of one rank is not repeated for another
MAX_BYTES = 1 << 18  # read of one file in one poll; earlier lines are only counted
PREFIXES = (("error: ", logging.ERROR), ("warning: ", logging.WARNING))


def level_of(line: str) -> tuple[int, str]:
    """Return the level and the message of a line that a launcher printed."""
    for prefix, level in PREFIXES:
        if line.startswith(prefix):
            return level, line.removeprefix(prefix)
    return logging.INFO, line


@contextlib.contextmanager
def tail_rank_logs(folder: Path) -> Iterator["RankLogs"]:
    """Forward the lines that ranks log from now on, while the context is open."""
    ranks = RankLogs(folder)
    with polling(ranks.poll, POLL_SECONDS):
        yield ranks


@dataclass
class _TokenBucket:
    """Rate limit of forwarded lines."""

    tokens: float = BURST
    at: float = field(default_factory=time.monotonic)
    dropped: int = 0  # lines that were left out since the last report

    def take(self) -> bool:
        now = time.monotonic()
        self.tokens = min(BURST, self.tokens + LINES_PER_SECOND * (now - self.at))
        self.at = now
        if self.tokens < 1:
            self.dropped += 1
            return False
        self.tokens -= 1
        return True


class RankLogs:
    """Tail of the files `rank-N.log` of a run folder, which need not exist yet, from their current ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = {path: path.stat().st_size for path in self._files()}
        self._printed: list[str] = []
        self._printed_held: list[tuple[float, str]] = []  # time by the clock of `time.time`, and line
        self._lock = threading.Lock()  # of `_printed_held`: the lines come in another thread than that of `poll`
        self._held: list[tuple[int, LogLine]] = []
        self._all_read_at = 0.0
        self._recent: dict[tuple[int, str], tuple[float, list[int]]] = {}
        self._limits = {False: _TokenBucket(), True: _TokenBucket()}  # key: level is WARNING or higher

    def forward_printed(self, line: str) -> None:
        """Forward a line that came through the launcher.

        An error is held back until the next other line, at most `HOLD_SECONDS`: if the job ends with it, the caller
        raises it (`leave_to`). It is also remembered, because the rank's log has it as well.
        """
        level, message = level_of(line)
        if level < logging.ERROR:
            self._forward_held()
            log.log(level, message)
            return
        self._printed = [*self._printed[-49:], line]
        with self._lock:
            self._printed_held.append((time.time(), line))

    def leave_to(self, reason: str) -> None:
        """Drop the errors that are held back and that `reason` contains, with which the job ended."""
        with self._lock:
            self._printed_held = [held for held in self._printed_held if level_of(held[1])[1] not in reason]

    def _forward_held(self, seconds: float = 0.0) -> None:
        """Forward the errors that have been held back for so many seconds."""
        until = time.time() - seconds
        with self._lock:
            due = [held for held in self._printed_held if held[0] <= until]
            self._printed_held = [held for held in self._printed_held if held[0] > until]
        for created, line in due:
            emit(*level_of(line), created)

    def poll(self, last: bool = False) -> None:
        """Forward the new lines.

        Args:
            last: True for the last call, which forwards all lines that were held back.
        """
        self._forward_held(0.0 if last else HOLD_SECONDS)
        now = time.monotonic()
        read_all = last or now - self._all_read_at >= ALL_POLL_SECONDS
        if read_all:
            self._all_read_at = now
        files = self._files() if read_all else [self.folder / "rank-0.log"]
        new = [(_rank(path), line) for path in files for line in self._new_lines(path)]
        new = [(rank, line) for rank, line in new if rank == 0 or line.level >= logging.WARNING]
        # The launcher may be about to print the same error, so errors are held back until the next poll.
        due, self._held = self._held, []
        for entry in sorted(new, key=lambda entry: (entry[1].time, entry[0])):
            (self._held if entry[1].level >= logging.ERROR and not last else due).append(entry)
        self._forward([entry for entry in due if not self._was_printed(entry[1])])
        self._report_dropped(last)

    def _forward(self, lines: Sequence[tuple[int, LogLine]]) -> None:
        now = time.monotonic()
        self._recent = {key: seen for key, seen in self._recent.items() if now - seen[0] < DEDUP_SECONDS}
        same: dict[tuple[int, str], list[int]] = {}
        for rank, line in lines:
            if line.level >= logging.WARNING:
                same.setdefault((line.level, line.message), []).append(rank)
        for rank, line in lines:
            serious = line.level >= logging.WARNING
            key = (line.level, line.message)
            ranks = same.pop(key, []) if serious else [rank]
            if serious and key in self._recent and not {*ranks} & {*self._recent[key][1]}:
                continue  # another rank logged it a moment ago
            if ranks and serious:
                self._recent[key] = (now, ranks)
            if ranks and self._limits[serious].take():
                prefix = "" if ranks == [0] else f"{_names(ranks)}: "
                emit(line.level, prefix + level_of(line.message)[1], line.time)

    def _report_dropped(self, last: bool) -> None:
        for limit in self._limits.values():
            if limit.dropped and (last or limit.tokens + LINES_PER_SECOND * (time.monotonic() - limit.at) >= BURST / 2):
                log.info("… %s more lines in %s", f"{limit.dropped:,}", self.folder)
                limit.dropped = 0

    def _was_printed(self, line: LogLine) -> bool:
        message = level_of(line.message)[1]
        return line.level >= logging.ERROR and any(message in printed for printed in self._printed)

    def _new_lines(self, path: Path) -> list[LogLine]:
        """Return the complete lines since the last poll; of more than `MAX_BYTES` the newest."""
        try:
            with path.open("rb") as file:
                start, size = self._read.get(path, 0), file.seek(0, 2)
                start = start if start <= size else 0  # the file was replaced
                cut = size - start > MAX_BYTES
                file.seek(size - MAX_BYTES if cut else start)
                block = file.read(size - file.tell())
        except OSError:
            return []  # not created yet, or a temporary failure of the file system
        whole = block[: block.rfind(b"\n") + 1]
        self._read[path] = size - len(block) + len(whole)
        lines = whole.decode(errors="replace").splitlines()
        if cut:
            lines = lines[1:]
            self._limits[False].dropped += (size - start) // (MAX_BYTES // max(1, len(lines))) - len(lines)
        return [line for line in map(read_line, lines) if line is not None]

    def _files(self) -> list[Path]:
        return sorted((path for path in self.folder.glob("rank-*.log") if _rank(path) >= 0), key=_rank)


def emit(level: int, message: str, created: float) -> None:
    """Log a line with the time at which a rank wrote it (seconds since the epoch)."""
    if log.isEnabledFor(level):
        record = log.makeRecord(log.name, level, __file__, 0, message, (), None)
        record.created = created
        log.handle(record)


def _rank(path: Path) -> int:
    number = path.stem.removeprefix("rank-")
    return int(number) if number.isdecimal() else -1


def _names(ranks: Sequence[int]) -> str:
    """Format ranks as `rank 3` or `ranks 0-6, 8`."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:8]]
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {', '.join(shown)}{' …' if len(spans) > 8 else ''}"
