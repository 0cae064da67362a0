"""Documents of a comparison: both corpora, held-out sets, and the share of a corpus that each seed trains on.

Documents are assigned by a keyed hash of their text, or of the first text of a group of near-duplicates. All copies and
near-duplicates of a text therefore have the same seed and follow each other, which keeps the share of duplicates of the
corpus, and those of a held-out document are left out of both corpora.
"""

import bisect
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpt2train.compare.near_duplicates import near_duplicate_groups
from gpt2train.data.documents import Rejected, documents, expand
from gpt2train.data.indexed import IndexedDataset, idx_path
from gpt2train.data.text_units import ALPHABETIC, letters_in, units_of
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.errors import UserError
from gpt2train.store.counts import count_of
from gpt2train.store.manifest import MANIFEST

MAX_BYTES = 1 << 28  # of a corpus in UTF-8; of a larger one the texts with the smallest hashes, with all copies
MAX_HELD = 200  # documents of a drawn held-out set
HELD_SHARE = 20  # a drawn set has at most one of so many texts
NGRAM = 13  # words that a training document may not share with a held-out file, as in GPT-3's decontamination
LETTERS = 4  # of a short word in Thai, Lao, Khmer and Burmese, whose letters are units; a Han character is a word
ALPHABET = letters_in(ALPHABETIC)
TOKENS = Path("tokens", "train")  # of a data flow's output folder


def text_key(text: str, purpose: str) -> bytes:
    """Hash of a text that differs by purpose."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8, key=purpose.encode()).digest()


def utf8_bytes(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


@dataclass
class Corpus:
    """Texts of a corpus, with the number of copies of each, in the order of the hashes of their groups."""

    name: str
    copies: dict[str, int]
    dropped: int = 0  # documents left out because a held-out file shares text with them
    skipped: int = 0  # rows without a text
    over_limit: int = 0  # documents left out because the corpus has more than `MAX_BYTES`, copies included
    groups: dict[str, str] = field(default_factory=dict)
    """Text -> the text that stands for its near-duplicates; a text that is not a key stands for itself."""

    @property
    def documents(self) -> int:
        """Number of documents, copies included."""
        return sum(self.copies.values())

    def of_seed(self, seed: int, seeds: int) -> list[str]:
        """Documents of one seed: all copies of the texts that its hash assigns to the seed."""
        chosen = (text for text in self.copies if int.from_bytes(text_key(self.group(text), "seed")) % seeds == seed)
        return [text for text in chosen for _ in range(self.copies[text])]

    def group(self, text: str) -> str:
        """Text that stands for the near-duplicates of a text."""
        return self.groups.get(text, text)

    @property
    def near_duplicates(self) -> int:
        """Number of documents that are copies or near-duplicates of another one."""
        return self.documents - len({self.group(text) for text in self.copies})


def read_corpus(path: Path, key: str, name: str) -> Corpus:
    """Read a corpus.

    Args:
        path: output folder of a data flow, prefix of a token file pair, or a file or folder of documents.
        key: key of the text in JSON lines, column in Parquet.
        name: name of the corpus.

    Raises:
        UserError: there is no such corpus, or it has no document with a text.
    """
    counts: Counter[str] = Counter()
    size = found = skipped = 0
    limit: bytes | None = None
    for text in _texts(path, key):
        if not text.strip():
            skipped += 1
            continue
        found += 1
        if limit is None or text_key(text, "order") < limit:
            counts[text] += 1
            size += utf8_bytes(text)
        if size > 2 * MAX_BYTES:
            size, limit = _trim(counts)
    if size > MAX_BYTES:
        _trim(counts)
    if found and not counts:
        raise UserError(f"{path}: one of its texts has more than {MAX_BYTES >> 20} MiB; give one text a line or row")
    if not counts:
        raise UserError(f"{path} has no document with a text under {key!r}; give another path or --json-key")
    ordered = dict(sorted(counts.items(), key=lambda item: text_key(item[0], "order")))
    return Corpus(name, ordered, skipped=skipped, over_limit=found - counts.total())


def group_corpora(corpora: Sequence[Corpus]) -> None:
    """Find the near-duplicates in all corpora together, and order the texts of each by group."""
    texts = sorted({text for corpus in corpora for text in corpus.copies}, key=lambda text: text_key(text, "order"))
    firsts = near_duplicate_groups(texts)
    groups = {text: texts[first] for text, first in zip(texts, firsts, strict=True) if text != texts[first]}
    for corpus in corpora:
        corpus.groups = groups
        keys = {text: (text_key(corpus.group(text), "order"), text_key(text, "order")) for text in corpus.copies}
        corpus.copies = {text: corpus.copies[text] for text in sorted(corpus.copies, key=keys.__getitem__)}


def read_heldout(path: Path, key: str) -> list[str]:
    """Read the distinct documents of a held-out file or folder, in their order.

    Raises:
        UserError: it cannot be read, or has fewer than two documents.
    """
    found = list(dict.fromkeys(text for text in _texts(path, key) if text.strip()))
    if len(found) < 2:
        few = count_of(len(found), "document")
        raise UserError(f"--heldout {path}: {few}; the interval needs at least two, better 100")
    return found


def draw_heldout(corpus: Corpus, other: Corpus) -> list[str]:
    """Draw a held-out set from a corpus; the texts, their copies and near-duplicates are removed from both corpora.

    Raises:
        UserError: the corpus is too small for a held-out set.
    """
    by_group: dict[str, str] = {}
    for text in sorted(corpus.copies, key=lambda text: text_key(text, "heldout")):
        by_group.setdefault(corpus.group(text), text)
    ordered = sorted(by_group.values(), key=lambda text: text_key(corpus.group(text), "heldout"))
    drawn = ordered[: min(MAX_HELD, len(ordered) // HELD_SHARE)]
    if len(drawn) < 2:
        few = f"{len(ordered)} distinct documents are too few to hold some out"
        raise UserError(f"{corpus.name}: {few}; give --heldout")
    groups = {corpus.group(text) for text in drawn}
    for one in (corpus, other):
        one.copies = {text: count for text, count in one.copies.items() if one.group(text) not in groups}
    return drawn


def drop_overlaps(corpus: Corpus, heldout: list[str]) -> None:
    """Leave out the documents that are held-out ones or share 13 consecutive words with one.

    Raises:
        UserError: no document is left.
    """
    texts, grams = set(heldout), {gram for text in heldout for gram in _ngrams(text)}
    for text in list(corpus.copies):
        if text in texts or not grams.isdisjoint(_ngrams(text)):
            corpus.dropped += corpus.copies.pop(text)
    if not corpus.copies:
        raise UserError(f"{corpus.name}: all of its documents are in the held-out files; give other --heldout files")


def _ngrams(text: str) -> set[str]:
    words = units_of(text.lower())
    count = NGRAM * (LETTERS if 2 * len(ALPHABET.findall(text)) > len(words) else 1)
    return {" ".join(words[at : at + count]) for at in range(len(words) - count + 1)}


def _trim(counts: Counter[str]) -> tuple[int, bytes]:
    """Keep the texts with the smallest hashes up to `MAX_BYTES`, of a corpus that has more.

    Returns:
        Their size with all copies, and the hash of the first text that is left out. A copy of it may follow.
    """
    ordered = sorted(counts, key=lambda text: text_key(text, "order"))
    sizes = [0, *itertools.accumulate(utf8_bytes(text) * counts[text] for text in ordered)]
    kept = bisect.bisect_right(sizes, MAX_BYTES) - 1  # fewer than all: their size is above the limit
    for text in ordered[kept:]:
        del counts[text]
    return sizes[kept], text_key(ordered[kept], "order")


def _texts(path: Path, key: str) -> Iterator[str]:
    """Texts of a corpus in the order of its files; an empty one for each row without a text."""
    folder = path / TOKENS
    prefixes = sorted(file.with_suffix("") for file in folder.glob("*.idx")) if folder.is_dir() else []
    if path.is_dir() and not prefixes and (path / MANIFEST).exists():
        raise UserError(f"{path} is one step of a data flow; give its output folder, which has {TOKENS}")
    if path.is_dir() and not prefixes and next(path.glob(f"*/{MANIFEST}"), None):
        raise UserError(f"{path} is the output of a data flow without {TOKENS}; run the flow to its end")
    if idx_path(path).is_file():
        prefixes = [path]
    for prefix in prefixes:
        yield from _decoded(prefix)
    if prefixes:
        return
    for file in expand([path]):
        yield from ("" if isinstance(text, Rejected) else text for text in documents(file, key))


def _decoded(prefix: Path) -> Iterator[str]:
    """Texts of a token file pair."""
    places = [folder / "tokenizer" for folder in prefix.absolute().parents[:3]]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise UserError(f"{prefix} has no tokenizer beside it; put its folder at {places[0]}")
    tokenizer, dataset = load_tokenizer(folder), IndexedDataset(prefix)
    for first, last in itertools.pairwise(dataset.bounds().tolist()):
        yield tokenizer.decode(dataset.tokens[first:last].tolist())
