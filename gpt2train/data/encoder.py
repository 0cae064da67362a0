"""Batch encoding of texts with the reference (`tokenizers`, `sentencepiece`), or `gigatoken`, a hundred times as fast.

Both take texts in Arrow's layout (bytes and offsets) and return ids in one array, so that no Python list of numbers and
no Python string is created between a Parquet file and a token file. The ids must be equal; callers of the fast encoder
first compare the two on texts of the same kind (`disagreement`).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from gpt2train.data.tokenizer import END_OF_TEXT, Tokenizer, encode_ordinary
from gpt2train.errors import UserError

BATCH_SIZE = 64  # pieces per call of `tokenizers`, enough to keep the library busy
MAX_PIECE = 1 << 18  # characters; a longer text is split, since the library needs about 250 bytes per character


@dataclass(frozen=True)
class Texts:
    """UTF-8 texts in the layout of an Arrow string column."""

    data: np.ndarray  # uint8 [bytes], concatenated bytes of all texts
    offsets: np.ndarray  # int64 [texts + 1], start of each text, and end of the last one

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        """Bytes of one text."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    @classmethod
    def of(cls, texts: list[str]) -> "Texts":
        """Build from Python strings."""
        raw = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, raw)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(raw), dtype=np.uint8), offsets)


class Encoded(NamedTuple):
    """Token ids of texts, concatenated."""

    ids: np.ndarray  # [tokens], any integer dtype
    lengths: np.ndarray  # int64 [texts], number of tokens of each text


class Encoder(Protocol):
    """Function from texts to ids; `<|endoftext|>` inside a text is ordinary text."""

    def __call__(self, texts: Texts) -> Encoded: ...


class PlainEncoder:
    """Reference encoder: the tokenizer's own library, a few texts at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._max_piece = MAX_PIECE if splits_as_gpt2(tokenizer) else None

    def __call__(self, texts: Texts) -> Encoded:
        """Encode valid UTF-8 texts to int32 ids."""
        found: list[np.ndarray] = []
        lengths = np.zeros(len(texts), dtype=np.int64)
        group: list[tuple[int, str]] = []

        def flush() -> None:
            for (index, _), ids in zip(group, encode_ordinary(self._tokenizer, [p for _, p in group]), strict=True):
                lengths[index] += len(ids)
                found.append(np.asarray(ids, dtype=np.int32))
            group.clear()

        for index in range(len(texts)):
            text = texts[index].decode()
            for piece in pieces(text, self._max_piece or len(text)):
                group.append((index, piece))
                if len(group) == BATCH_SIZE:
                    flush()
        flush()
        return Encoded(np.concatenate(found) if found else np.empty(0, dtype=np.int32), lengths)


class FastEncoder:
    """Fast encoder: `gigatoken` (SIMD pre-tokeniser with a cache of words), on the calling thread only.

    Raises:
        ImportError: gigatoken is not installed.
        ValueError: gigatoken does not support a tokenizer of this kind: it takes byte-level BPE without a normaliser
            and without added tokens that are found in texts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        import gigatoken

        if not isinstance(tokenizer, tokenizers.Tokenizer):
            raise ValueError(f"gigatoken is not used for a {type(tokenizer).__name__}")
        plain = json.loads(tokenizer.to_str())
        if (
            plain["model"]["type"] != "BPE"
            or plain["normalizer"]
            or '"ByteLevel"' not in json.dumps(plain["pre_tokenizer"])
        ):
            raise ValueError("gigatoken is used for byte-level BPE without a normaliser only")
        if not all(token["special"] for token in plain["added_tokens"]):
            raise ValueError("gigatoken is not used with added tokens that are found in texts")
        # If gigatoken knows a special token, it encodes its characters in a text as that token.
        for token in [END_OF_TEXT, *(token["content"] for token in plain["added_tokens"])]:
            plain["model"]["vocab"].pop(token, None)
        plain["added_tokens"] = []
        try:
            self._backend = gigatoken.Tokenizer.from_json(json.dumps(plain))
        except RuntimeError as error:  # a vocabulary without some byte, for example
            raise ValueError(f"gigatoken does not take this tokenizer: {error}") from error

    def __call__(self, texts: Texts) -> Encoded:
        """Encode texts to uint32 ids. Bytes that are not UTF-8 become single-byte tokens."""
        import awkward  # takes 0.25 s, so it is deferred to the first call
        from awkward.contents import ListOffsetArray, NumpyArray
        from awkward.index import Index64

        # A view of the given buffers, without a copy.
        characters = NumpyArray(texts.data, parameters={"__array__": "char"})
        strings = ListOffsetArray(Index64(texts.offsets), characters, parameters={"__array__": "string"})
        layout = self._backend.encode_batch(awkward.Array(strings), parallel=False).layout
        offsets = np.asarray(layout.offsets.data, dtype=np.int64)
        return Encoded(np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets))


def splits_as_gpt2(tokenizer: Tokenizer) -> bool:
    """Return True if a tokenizer has GPT-2's pattern, so that `pieces` may split its texts."""
    if not isinstance(tokenizer, tokenizers.Tokenizer) or tokenizer.normalizer is not None:
        return False
    pre = tokenizer.pre_tokenizer
    if not isinstance(pre, pre_tokenizers.ByteLevel) or pre.add_prefix_space or not pre.use_regex:
        return False
    return all(token.special for token in tokenizer.get_added_tokens_decoder().values())


def pieces(text: str, max_chars: int = MAX_PIECE) -> Iterator[str]:
    """Split a long text where this changes no token: before a single space between two non-space characters.

    In GPT-2's pattern no word extends across such a position, and the space belongs to the following word. A text
    without such a position is not split.

    Args:
        text: text to split.
        max_chars: pieces are split at the first possible position after this many characters.
    """
    start = 0
    while len(text) - start > max_chars:
        cut = text.find(" ", start + max_chars)
        while cut != -1 and (cut + 1 >= len(text) or text[cut - 1].isspace() or text[cut + 1].isspace()):
            cut = text.find(" ", cut + 1)
        if cut == -1:
            break
        yield text[start:cut]
        start = cut
    yield text[start:]


def disagreement(encoder: Encoder, reference: Encoder, texts: Texts) -> list[int]:
    """Indices of the texts for which two encoders return different ids."""
    ours, theirs = encoder(texts), reference(texts)
    if len(ours.lengths) != len(theirs.lengths):
        raise ValueError(f"the encoder returned {len(ours.lengths)} texts instead of {len(theirs.lengths)}")
    return [
        number
        for number, (mine, other) in enumerate(zip(_each(ours), _each(theirs), strict=True))
        if not np.array_equal(mine, other)
    ]


def _each(encoded: Encoded) -> list[np.ndarray]:
    return np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])


def with_end(encoded: Encoded, end: int | None, dtype: np.dtype[Any], prefix: Sequence[int] = ()) -> Encoded:
    """Cast ids to the dtype of a token file; put `prefix` before each text, and the token `end`, if given, after it.

    Raises:
        UserError: an id does not fit the dtype.
    """
    if encoded.ids.size and int(encoded.ids.max()) > np.iinfo(dtype).max:
        raise UserError(f"the tokenizer returned the id {int(encoded.ids.max())}, which does not fit {dtype}")
    after = [] if end is None else [end]
    if not prefix and not after:
        return Encoded(encoded.ids.astype(dtype), encoded.lengths)
    lengths = encoded.lengths + len(prefix) + len(after)
    ids = np.empty(int(lengths.sum()), dtype=dtype)
    ends = np.cumsum(lengths)
    inside = np.ones(len(ids), dtype=bool)
    for places, number in [*zip((ends - lengths + n for n in range(len(prefix))), prefix, strict=True),
                           *((ends - 1, number) for number in after)]:  # fmt: skip
        ids[places] = number
        inside[places] = False
    ids[inside] = encoded.ids
    return Encoded(ids, lengths)
