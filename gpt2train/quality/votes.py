"""Votes on documents as JSON lines, one per vote, on disk before the next document is shown.

A line has the document's text, so that a model can be trained from the file alone. A later vote on a document replaces
the earlier one; the vote `null` withdraws it.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gpt2train.errors import UserError
from gpt2train.store.files import fsync, make_folder, read_json_lines, write_error

try:
    import fcntl
except ImportError:  # Windows: that no other process has the file open is not checked
    fcntl = None  # type: ignore[assignment]

BEGINNING = b'{"id": '  # of each line
Verdict = Literal["good", "bad"]


@dataclass(frozen=True)
class Vote:
    """Vote on one document."""

    id: str
    url: str
    reason: str | None  # reason code for which the document was rejected; None for a kept one
    vote: Verdict | None  # None withdraws an earlier vote
    text: str


def read_votes(paths: Sequence[Path]) -> list[Vote]:
    """Read the last vote on each document.

    Raises:
        UserError: a file cannot be read, or a line is no vote.
    """
    votes: dict[str, Vote] = {}
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; give a file of gpt2train data label") from error
        content = content[: _end_of_votes(content)]
        ended = content if content.endswith(b"\n") or not content else content + b"\n"
        rows, unreadable = read_json_lines(ended, _is_vote)
        if unreadable:
            raise UserError(f"{path}: line {unreadable[0]} is no vote; remove the line")
        for row in rows:
            votes.pop(row["id"], None)
            if row["vote"] is not None:
                votes[row["id"]] = Vote(row["id"], row["url"], row["reason"], row["vote"], row["text"])
    return list(votes.values())


class VoteFile:
    """File of votes that is open for more; one process at a time.

    Raises:
        UserError: another process has it open, a line is no vote, or it is not writable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_folder(path.parent)
            self._file = path.open("ab")
            fsync(path.parent)
        except OSError as error:
            raise write_error(path, error, "give another --votes") from error
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UserError(f"{path} is open in another gpt2train data label; end that one first") from error
        try:
            self.votes = {vote.id: vote for vote in read_votes([path])}  # before a byte of the file is changed
            content = path.read_bytes()
            end = _end_of_votes(content)
            os.ftruncate(self._file.fileno(), end)
            if end and content[end - 1 : end] != b"\n":
                self._file.write(b"\n")
        except UserError:
            self._file.close()
            raise

    def add(self, vote: Vote) -> None:
        """Append a vote and flush it to the disk.

        Raises:
            UserError, RunError: the file is not writable, or the disk is full.
        """
        try:
            self._file.write(json.dumps(asdict(vote), ensure_ascii=True).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise write_error(self.path, error, "give another --votes") from error
        self.votes.pop(vote.id, None)
        if vote.vote is not None:
            self.votes[vote.id] = vote

    def close(self) -> None:
        """Close the file, and let another process open it."""
        self._file.close()


def _end_of_votes(content: bytes) -> int:
    """Length of a file without a last line that a kill cut off; one of another kind belongs to the file."""
    start = content.rfind(b"\n") + 1
    last = content[start:]
    whole = read_json_lines(last + b"\n")[0]
    is_cut_off = last[: len(BEGINNING)] == BEGINNING[: len(last)]
    return start if is_cut_off and not whole else len(content)


def _is_vote(row: dict[str, Any]) -> bool:
    texts = [row.get(name) for name in ("id", "url", "text")]
    reason, vote = row.get("reason"), row.get("vote")
    return all(isinstance(text, str) for text in texts) and isinstance(reason, str | None) and vote in _VERDICTS


_VERDICTS = ("good", "bad", None)
