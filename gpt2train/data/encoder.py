"""Many texts to token ids at once: `tokenizers`, which defines the ids, and `gigatoken`, a hundred times as fast.

Both take a column of texts as Arrow holds it (bytes and offsets) and give ids in one array, so that no Python list of
numbers and no Python string stands between a Parquet file and a token file. They are meant to give equal ids; whoever
relies on the fast one compares the two on texts of the same kind first (`disagreement`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import END_OF_TEXT, encode_ordinary
from gpt2train.errors import UserError

AT_ONCE = 64  # pieces in one call of `tokenizers`: enough to keep the library busy
PIECE = 1 << 18  # characters; a longer text goes in pieces: the library needs about 250 bytes of memory for each


@dataclass(frozen=True)
class Texts:
    """UTF-8 texts one after the other, as Arrow holds a column of strings."""

    data: np.ndarray
    """uint8, the bytes of all texts."""
    offsets: np.ndarray
    """int64 [texts + 1], where each begins, and where the last ends."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        """Bytes of one text."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    @classmethod
    def of(cls, texts: list[str]) -> "Texts":
        """Texts from Python strings."""
        raw = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, raw)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(raw), dtype=np.uint8), offsets)


class Encoded(NamedTuple):
    """Ids of texts, one text after the other."""

    ids: np.ndarray
    """[tokens] of any unsigned or signed integer dtype."""
    lengths: np.ndarray
    """int64 [texts] tokens of each text."""


class Encoder(Protocol):
    """Turns texts to ids; `<|endoftext|>` inside a text is ordinary letters."""

    def __call__(self, texts: Texts) -> Encoded: ...


class PlainEncoder:
    """The reference: `tokenizers`, a few texts at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, texts: Texts) -> Encoded:
        """Ids of valid UTF-8 texts, int32."""
        found: list[np.ndarray] = []
        lengths = np.zeros(len(texts), dtype=np.int64)
        group: list[tuple[int, str]] = []

        def flush() -> None:
            for (index, _), ids in zip(group, encode_ordinary(self._tokenizer, [p for _, p in group]), strict=True):
                lengths[index] += len(ids)
                found.append(np.asarray(ids, dtype=np.int32))
            group.clear()

        for index in range(len(texts)):
            for piece in pieces(texts[index].decode()):
                group.append((index, piece))
                if len(group) == AT_ONCE:
                    flush()
        flush()
        return Encoded(np.concatenate(found) if found else np.empty(0, dtype=np.int32), lengths)


class FastEncoder:
    """`gigatoken` (SIMD pre-tokeniser, cached words) on this thread alone; it keeps the words it has seen.

    Raises:
        ImportError: it is not installed.
        ValueError: it does not know a tokenizer of this kind.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        import gigatoken

        plain = json.loads(tokenizer.to_str())
        # Where it is told of the special token it takes the letters `<|endoftext|>` in a text for it.
        plain["added_tokens"] = []
        plain["model"]["vocab"].pop(END_OF_TEXT, None)
        self._backend = gigatoken.Tokenizer.from_json(json.dumps(plain))

    def __call__(self, texts: Texts) -> Encoded:
        """Ids of texts, uint32. Bytes that are not UTF-8 become tokens of single bytes."""
        import awkward  # 0.25 s, so not before there is work
        from awkward.contents import ListOffsetArray, NumpyArray
        from awkward.index import Index64

        # A view of the given buffers: nothing is copied on the way in.
        characters = NumpyArray(texts.data, parameters={"__array__": "char"})
        strings = ListOffsetArray(Index64(texts.offsets), characters, parameters={"__array__": "string"})
        layout = self._backend.encode_batch(awkward.Array(strings), parallel=False).layout
        offsets = np.asarray(layout.offsets.data, dtype=np.int64)
        return Encoded(np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets))


def pieces(text: str, most: int = PIECE) -> Iterator[str]:
    """Cut a long text where the cut changes no token: before a single space between two things that are not space.

    GPT-2's pattern never lets a word reach over such a place, and takes the space to the word after it. A text
    without one stays whole.
    """
    start = 0
    while len(text) - start > most:
        cut = text.find(" ", start + most)
        while cut != -1 and (cut + 1 >= len(text) or text[cut - 1].isspace() or text[cut + 1].isspace()):
            cut = text.find(" ", cut + 1)
        if cut == -1:
            break
        yield text[start:cut]
        start = cut
    yield text[start:]


def disagreement(encoder: Encoder, reference: Encoder, texts: Texts) -> list[int]:
    """Numbers of the texts for which two encoders give different ids."""
    ours, theirs = encoder(texts), reference(texts)
    if len(ours.lengths) != len(theirs.lengths):
        raise ValueError(f"{len(theirs.lengths)} texts went in, {len(ours.lengths)} came out")
    return [
        number
        for number, (mine, other) in enumerate(zip(_each(ours), _each(theirs), strict=True))
        if not np.array_equal(mine, other)
    ]


def _each(encoded: Encoded) -> list[np.ndarray]:
    return np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])


def with_end(encoded: Encoded, end: int | None, dtype: np.dtype[Any]) -> Encoded:
    """The ids in the dtype of a token file, each text followed by the token `end` where one is given.

    Raises:
        UserError: an id does not fit the dtype.
    """
    if encoded.ids.size and int(encoded.ids.max()) > np.iinfo(dtype).max:
        raise UserError(f"the tokenizer gives the id {int(encoded.ids.max())}, which does not fit {dtype}")
    if end is None:
        return Encoded(encoded.ids.astype(dtype), encoded.lengths)
    lengths = encoded.lengths + 1
    ids = np.full(int(lengths.sum()), end, dtype=dtype)
    inside = np.ones(len(ids), dtype=bool)
    inside[np.cumsum(lengths) - 1] = False
    ids[inside] = encoded.ids
    return Encoded(ids, lengths)
