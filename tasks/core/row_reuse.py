"""Reuse of rows: a step that maps rows one by one takes the unchanged ones from its own earlier outputs.

A step begins again because its input has changed, with the same version, parameters, packages and other inputs. Then
its earlier files are moved to `_previous/`, where the batches find the result of each row by a key of the row's input:

    documents/_rows/part-00000.parquet               one row per input row, in order (schema `ROWS`)
    documents/_previous/_moved.json                  the earlier manifest, while the step runs
    documents/_previous/part-00000.parquet           its files
    documents/_previous/_rows/part-00000.parquet

The results are copied, so the outputs are those of a run from scratch. Nothing here is named by a manifest, and all of
it may be removed: a file of keys counts only together with the very files that its batch wrote, by their hashes.
"""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from gpt2train.errors import RunError
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import MANIFEST, Manifest, Outcome, canonical, digest, read_manifest
from tasks.core.shards import REJECTED, commit_tables, read_table, write_table

KEYS, PREVIOUS = "_rows/", "_previous/"
ROWS = pa.schema(
    [
        pa.field("key", pa.binary(16)),  # of the input row; null if the result depends on more than the row
        pa.field("kept", pa.bool_(), nullable=False),  # the row went to the outputs, not to the rejected rows
        pa.field("facts", pa.string()),  # JSON: counts that the row added to the facts of the step; null: none
        # Hash of the input row as it is stored, compressed and with its time: a row that is found by it need not be
        # decoded. Null if it is not known, or the key is null; the column is not in files of older releases.
        pa.field("stored", pa.binary(16)),
    ]
)
# The earlier manifest in `_previous/`, until all its files are there and from then on. Readers that search an output
# for manifests must not find it.
MOVING, MOVED = "_moving.json", "_moved.json"
MAX_FRUITLESS = 16  # files of keys that a batch reads in a row without finding a row

Row = dict[str, Any]


def row_key(*values: object) -> bytes:
    """Return the key of an input row: a hash of all values of it that shape its result."""
    return bytes_key(canonical(list(values)))


def bytes_key(data: bytes) -> bytes:
    """Return the key of an input row that is bytes, or of a text in UTF-8."""
    return hashlib.blake2b(data, digest_size=16).digest()


class RowResult(NamedTuple):
    """Computed result of one input row."""

    key: bytes | None
    row: Row  # output row, or rejected row
    kept: bool
    facts: dict[str, int] = {}
    stored: bytes | None = None  # hash of the input row as it is stored; None if not known


class EarlierResult(NamedTuple):
    """Result of one input row in an earlier output: a place in a table, which is read when it is first needed."""

    key: bytes | None
    kept: bool
    facts: dict[str, int]
    stored: bytes | None
    part: "_Part"
    position: int

    def value(self, column: str) -> Any:
        """Return one value of the row."""
        return self.part.table(self.kept)[column][self.position].as_py()


class PreviousRows(NamedTuple):
    """Earlier outputs of a step from which its batches may take rows; picklable."""

    folder: Folder  # `_previous/` of the step
    fingerprint: str  # fingerprint of the earlier manifest


def commit_results(
    folder: Folder,
    name: str,
    results: Sequence[RowResult | EarlierResult],
    schema: pa.Schema,
    facts_of: Callable[[pa.Table], dict[str, int]],
    given: pa.Table | None = None,
) -> Outcome:
    """Write the outputs of a batch as `commit_rows` does, and the keys of its rows; return its outcome.

    The results are those of all input rows, in order. `facts_of` makes the facts of the output rows. `given` has
    columns that a row takes from its input row, whatever its result says; one row per result.
    """
    kept, rejected = (_table(results, which, of, given) for which, of in ((True, schema), (False, REJECTED)))
    facts = Counter(facts_of(kept))
    for result in results:
        if result.facts:
            facts.update(result.facts)
    outcome = commit_tables(folder, name, kept, rejected, dict(facts))
    _write_keys(folder, outcome, results)
    return outcome


def _table(
    results: Sequence[RowResult | EarlierResult], kept: bool, schema: pa.Schema, given: pa.Table | None
) -> pa.Table:
    """Return the rows of all results that were kept, or were not, in one chunk: the table that `from_pylist` gives."""
    chosen = [(number, result) for number, result in enumerate(results) if result.kept == kept]
    computed = [result.row for _, result in chosen if isinstance(result, RowResult)]
    own = [name for name in schema.names if given is None or name not in given.column_names]
    tables, starts, rows = [pa.Table.from_pylist(computed, schema=schema).select(own)], dict[int, int](), len(computed)
    for _, result in chosen:
        if isinstance(result, EarlierResult) and id(result.part) not in starts:
            tables.append(result.part.table(kept).select(own))
            starts[id(result.part)], rows = rows, rows + len(tables[-1])
    fresh = iter(range(len(computed)))
    places = [
        starts[id(result.part)] + result.position if isinstance(result, EarlierResult) else next(fresh)
        for _, result in chosen
    ]
    found = pa.concat_tables(tables).take(pa.array(places, pa.int64()))
    if given is not None:
        numbers = pa.array([number for number, _ in chosen], pa.int64())
        from_input = given.select([name for name in schema.names if name not in own]).take(numbers)
        columns = [found[name] if name in own else from_input[name] for name in schema.names]
        found = pa.Table.from_arrays(columns, schema=schema)
    return found.combine_chunks()


def _write_keys(folder: Folder, outcome: Outcome, results: Sequence[RowResult | EarlierResult]) -> None:
    """Write the keys of a batch, whose only output file and rejected file are already written."""
    columns = [
        [result.key for result in results],
        [result.kept for result in results],
        [json.dumps(result.facts, sort_keys=True) if result.facts else None for result in results],
        [result.stored if result.key is not None else None for result in results],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=ROWS)
    made = {"files": digest([record.sha256 for record in outcome.files]), "rows": _digest_of(table)}
    write_table(folder, KEYS + outcome.outputs[0].name, table.replace_schema_metadata(made))


def _digest_of(table: pa.Table) -> str:
    columns = [table[name].to_pylist() for name in table.column_names]
    return digest([[value.hex() if isinstance(value, bytes) else value for value in column] for column in columns])


class _Part:
    """Earlier results of one batch: their keys, and their tables when they are first asked for."""

    def __init__(self, folder: Folder, keys: pa.Table, output: FileRecord, rejected: FileRecord | None) -> None:
        self._folder, self._records = folder, (rejected, output)
        self._tables: list[pa.Table | None] = [None, None]
        self._keys, self._kept, self._facts, self._stored = (column.to_pylist() for column in keys.columns)
        self._by_key = {key: row for row, key in enumerate(self._keys) if key is not None}
        self._by_stored = {stored: row for row, stored in enumerate(self._stored) if stored is not None}
        counts, self._positions = [0, 0], []
        for kept in self._kept:
            self._positions.append(counts[kept])
            counts[kept] += 1

    def find(self, key: bytes, is_stored: bool) -> EarlierResult | None:
        row = (self._by_stored if is_stored else self._by_key).get(key)
        if row is None:
            return None
        facts = json.loads(self._facts[row]) if self._facts[row] else {}
        return EarlierResult(self._keys[row], self._kept[row], facts, self._stored[row], self, self._positions[row])

    def table(self, kept: bool) -> pa.Table:
        table, record = self._tables[kept], self._records[kept]
        if table is None:
            assert record is not None  # `_part` has compared the counts
            table = self._tables[kept] = read_table(self._folder, record.name)
        return table


class RowFinder:
    """Finder of the earlier results of one batch's rows.

    It reads the keys of the earlier batch of the same number first, and then, for rows that are not there, those of
    its neighbours: rows move to a neighbour when rows before them came or went.
    """

    def __init__(self, previous: PreviousRows | None, name: str) -> None:
        self._parts: list[_Part] = []
        self._rest: Iterator[_Part | None] = iter(()) if previous is None else _parts_by_distance(previous, name)
        self._fruitless = 0

    def find_stored(self, stored: bytes) -> EarlierResult | None:
        """Return the earlier result of a row by its hash as it is stored; None if the row must be decoded."""
        return self.find(stored, is_stored=True)

    def find(self, key: bytes, is_stored: bool = False) -> EarlierResult | None:
        """Return the earlier result of a row with this key; None if it must be computed."""
        for part in self._parts:
            if (found := part.find(key, is_stored)) is not None:
                return found
        while self._fruitless < MAX_FRUITLESS:
            self._fruitless += 1
            if (read := next(self._rest, None)) is None:
                continue
            self._parts.append(read)
            if (found := read.find(key, is_stored)) is not None:
                self._fruitless = 0
                return found
        return None


def _parts_by_distance(previous: PreviousRows, name: str) -> Iterator[_Part | None]:
    """Yield the earlier batches that can be read, the nearest to the batch `name` first; None for any other."""
    if (manifest := _read_manifest(previous.folder.url, previous.fingerprint)) is None:
        return
    rejected = {record.name: record for record in manifest.outcome.rejected}
    own = int(name.rpartition("-")[2])
    numbers = sorted(range(len(manifest.outputs)), key=lambda number: (abs(number - own), number))
    for output in (manifest.outputs[number] for number in numbers):
        yield _part(previous.folder, output, rejected.get(f"rejected/{output.name}"))


@functools.lru_cache(maxsize=2)
def _read_manifest(url: str, fingerprint: str) -> Manifest | None:
    manifest = read_manifest(Folder(url), MOVED)
    return manifest if manifest is not None and manifest.fingerprint == fingerprint else None


def _part(folder: Folder, output: FileRecord, rejected: FileRecord | None) -> _Part | None:
    """Return an earlier batch; None without keys that belong to its files, or if one of the files has changed."""
    records = [record for record in (output, rejected) if record is not None]
    try:
        keys = read_table(folder, KEYS + output.name)
        files = [folder.record(record.name) for record in records]
    except (FileNotFoundError, RunError):
        return None
    made = {name.decode(): value.decode() for name, value in (keys.schema.metadata or {}).items()}
    if keys.column_names not in (ROWS.names, ROWS.names[:-1]) or made.get("rows") != _digest_of(keys):
        return None
    if "stored" not in keys.column_names:
        keys = keys.append_column(ROWS.field("stored"), pa.nulls(len(keys), pa.binary(16)))
    hashes = [record.sha256 for record in files]
    if not keys.schema.equals(ROWS) or hashes != [record.sha256 for record in records]:
        return None
    return _Part(folder, keys, output, rejected) if made.get("files") == digest(hashes) else None


class MappingStep(Protocol):
    """Step that maps rows one by one, as `tasks.core.step.Step` with a row input, which imports this module."""

    folder: Folder

    def maps_alike(self, earlier: Manifest) -> bool:
        """Return True if the rows of an earlier output were made as this step makes them."""


def set_aside(step: MappingStep) -> None:
    """Move the files of an earlier run to `_previous/` if rows may be taken from them; otherwise remove that folder.

    A killed run continues: the manifest is `_moving.json` until all files are moved.
    """
    folder, previous = step.folder, step.folder / PREVIOUS.rstrip("/")
    if (found := read_manifest(folder)) is not None:  # what `_previous/` holds is older
        drop_previous(folder)
        if not step.maps_alike(found):
            return
        previous.write_bytes(MOVING, folder.read_bytes(MANIFEST))
        folder.remove(MANIFEST)
    moved, moving = read_manifest(previous, MOVED), read_manifest(previous, MOVING)
    found = moved or moving
    if found is not None and not step.maps_alike(found):
        drop_previous(folder)
    elif moved is None and moving is not None:
        _move(folder, moving)


def _move(folder: Folder, found: Manifest) -> None:
    sizes = folder.sizes()
    for record in (*found.outputs, *found.outcome.rejected):
        for name in (record.name, KEYS + record.name):
            if name in sizes:
                folder.move(name, PREVIOUS + name)
    previous = folder / PREVIOUS.rstrip("/")
    previous.write_bytes(MOVED, found.model_dump_json().encode())
    previous.remove(MOVING)


def previous_rows(step: MappingStep) -> PreviousRows | None:
    """Return the earlier outputs that `set_aside` has moved, if any."""
    previous = step.folder / PREVIOUS.rstrip("/")
    found = read_manifest(previous, MOVED)
    return PreviousRows(previous, found.fingerprint) if found is not None and step.maps_alike(found) else None


def drop_previous(folder: Folder) -> None:
    """Remove `_previous/` of a step."""
    previous = folder / PREVIOUS.rstrip("/")
    for name in (MOVED, MOVING):  # first: without them the other files count for nothing
        previous.remove(name)
    previous.remove(*previous.files())


def is_leftover(name: str, named: Collection[str]) -> bool:
    """Return True for an earlier file, or keys of a batch whose files the manifest does not name."""
    return name.startswith(PREVIOUS) or (name.startswith(KEYS) and name.removeprefix(KEYS) not in named)
