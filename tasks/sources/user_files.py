"""Steps that read the user's files: identity of the files, batches of them, and the shards of their rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpt2train.data.documents import COLUMN_NAMES
from gpt2train.data.packed_file import PACKED
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome, digest
from tasks.core.forgotten import REASON, forgotten_beside, name_of
from tasks.core.input_files import InputFile, suffix_of
from tasks.core.shards import commit_rows, read_rows, rejected_row
from tasks.core.step import Step


def identity_of(files: Sequence[InputFile]) -> str:
    """Return the hash of the names and contents of files, in their order."""
    return digest([[file.name, file.identity] for file in files])


def grouped(files: Sequence[InputFile], count: int, size: int) -> list[tuple[InputFile, ...]]:
    """Partition files in their order into groups of at most `count` files and about `size` bytes."""
    groups: list[list[InputFile]] = []
    held = size
    for file in files:
        if held >= size or len(groups[-1]) >= count:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += file.bytes or size
    return [tuple(group) for group in groups]


def fault_of(file: InputFile) -> str | None:
    """Return the reason for which a file cannot be read, or no longer be opened; None if it can."""
    if file.bytes == 0 and suffix_of(file.location) in (*PACKED, *COLUMN_NAMES):
        return "it has 0 bytes"
    if file.fault or "://" in file.location:
        return file.fault
    try:
        Path(file.location).open("rb").close()
    except OSError as error:
        return f"{error.strerror or error} since the run began"
    return None


class ShardWriter:
    """Writer of a batch's rows into the shards `<name>-00000.parquet`, `<name>-00001.parquet` and so on.

    The sizes of the kept rows are summed as the fact `fact` of the outcome. Rows of forgotten pages are rejected.
    """

    def __init__(
        self, folder: Folder, name: str, schema: pa.Schema, fact: str, size_of: Callable[[dict[str, Any]], int]
    ) -> None:
        self._folder, self._name, self._schema, self._fact, self._size_of = folder, name, schema, fact, size_of
        self._outcomes: list[Outcome] = []
        self._forgotten = forgotten_beside(folder)
        self._begin()

    def _begin(self) -> None:
        self.rows = self.size = 0  # rows of the shard, kept and rejected, and sizes of the kept ones
        self._kept: list[dict[str, Any]] = []
        self._rejected: list[dict[str, Any]] = []

    def keep(self, row: dict[str, Any]) -> None:
        """Add a row of the schema."""
        if self._forgotten.matches_row(row):
            self.reject(row, REASON, "")
            return
        self._kept.append(row)
        self.rows += 1
        self.size += self._size_of(row)

    def reject(self, row: dict[str, Any], reason: str, detail: str) -> None:
        """Add a rejected row."""
        if self._forgotten.matches_row(row):
            row, reason, detail = {"url": name_of(row["url"]), "source": row["source"]}, REASON, ""
        self._rejected.append(rejected_row(row, reason, detail))
        self.rows += 1

    def end_shard(self) -> None:
        """Write the current shard and begin the next one."""
        shard, facts = f"{self._name}-{len(self._outcomes):05d}.parquet", {self._fact: self.size}
        self._outcomes.append(commit_rows(self._folder, shard, self._kept, self._rejected, self._schema, facts))
        self._begin()

    def close(self) -> Outcome:
        """Write the last shard, also the only one if it is empty, and return the outcome of the batch."""
        if self.rows or not self._outcomes:
            self.end_shard()
        return Outcome.total(self._outcomes)


def commit_some(step: Step, outcomes: Sequence[Outcome], what: str, nothing: str) -> Manifest:
    """Write the manifest of a step that kept at least one row; else raise `what` with the reasons, or with `nothing`.

    Raises:
        UserError: No row was kept; the message has the counts of the reasons and the first row. The next run reads the
            files again.
    """
    total = Outcome.total(outcomes)
    if total.kept:
        return step.commit(total)
    details = (row["detail"] for record in total.rejected for row in read_rows(step.folder, record.name))
    first = f"; {detail}" if (detail := next(details, None)) else ""
    raise UserError(f"{what} ({step.reasons_of(total) or nothing}{first}); see {step.folder.url}/rejected")
