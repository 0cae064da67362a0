"""Kept and rejected documents of a data flow, as a random sample.

The cleaning stores the beginning of a rejected text; the whole text is looked up in the documents that it read.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2train.errors import RunError, UserError
from gpt2train.store.files import check_folder
from gpt2train.store.folder import Folder
from gpt2train.store.output import FinishedStep, Output
from gpt2train.store.removal import check_no_removal_above

MAX_FILES = 16  # read of each kind, evenly spaced
MAX_DOCUMENTS = 1000  # of each kind
Row = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """Document with the verdict of the cleaning."""

    id: str
    url: str
    text: str
    reason: str | None  # reason code; None for a kept document
    detail: str  # found and expected values of the rule


def sample_documents(output: Path, seed: int = 0) -> tuple[list[Document], list[Document]]:
    """Read at most 1,000 kept and 1,000 rejected documents in a random order that depends on the seed alone.

    The reasons of the rejected ones take turns, so that rare ones are seen too.

    Args:
        output: output folder of a data flow whose step `clean` is finished, local.
        seed: seed of the order.

    Raises:
        UserError: there is no such step, none of its rejected documents can be found, or a removal of pages was
            interrupted.
    """
    check_folder(output)
    folder = output / "clean"
    check_no_removal_above(folder)
    finished = Output(Folder(output))
    clean = next((step for step in finished.steps if step.name == "clean"), None)
    if clean is None:
        raise UserError(f"{folder} holds no finished step clean; give the output folder of a data flow")
    kept = _first(_rows([folder / name for name in clean.outputs], ["id", "url", "text"]), seed)
    rejected = _first(_rows([folder / name for name in clean.rejected], ["id", "url", "reason", "detail"]), seed)
    texts = _texts(finished.chain(clean)[:-1], {row["id"] for row in rejected})
    dropped = [
        Document(row["id"], row["url"] or "", texts[row["id"]], row["reason"], row["detail"] or "")
        for row in rejected
        if row["id"] in texts
    ]
    if rejected and not dropped:
        raise UserError(f"{output}/documents has none of the rejected texts; run the data flow again to restore it")
    ranks: Counter[str | None] = Counter()
    order = []
    for document in dropped:
        order.append(ranks[document.reason])
        ranks[document.reason] += 1
    dropped = [document for _, document in sorted(zip(order, dropped, strict=True), key=lambda pair: pair[0])]
    return [Document(row["id"], row["url"], row["text"], None, "") for row in kept], dropped


def _rows(files: list[Path], columns: list[str]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files[:: -(-len(files) // MAX_FILES) or 1]:
        try:
            yield from pq.read_table(file, columns=columns).to_pylist()
        except (OSError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise UserError(f"{file} cannot be read; run the data flow again to restore it") from error


def _first(rows: Iterator[Row], seed: int) -> list[Row]:
    """The rows with the smallest hashes of seed and id; a few thousand are in memory."""
    found: dict[str, Row] = {}
    for row in rows:
        if row["id"]:
            found[hashlib.sha256(f"{seed} {row['id']}".encode(errors="replace")).hexdigest()] = row
        if len(found) >= 4 * MAX_DOCUMENTS:
            found = dict(sorted(found.items())[:MAX_DOCUMENTS])
    return [row for _, row in sorted(found.items())[:MAX_DOCUMENTS]]


def _texts(steps: Sequence[FinishedStep], ids: Set[str]) -> dict[str, str]:
    """Texts of documents by id, as the last of some steps that has them wrote them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from gpt2train.store.rows import matches

    found: dict[str, str] = {}
    for step in reversed(steps):
        missing = pa.array(sorted(ids - found.keys()), pa.string())
        is_missing = functools.partial(pc.is_in, value_set=missing)
        try:
            for rows in matches(step.folder, step.outputs, "id", is_missing, ("id", "text"), partial=True):
                found |= {row["id"]: row["text"] for row in rows if "text" in row}
        except RunError as error:
            raise UserError(f"{step.folder.url} cannot be read; run the data flow again to restore it") from error
    return found
