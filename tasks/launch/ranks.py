"""The log lines of a job's ranks, read from their files as they grow: the same wherever the ranks run.

Of the first rank, which speaks for all, every line; of the others warnings and errors, with the rank's name. The same
words of many ranks are one line. However much a thousand ranks write, what is passed on is bounded: `LINES` of each
kind a second on average, and a note of how many more the files have.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpt2train.logs import Line, read_line
from tasks.follow import watched

log = logging.getLogger("gpt2train")

FIRST_SECONDS = 1.0  # between two looks at the first rank's log
ALL_SECONDS = 5.0  # and at everyone's: a thousand files on a shared disk
LINES, BURST = 10.0, 200.0  # passed on a second; and at once after a silence
SAME_SECONDS = 60.0  # for which the words of one rank are not repeated for another
MOST_BYTES = 1 << 18  # read of one file in one look; before that, lines are only counted
PREFIXES = (("error: ", logging.ERROR), ("warning: ", logging.WARNING))


def level_of(line: str) -> tuple[int, str]:
    """Level and message of a line that a launcher printed."""
    for prefix, level in PREFIXES:
        if line.startswith(prefix):
            return level, line.removeprefix(prefix)
    return logging.INFO, line


@contextlib.contextmanager
def followed_ranks(folder: Path) -> Iterator["RankLogs"]:
    """Pass on what the ranks log from now on, and at the end what is left."""
    ranks = RankLogs(folder)
    with watched(ranks.look, FIRST_SECONDS):
        yield ranks


@dataclass
class _Allowance:
    """How many lines may still be passed on: it refills with time."""

    left: float = BURST
    at: float = field(default_factory=time.monotonic)
    more: int = 0  # lines that were not passed on since the last note

    def take(self) -> bool:
        now = time.monotonic()
        self.left = min(BURST, self.left + LINES * (now - self.at))
        self.at = now
        if self.left < 1:
            self.more += 1
            return False
        self.left -= 1
        return True


class RankLogs:
    """Follows `rank-N.log` of a run folder from where they end now.

    Args:
        folder: of the logs; need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = {path: path.stat().st_size for path in self._files()}
        self._told: list[str] = []
        self._held: list[tuple[int, Line]] = []
        self._everyone_at = 0.0
        self._said: dict[tuple[int, str], tuple[float, list[int]]] = {}
        self._allowed = {False: _Allowance(), True: _Allowance()}  # by whether a line is a warning or worse

    def told(self, line: str) -> None:
        """Note what came by the launcher already: a rank's error is in its log and on the screen."""
        if line.startswith("error: "):
            self._told = [*self._told[-49:], line]

    def look(self, last: bool = False) -> None:
        """Pass on what is new.

        Args:
            last: nothing more is coming: keep nothing back.
        """
        now = time.monotonic()
        everyone = last or now - self._everyone_at >= ALL_SECONDS
        if everyone:
            self._everyone_at = now
        files = self._files() if everyone else [self.folder / "rank-0.log"]
        new = [(_rank(path), line) for path in files for line in self._new_lines(path)]
        new = [(rank, line) for rank, line in new if rank == 0 or line.level >= logging.WARNING]
        # An error may be on its way through the launcher as well: it waits for the next look.
        due, self._held = self._held, []
        for one in sorted(new, key=lambda one: (one[1].time, one[0])):
            (self._held if one[1].level >= logging.ERROR and not last else due).append(one)
        self._pass_on([one for one in due if not self._was_told(one[1])])
        self._note_more(last)

    def _pass_on(self, lines: Sequence[tuple[int, Line]]) -> None:
        now = time.monotonic()
        self._said = {words: said for words, said in self._said.items() if now - said[0] < SAME_SECONDS}
        same: dict[tuple[int, str], list[int]] = {}
        for rank, line in lines:
            if line.level >= logging.WARNING:
                same.setdefault((line.level, line.message), []).append(rank)
        for rank, line in lines:
            serious = line.level >= logging.WARNING
            words = (line.level, line.message)
            ranks = same.pop(words, []) if serious else [rank]
            if serious and words in self._said and not {*ranks} & {*self._said[words][1]}:
                continue  # of another rank a moment ago
            if ranks and serious:
                self._said[words] = (now, ranks)
            if ranks and self._allowed[serious].take():
                who = "" if ranks == [0] else f"{_names(ranks)}: "
                emit(line.level, who + level_of(line.message)[1], line.time)

    def _note_more(self, last: bool) -> None:
        for allowance in self._allowed.values():
            if allowance.more and (last or allowance.left + LINES * (time.monotonic() - allowance.at) >= BURST / 2):
                log.info("… %s more lines in %s", f"{allowance.more:,}", self.folder)
                allowance.more = 0

    def _was_told(self, line: Line) -> bool:
        message = level_of(line.message)[1]
        return line.level >= logging.ERROR and any(message in told for told in self._told)

    def _new_lines(self, path: Path) -> list[Line]:
        """The whole lines since the last look; of too many the newest."""
        try:
            with path.open("rb") as file:
                start, size = self._read.get(path, 0), file.seek(0, 2)
                start = start if start <= size else 0  # another file by now
                cut = size - start > MOST_BYTES
                file.seek(size - MOST_BYTES if cut else start)
                block = file.read(size - file.tell())
        except OSError:
            return []  # not there yet, or out of reach for a moment
        whole = block[: block.rfind(b"\n") + 1]
        self._read[path] = size - len(block) + len(whole)
        lines = whole.decode(errors="replace").splitlines()
        if cut:
            lines = lines[1:]
            self._allowed[False].more += (size - start) // (MOST_BYTES // max(1, len(lines))) - len(lines)
        return [line for line in map(read_line, lines) if line is not None]

    def _files(self) -> list[Path]:
        return sorted((path for path in self.folder.glob("rank-*.log") if _rank(path) >= 0), key=_rank)


def emit(level: int, message: str, moment: float) -> None:
    """Log a line as of the moment at which a rank wrote it."""
    if log.isEnabledFor(level):
        record = log.makeRecord(log.name, level, __file__, 0, message, (), None)
        record.created = moment
        log.handle(record)


def _rank(path: Path) -> int:
    number = path.stem.removeprefix("rank-")
    return int(number) if number.isdecimal() else -1


def _names(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-6, 8`."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:8]]
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {', '.join(shown)}{' …' if len(spans) > 8 else ''}"
