"""From a training sample back to what it was made of: documents, their rows in each step's files, and the page itself.

The order of samples is a pure function of their number (`gpt2train.data.samples`), and the tables beside the tokens
name the document of each token; the rest is looked up by its id and URL in the folders that are still there.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.config import CONFIG_FILE, TrainSettings, read_run_config
from gpt2train.data.mixture import Mixture
from gpt2train.data.samples import Samples
from gpt2train.data.tokenizer import TOKENIZER, load_tokenizer
from gpt2train.errors import RunError, UserError

Split = Literal["train", "valid", "test"]
STEPS = ("shuffled", "decontaminated", "clean", "documents")  # folders whose rows keep a document's id, last first
PAGES = "pages"
ANY_VOCABULARY = 2**31
TRAINING = TrainSettings()


@dataclass
class Part:
    """One document's share of a sample.

    Attributes:
        start, end: tokens of the document that the sample holds.
        tokens: of the whole document.
        place: first of them in the split's tokens.
        text: the decoded share; None without a tokenizer.
        found: where the document lies: one line a file.
    """

    doc_id: str
    url: str
    start: int
    end: int
    tokens: int
    place: int
    text: str | None = None
    found: list[str] = field(default_factory=list)


@dataclass
class Trace:
    """A sample and its parts, in order."""

    split: str
    sample: int
    epoch: int
    context: int
    seed: int | None
    parts: list[Part]


def trace(
    data: Path | None,
    sample: int,
    *,
    split: Split = "train",
    run: Path | None = None,
    context: int | None = None,
    seed: int | None = None,
) -> Trace:
    """Look up one sample.

    Args:
        data: output folder of the data steps; that of the run's tokens where not given, or where the run mixes corpora.
        sample: global index, as the run counts: sample `n` of step `s` is `s * global_batch + n`.
        run: run folder, which knows context and seed; else those given, else the defaults of a run.

    Raises:
        UserError: something is missing, or there is no such sample.
        RunError: files do not belong together.
    """
    if sample < 0:
        raise UserError(f"--sample {sample}: samples are counted from 0")
    index = sample
    if run is not None:
        config = read_run_config(run / CONFIG_FILE)
        context, seed, corpora = config.model.context, config.seed, config.data.corpora
        if split == "train" and len(corpora) > 1:
            numbers, indices = Mixture([corpus.weight for corpus in corpora]).of([sample])
            data, index = Path(corpora[int(numbers[0])].prefix).parents[2], int(indices[0])
        data = data or Path(corpora[0].prefix).parents[2]
    if data is None:
        raise UserError("give --data, the folder that holds tokens/, or --run, a run folder")
    context, seed = context or TRAINING.model.context, TRAINING.seed if seed is None else seed
    shuffle = seed if split == "train" else None  # the others are read in the order of the file
    samples = Samples(data / "tokens" / split / "tokens", context, ANY_VOCABULARY, shuffle)
    if split != "train" and index >= samples.per_epoch:
        raise UserError(f"--sample {sample}: {split} has the samples 0 … {samples.per_epoch - 1}")
    places = samples.places([index])[0]
    ends = np.concatenate(([0], np.cumsum(samples.dataset.lengths, dtype=np.int64)))[samples.dataset.documents[1:]]
    numbers = np.searchsorted(ends, places, side="right")
    tokenizer = load_tokenizer(data / "tokenizer") if (data / "tokenizer" / TOKENIZER).is_file() else None
    table = _Sidecar(data / "tokens", split)
    parts = []
    for cut in np.split(np.arange(len(places)), np.flatnonzero(np.diff(numbers)) + 1):
        row = table.row(int(numbers[cut[0]]))
        first, last = int(places[cut[0]]), int(places[cut[-1]]) + 1
        if not row["start"] <= first < last <= row["end"]:
            raise RunError(f"{table.folder} does not belong to its tokens: token {first} is of another document")
        ids = samples.dataset.tokens[first:last].tolist()
        text = tokenizer.decode(ids, skip_special_tokens=False) if tokenizer else None
        bounds = (first - row["start"], last - row["start"], row["end"] - row["start"], first)
        parts.append(Part(row["doc_id"], row["url"], *bounds, text))
    _locate(data, parts)
    return Trace(split, sample, index // samples.per_epoch, context, shuffle, parts)


class _Sidecar:
    """The table of a split's documents, read a row group at a time."""

    def __init__(self, tokens: Path, split: str) -> None:
        self.folder = tokens / split
        names = [name for name in _outputs(tokens) if name.startswith(f"{split}/documents") and name[-8:] == ".parquet"]
        if not names:
            raise UserError(f"{tokens} names no table of the {split} documents; only tokens made here can be traced")
        self._files = [pq.ParquetFile(tokens / name) for name in names]

    def row(self, number: int) -> dict[str, Any]:
        """Row of a document by its number in the split."""
        for file in self._files:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if number < rows:
                    found: dict[str, Any] = file.read_row_group(group).slice(number, 1).to_pylist()[0]
                    return found
                number -= rows
        raise RunError(f"{self.folder} has fewer documents in its table than in its tokens; make them again")


def _outputs(folder: Path) -> list[str]:
    """Names of the files that a finished step left in a folder; none where there is none."""
    try:
        manifest = json.loads((folder / "_manifest.json").read_text(encoding="utf-8"))
        return [record["name"] for record in manifest["outcome"]["outputs"]]
    except (FileNotFoundError, ValueError, KeyError):
        return []


def _locate(data: Path, parts: Sequence[Part]) -> None:
    """Note in which rows of which files the documents lie, and in which record their pages."""
    for step in STEPS:
        for name, row, identity in _rows(data / step, _outputs(data / step), "id", {part.doc_id for part in parts}):
            for part in parts:
                if part.doc_id == identity:
                    part.found.append(f"{step}/{name} row {row}")
    archives = _outputs(data / PAGES)
    ledgers = {f"ledger/{name.split('.')[0]}.parquet": name for name in archives}
    urls = {part.url for part in parts}
    for ledger, row, url in _rows(data / PAGES, list(ledgers), "url", urls):
        where = _record(data / PAGES / ledgers[ledger], url)
        for part in parts:
            if part.url == url and where:
                part.found.append(f"{PAGES}/{ledgers[ledger]} {where}; {PAGES}/{ledger} row {row}")


def _rows(folder: Path, names: Sequence[str], column: str, wanted: set[str]) -> Iterator[tuple[str, int, str]]:
    """File, row and value of the wanted values of a column, each where it is first met."""
    left = set(wanted)
    for name in names:
        if not left or not (folder / name).is_file():
            continue
        values = pq.read_table(folder / name, columns=[column])[column]
        for row in np.flatnonzero(pc.is_in(values, pa.array(sorted(left), values.type)).to_numpy()).tolist():
            value = values[row].as_py()
            if value in left:
                left.discard(value)
                yield name, row, value


def _record(archive: Path, url: str) -> str | None:
    """Where in a WARC file a page lies."""
    from warcio.archiveiterator import ArchiveIterator

    if not archive.is_file():
        return None
    with archive.open("rb") as file:
        records = ArchiveIterator(file)
        for number, record in enumerate(records, 1):
            names = [record.rec_headers.get_header(name) for name in ("X-List-URL", "WARC-Target-URI")]
            if record.rec_type == "response" and url in names:
                fetched = record.rec_headers.get_header("WARC-Date")
                return f"record {number}, byte {records.get_record_offset():,}, fetched {fetched}"
    return None
