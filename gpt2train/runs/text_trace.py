"""Tracing of a text to the training tokens that it repeats, and from there to pages, filters and training steps.

The tokens need an index (`gpt2train data index`). A token's place is the number of its corpus and its position there.
What is not recorded, such as the documents of token files made elsewhere, is None.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gpt2train.config import CONFIG_FILE, Corpus, RunConfig, read_run_settings
from gpt2train.config.data import split_weights
from gpt2train.data.document_split import Part
from gpt2train.data.indexed import TokenDataset, idx_path
from gpt2train.data.run_tokenizer import find_run_tokenizer
from gpt2train.data.samples import validation_corpora
from gpt2train.data.sharded_dataset import open_tokens, shard_prefixes
from gpt2train.data.suffix_index import index_root
from gpt2train.data.suffix_search import Span, SuffixIndex, find_spans
from gpt2train.data.token_bytes import token_bytes
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary, end_of_text_id, load_tokenizer
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.errors import UserError
from gpt2train.runs.documents import DESCRIBED, DocumentRecord, look_up
from gpt2train.runs.reading_order import PACKED, ReadingOrder
from gpt2train.runs.trace import document_row, document_tables
from gpt2train.store.folder import Folder
from gpt2train.store.output import Output

MIN_TOKENS = 8
MAX_STEPS = 1000  # listed of those that read a place


@dataclass(frozen=True)
class TracedPlace:
    """Occurrence of a span; fields are null where the tokens have no table of their documents."""

    __pydantic_config__ = DESCRIBED
    corpus: int
    position: int
    """Token of the corpus at which the span begins."""
    document: int
    start: int
    """First token, counted from the start of the document."""
    doc_id: str | None
    url: str | None


@dataclass(frozen=True)
class TracedSpan:
    """Maximal span of a text that occurs verbatim in the tokens."""

    start: int
    end: int
    text: str
    characters: tuple[int, int] | None  # start and end in the text; None if the tokenizer changes texts
    count: int
    counts: tuple[int, ...]  # occurrences in each corpus
    places: tuple[TracedPlace, ...]


@dataclass(frozen=True)
class TextTrace:
    """Spans of a text that occur in the corpora."""

    tokens: int
    min_tokens: int
    covered: int  # tokens of the text in at least one span
    corpora: tuple[str, ...]
    indexed_tokens: int
    spans: tuple[TracedSpan, ...]


@dataclass(frozen=True)
class Reading:
    """Training steps that have read a place, from 0; the first of them, and their number."""

    __pydantic_config__ = DESCRIBED
    steps: tuple[int, ...]
    count: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class PlaceDetails:
    """Document around a place, and its history."""

    __pydantic_config__ = DESCRIBED
    place: TracedPlace
    before: str
    text: str
    after: str
    tokens: int
    """Tokens of the document."""
    record: DocumentRecord | None
    """Rows of the document in the steps' folders; null if its id is unknown."""
    reading: Reading | None
    """Steps of the run; null without a run, or if the run does not read packed documents in an order that is known."""


@dataclass
class Source:
    """Token files to search in, with their tokenizer and documents."""

    corpora: tuple[Corpus, ...]  # prefixes of the token files
    split: tuple[float, ...] | None  # weights by which each of them is split, if they are
    part: Part  # part of the split
    tokenizer: Tokenizer | None  # tokenizer of the tokens; None if there is none beside them
    run: Path | None = None  # run folder
    config: RunConfig | None = None  # settings of the run
    datasets: list[TokenDataset] = field(default_factory=list)

    def open(self) -> list[TokenDataset]:
        """Open the token files."""
        if not self.datasets:
            self.datasets = [open_tokens(corpus.prefix, self.split, self.part) for corpus in self.corpora]
        return self.datasets


def traced_place(given: Sequence[Path], model: Path) -> Path:
    """Return the place of the tokens that `--trace` names: the given one, or the run folder that the model lies in.

    Raises:
        UserError: nothing is given, and the model lies in no run folder.
    """
    if given:
        return given[0]
    found = model.resolve()
    # RUN, RUN/model, RUN/checkpoints/step-…
    for folder in (found, *list(found.parents)[:2]):
        if (folder / CONFIG_FILE).is_file():
            return folder
    raise UserError(f"--trace: {model} lies in no run folder; give the run or the output folder: --trace OUT")


def find_source(place: str | Path, part: Part = "train", split: str | None = None) -> Source:
    """Find the tokens of a run folder, of an output folder of the data steps, or with a prefix.

    Raises:
        UserError: there are none, or they are on an object store.
    """
    if re.match(r"\w+:/", str(place)):  # a Path has one slash of a URL
        raise UserError(f"{place}: tokens are searched on the local disk; copy tokens/ and tokenizer/, or give --run")
    folder = Path(place)
    if (folder / CONFIG_FILE).is_file():
        config = read_run_settings(folder)
        corpora = config.data.corpora if part == "train" else validation_corpora(config)
        found = find_run_tokenizer(config)
        # Validation files of their own are not split.
        weights = None if part != "train" and config.data.valid else config.data.weights
        return Source(corpora, weights, part, found and found[1], folder, config)
    prefix = folder / "tokens" / part / "tokens" if (folder / "tokens").is_dir() else folder
    if not idx_path(shard_prefixes(prefix)[0]).is_file():
        raise UserError(f"{place} is no run folder, has no tokens/{part}/, and is no prefix of .bin and .idx files")
    folders = (parent / "tokenizer" for parent in list(prefix.parents)[:3])
    tokenizer = next((load_tokenizer(one) for one in folders if has_tokenizer(one)), None)
    return Source((Corpus(prefix=str(prefix)),), split_weights(split) if split else None, part, tokenizer)


class TextTracer:
    """Opened indexes of a source.

    Args:
        source: token files.
        root: folder of the indexes; by default the one beside each corpus.
        documents: output folder or URL of the data steps; by default that of each corpus.

    Raises:
        UserError: a corpus has no index, or the tokens have no tokenizer.
    """

    def __init__(self, source: Source, root: Path | None = None, documents: str | None = None) -> None:
        self.source, self._documents = source, documents
        if not source.corpora:
            raise UserError(f"there are no {source.part} tokens")
        pairs = zip(source.corpora, source.open(), strict=True)
        self.indexes = [SuffixIndex(dataset, root or index_root(corpus.prefix)) for corpus, dataset in pairs]
        if source.tokenizer is None:
            prefix = source.corpora[0].prefix
            raise UserError(f"{prefix} has no tokenizer beside it; copy its folder there as tokenizer/")
        self.tokenizer = source.tokenizer
        self._tables: dict[int, list[pq.ParquetFile]] = {}
        self._order: ReadingOrder | None = None

    def trace_text(self, text: str, min_tokens: int = MIN_TOKENS, places: int = 3) -> TextTrace:
        """Find the spans of a text.

        Raises:
            UserError: the text cannot be encoded.
        """
        ids = encode_ordinary(self.tokenizer, [text])[0]
        return self.trace_ids(ids, min_tokens, places, text)

    def trace_ids(
        self, ids: Sequence[int], min_tokens: int = MIN_TOKENS, places: int = 3, text: str | None = None
    ) -> TextTrace:
        """Find the spans of tokens; `text` is what they encode, if it is known."""
        end = end_of_text_id(self.tokenizer)
        spans = find_spans(self.indexes, ids, min_tokens, breaks=frozenset((end,)), limit=places)
        starts = self._offsets(ids, text) if text is not None and spans else None
        covered, reached = 0, 0
        for span in spans:
            covered += span.end - max(span.start, reached)
            reached = span.end
        made = tuple(self._span(span, ids, starts, places) for span in spans)
        prefixes = tuple(str(corpus.prefix) for corpus in self.source.corpora)
        total = sum(index.tokens for index in self.indexes)
        return TextTrace(len(ids), min_tokens, covered, prefixes, total, made)

    def place(self, corpus: int, position: int) -> TracedPlace:
        """Find the document of a token.

        Raises:
            UserError: there is no such token.
        """
        if not (0 <= corpus < len(self.indexes) and 0 <= position < self.indexes[corpus].tokens):
            raise UserError(f"there is no token {position} in corpus {corpus}")
        index = self.indexes[corpus]
        document = int(index.bounds.searchsorted(position, side="right")) - 1
        row = self._row(corpus, document)
        start = position - int(index.bounds[document])
        doc_id, url = (row["doc_id"], row["url"]) if row else (None, None)
        return TracedPlace(corpus, position, document, start, doc_id, url)

    def details(
        self, corpus: int, position: int, tokens: int, around: int = 60, seconds: float = float("inf")
    ) -> PlaceDetails:
        """Collect what is known about `tokens` tokens at a place, with `around` tokens before and after them.

        The search for the rows of the document ends after some seconds.
        """
        place, index = self.place(corpus, position), self.indexes[corpus]
        first, last = (int(bound) for bound in index.bounds[place.document : place.document + 2])
        end = min(position + max(1, tokens), last)
        before, text, after = (
            self._decode(index.dataset.tokens[max(first, low) : max(first, min(high, last))].tolist())
            for low, high in ((position - around, position), (position, end), (end, end + around))
        )
        record = None
        if place.doc_id is not None:
            record = look_up(Output(Folder(self._output(corpus))), place.doc_id, place.url, seconds)
        reading = self._reading(corpus, position, end)
        return PlaceDetails(place, before, text, after, last - first, record, reading)

    def _span(self, span: Span, ids: Sequence[int], starts: list[tuple[int, int]] | None, places: int) -> TracedSpan:
        found = [self.place(corpus, place) for corpus, listed in enumerate(span.positions) for place in listed]
        characters = (starts[span.start][0], starts[span.end - 1][1]) if starts else None
        text = self._decode(ids[span.start : span.end])
        return TracedSpan(span.start, span.end, text, characters, span.count, span.counts, tuple(found[:places]))

    def _offsets(self, ids: Sequence[int], text: str) -> list[tuple[int, int]] | None:
        """First and last (exclusive) character of each token; None if the tokens do not have the bytes of the text."""
        pieces, raw = [token_bytes(self.tokenizer, one) for one in ids], text.encode()
        joined = b"".join(pieces)
        lead = 0 if joined == raw else 1 if joined == b" " + raw else None
        if lead is None:
            return None
        characters = [0]  # characters that begin before each byte
        for byte in raw:
            characters.append(characters[-1] + (byte & 0xC0 != 0x80))
        offsets, at = [], -lead
        for piece in pieces:
            low, high = max(at, 0), max(at + len(piece), 0)
            at += len(piece)
            inside = low < len(raw) and raw[low] & 0xC0 == 0x80  # a token that begins within a character
            offsets.append((characters[low] - inside, characters[high]))
        return offsets

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def _output(self, corpus: int) -> str:
        """Folder of the data steps that made a corpus, if it was made by them."""
        return self._documents or str(Path(self.source.corpora[corpus].prefix).parents[2])

    def _row(self, corpus: int, document: int) -> dict[str, Any] | None:
        """Row of a document in the table beside its tokens; None without a table."""
        prefix = Path(self.source.corpora[corpus].prefix)
        if self.source.split is not None or prefix.name != "tokens" or len(prefix.parents) < 2:
            return None  # a part of ready-made tokens
        if corpus not in self._tables:
            try:
                self._tables[corpus] = document_tables(prefix.parents[1], prefix.parent.name)
            except UserError:
                self._tables[corpus] = []
        row = document_row(self._tables[corpus], document)
        bounds = self.indexes[corpus].bounds
        belongs = row is not None and (row["start"], row["end"]) == (bounds[document], bounds[document + 1])
        return row if belongs else None

    def _reading(self, corpus: int, start: int, end: int) -> Reading | None:
        """Find the steps of the run that have read any of these tokens."""
        config, run = self.source.config, self.source.run
        if config is None or run is None or self.source.part != "train" or config.objective.name not in PACKED:
            return None
        self._order = self._order or ReadingOrder(run, config)
        samples = self._order.containing(corpus, start, end).tolist()
        steps = self._order.steps(samples)
        return Reading(tuple(steps[:MAX_STEPS]), len(steps), tuple(samples[:MAX_STEPS]))
