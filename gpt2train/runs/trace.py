"""Tracing of a training sample to its documents, their rows in each data step's files, and the crawled pages.

The order of samples is a pure function of their index (`gpt2train.data.samples`). The tables next to the tokens map
each token to a document, which is then looked up by id and URL in the folders that still exist.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from gpt2train.config import RunConfig, TrainSettings, read_run_settings
from gpt2train.data.mixture import Mixture
from gpt2train.data.samples import Samples
from gpt2train.data.tokenizer import Tokenizer, load_tokenizer
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.errors import RunError, UserError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.runs.documents import document_steps, find_pages
from gpt2train.store.counts import count_of
from gpt2train.store.folder import Folder
from gpt2train.store.hub import commits_in
from gpt2train.store.manifest import read_manifest
from gpt2train.store.output import Output
from gpt2train.store.rows import find_rows

Split = Literal["train", "valid", "test"]
ANY_VOCABULARY = 2**31
TRAINING = TrainSettings()


@dataclass
class TracedPart:
    """Part of a sample that comes from one document.

    Attributes:
        doc_id: id of the document.
        url: URL of the document.
        start: first token of the part, counted from the start of the document.
        end: end of the part (exclusive), counted from the start of the document.
        tokens: number of tokens of the whole document.
        place: first token of the part, counted from the start of the split's tokens.
        text: decoded part; None without a tokenizer.
        found: locations of the document, one line per file.
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
    """Sample with its parts, in order."""

    split: str
    sample: int
    epoch: int
    context: int
    seed: int | None
    parts: list[TracedPart]


def trace(
    data: Path | None,
    sample: int,
    *,
    split: Split = "train",
    run: Path | None = None,
    context: int | None = None,
    seed: int | None = None,
) -> Trace:
    """Trace one sample.

    Args:
        data: output folder of the data steps; by default, and if the run mixes corpora, that of the run's tokens.
        sample: global index in the run: sample `n` of step `s` is `s * global_batch + n`.
        split: split of the tokens.
        run: run folder; its context and seed are used.
        context: context length without a run; by default that of the default settings.
        seed: seed without a run; by default that of the default settings.

    Raises:
        UserError: a file is missing, the sample does not exist, or the run has not read it.
        RunError: the files do not belong together.
    """
    if sample < 0:
        raise UserError(f"--sample {sample}: samples are counted from 0")
    index = sample
    if run is not None:
        config = read_run_settings(run)
        context, seed, corpora = config.model.context, config.seed, config.data.corpora
        if config.data.split is not None:
            raise UserError(f"the run in {run} has a data.split; only runs on whole token files can be traced")
        if split == "train":
            _check_read(run, config, sample)
        if split == "train" and len(corpora) > 1:
            numbers, indices = Mixture([corpus.weight for corpus in corpora]).of([sample])
            data, index = _data_folder(run, corpora[int(numbers[0])].prefix), int(indices[0])
        data = data or _data_folder(run, corpora[0].prefix)
    if data is None:
        raise UserError("give --data, the folder of tokens/, or --run, a run folder")
    context, seed = context or TRAINING.model.context, TRAINING.seed if seed is None else seed
    shuffle = seed if split == "train" else None  # the other splits are read in file order
    folder = data / "tokens" / split
    samples = Samples(folder / "tokens", context, ANY_VOCABULARY, shuffle)
    if split != "train" and index >= samples.per_epoch:
        raise UserError(f"--sample {sample}: {split} has the samples 0 … {samples.per_epoch - 1}")
    token_positions = samples.locate([index])[0][0]
    tokenizer = load_tokenizer(data / "tokenizer") if has_tokenizer(data / "tokenizer") else None
    parts = list(_parts(samples, token_positions, folder, document_tables(data / "tokens", split), tokenizer))
    _locate(data, parts)
    return Trace(split, sample, index // samples.per_epoch, context, shuffle, parts)


def _data_folder(run: Path, prefix: str) -> Path:
    """Return the output folder of the data steps that made the tokens of a run.

    Raises:
        UserError: the tokens were made by something else.
    """
    found = Path(prefix)
    if len(found.parts) < 3 or (found.parts[-3], found.name) != ("tokens", "tokens"):
        stated = f"the tokens {prefix} of {run} are not those of a data flow, which alone knows their documents"
        raise UserError(f"{stated}; search them with --text TEXT in place of --sample")
    return found.parents[2]


def read_samples(run: Path, config: RunConfig) -> int:
    """Number of samples that a run has trained on so far."""
    rows = read_metrics(run)
    # A row counts the tokens of whole samples, including those before the run's start with `init_from`.
    return int(rows[-1].get("tokens") or 0) // config.model.context if rows else 0


def _check_read(run: Path, config: RunConfig, sample: int) -> None:
    """Raise a UserError if a run has not trained on a sample."""
    read = read_samples(run, config)
    if sample >= read:
        numbers = f", numbered 0 to {read - 1:,}" if read else ""
        stated = f"--sample {sample}: the run in {run} has read {count_of(read, 'sample')} so far{numbers}"
        raise UserError(f"{stated}; give one of those, or --data instead of --run")


def _parts(
    samples: Samples,
    token_positions: npt.NDArray[np.int64],
    folder: Path,
    tables: Sequence[pq.ParquetFile],
    tokenizer: Tokenizer | None,
) -> Iterator[TracedPart]:
    """Yield the parts of a sample whose tokens stand at these positions."""
    ends = np.concatenate(([0], np.cumsum(samples.dataset.lengths, dtype=np.int64)))[samples.dataset.documents[1:]]
    numbers = np.searchsorted(ends, token_positions, side="right")
    for segment in np.split(np.arange(len(token_positions)), np.flatnonzero(np.diff(numbers)) + 1):
        row = document_row(tables, int(numbers[segment[0]]))
        if row is None:
            raise RunError(f"{folder} has fewer documents in its table than in its tokens; create the tokens again")
        first, last = int(token_positions[segment[0]]), int(token_positions[segment[-1]]) + 1
        if not row["start"] <= first < last <= row["end"]:
            raise RunError(f"{folder} does not belong to its tokens: token {first} is of another document")
        ids = samples.dataset.tokens[first:last].tolist()
        text = tokenizer.decode(ids, skip_special_tokens=False) if tokenizer else None
        bounds = (first - row["start"], last - row["start"], row["end"] - row["start"], first)
        yield TracedPart(row["doc_id"], row["url"], *bounds, text)


def document_tables(tokens: Path, split: str) -> list[pq.ParquetFile]:
    """Open the tables of a split's documents.

    Raises:
        UserError: there are none.
    """
    made = read_manifest(Folder(tokens))
    outputs = [record.name for record in made.outputs] if made else []
    names = [name for name in outputs if name.startswith(f"{split}/documents") and name.endswith(".parquet")]
    if not names:
        raise UserError(f"{tokens} has no table of the {split} documents; only tokens made by gpt2train can be traced")
    return [pq.ParquetFile(tokens / name) for name in names]


def document_row(tables: Sequence[pq.ParquetFile], number: int) -> dict[str, Any] | None:
    """Read one row by its number over all tables, and only its row group; None if the tables have fewer rows."""
    for table in tables:
        for group in range(table.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if number < rows:
                found: dict[str, Any] = table.read_row_group(group).slice(number, 1).to_pylist()[0]
                return found
            number -= rows
    return None


def _locate(data: Path, parts: Sequence[TracedPart]) -> None:
    """Add the locations of the documents, file and row, and of their pages, archive and record."""
    output, ids = Output(Folder(data)), {part.doc_id for part in parts}
    for step in reversed(document_steps(output)):
        for identity, place in find_rows(step.folder, step.outputs, "id", ids, partial=True):
            for part in parts:
                if part.doc_id == identity:
                    part.found.append(f"{step.name}/{place.file} row {place.number}")
                    part.found += [f"{name}@{commit}" for name, commit in commits_in(step.manifest.read).items()]
    for url, location in find_pages(output, {part.url for part in parts}):
        for part in parts:
            if part.url == url:
                part.found.append(location)
