"""Search of every file of an output for the URLs and the texts of pages: what a removal must still do, and its proof.

A text is found by its runs of `WORDS` words, in any typography. A run that also occurs on a page that is not removed is
no trace of a removed one: such pages are reported, and their text stays. So do URLs that other pages mention.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from gpt2train.settings import Record
from gpt2train.store.folder import Folder
from gpt2train.store.inner_path import InnerPath, OptionalInnerPath
from gpt2train.store.output_lock import LOCK
from gpt2train.store.removal import PENDING
from tasks.core.forgotten import FORGOTTEN, Forgotten
from tasks.decontaminate.ngrams import NgramIndex
from tasks.outputs.forget.decode import Piece, pieces
from tasks.sources.index import PLACES

WORDS = 8
ADDRESS = re.compile(r"https?://[^\s\x00-\x1f\x7f-\x9f\"'<>\\^`{}|]+")
HOST = re.compile(r"(?:[\w-]+\.)+[\w-]+")
PUNCTUATION = ".,;:!?)]*_"
OWN = (FORGOTTEN, PENDING, LOCK)  # files without texts, or those of the removal itself
MIRROR = 0.3  # share of the runs of a page's text that make another page a copy worth reporting


class Trace(Record):
    """Trace of a page in a file."""

    file: InnerPath
    place: str
    what: str
    is_readable: bool = True
    step: OptionalInnerPath = ""  # folder of the step that made the file, which is removed with it; empty if none did


class Scanned(NamedTuple):
    """Result of a scan."""

    files: int
    bytes: int
    traces: list[Trace]
    mirrors: list[str]  # URLs of other pages with a good part of the text of one of the pages, sorted


class Searcher:
    """Search for pages in texts.

    Args:
        wanted: URLs and domains.
        pages: the same and the URLs that were redirected to them.
        texts: Texts of the pages.
        path: Path of the output, which is no host although a folder may have the name of one.
    """

    def __init__(self, wanted: Forgotten, pages: Forgotten, texts: Sequence[str], path: str = "") -> None:
        self._wanted, self._pages, self._path = wanted, pages, path
        self._index = NgramIndex(texts, ngram=WORDS, min_ngram=WORDS) if texts else None

    def address(self, texts: Sequence[str]) -> str | None:
        """Return the first URL or host in texts that is meant."""
        return next((found for text in texts for found in self._addresses(text) if found), None)

    def _addresses(self, text: str) -> Iterator[str]:
        if "://" in text:
            for found in ADDRESS.findall(text):
                if self._wanted.matches(found, found.rstrip(PUNCTUATION)):
                    yield found
        if self._wanted.domains and "." in text:
            text = text.replace(self._path, " ") if self._path else text
            yield from (found for found in HOST.findall(text) if self._wanted.matches_host(found))

    def runs(self, texts: Sequence[str]) -> frozenset[int]:
        """Return the numbers of the runs of words of the pages that occur in texts."""
        if self._index is None:
            return frozenset()
        return frozenset(match.gram for text in texts for match in self._index.matches(text))

    def is_of_page(self, piece: Piece, is_source: bool = False) -> bool:
        """Return True if a piece is of one of the pages; in a step that takes pages from outside, by its own URL."""
        return (self._wanted if is_source else self._pages).matches(*piece.owners)

    def share(self, runs: frozenset[int]) -> float:
        """Return the largest share of the runs of one of the texts that are among these."""
        assert self._index is not None
        found = Counter(text for run in runs for text in self._index.sources(run))
        return max(count / self._sizes[text] for text, count in found.items())

    @cached_property
    def _sizes(self) -> Counter[int]:
        """Number of distinct runs of each text."""
        assert self._index is not None
        return Counter(text for run in range(self._index.size) for text in self._index.sources(run))


def scan(
    root: Folder, wanted: Forgotten, pages: Forgotten, texts: Sequence[str], sources: Sequence[str] = ()
) -> Scanned:
    """Read every file below an output folder.

    A file that cannot be read is a trace: nothing is known of it. The locations of the user's files are not read.
    `sources` are the folders of the steps that take pages from outside.
    """
    searcher = Searcher(wanted, pages, texts, root.path())
    traces: list[Trace] = []
    loose: list[tuple[Trace, frozenset[int]]] = []  # runs of words in files without pages
    others: dict[str, frozenset[int]] = {}
    sizes = {name: size for name, size in root.sizes().items() if name not in OWN and f"/{PLACES}/" not in name}
    for name in sizes:
        try:
            found = _search(root, name, searcher, others, name.partition("/")[0] in sources)
        except Exception as error:  # noqa: BLE001 - whatever a library raises for a file that it cannot read
            what = f"cannot be read: {str(error)[:200] or type(error).__name__}"
            traces.append(Trace(file=name, place="", what=what, is_readable=False))
            continue
        if isinstance(found, Trace):
            traces.append(found)
        else:
            loose += found
    known = frozenset().union(*others.values())
    first = {trace.file: trace for trace, runs in reversed(loose) if runs - known}
    mirrors = sorted(page for page, runs in others.items() if searcher.share(runs) >= MIRROR)
    ordered = sorted([*traces, *first.values()], key=lambda trace: trace.file)
    return Scanned(len(sizes), sum(sizes.values()), ordered, mirrors)


def _search(
    root: Folder, name: str, searcher: Searcher, others: dict[str, frozenset[int]], is_source: bool
) -> Trace | list[tuple[Trace, frozenset[int]]]:
    """Search one file: a trace for certain, or those that count unless another page has the same words."""
    loose: list[tuple[Trace, frozenset[int]]] = []
    for piece in pieces(root, name):
        if trace := _certain(name, piece, searcher, is_source):
            return trace
        if runs := searcher.runs((*piece.texts, *piece.facts)):
            if piece.owners:
                page = piece.owners[-1]
                others[page] = others.get(page, frozenset()) | runs
            else:
                loose.append((Trace(file=name, place=piece.place, what="words of a page"), runs))
    return loose


def _certain(name: str, piece: Piece, searcher: Searcher, is_source: bool = False) -> Trace | None:
    """Return the trace of a piece that names a page; a page that mentions another one's URL is none."""
    if searcher.is_of_page(piece, is_source):
        return Trace(file=name, place=piece.place, what=f"a page: {piece.owners[0]}")
    facts = piece.facts if piece.owners else (*piece.facts, *piece.texts)
    if found := searcher.address(facts):
        return Trace(file=name, place=piece.place, what=f"a URL: {found}")
    return None


def is_traced(piece: Piece, searcher: Searcher) -> bool:
    """Return True if a piece names a page or has its words."""
    return _certain("line", piece, searcher) is not None or (not piece.owners and bool(searcher.runs(piece.texts)))
