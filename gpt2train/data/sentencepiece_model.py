"""SentencePiece models (`.model`, unigram or BPE), encoded and decoded by `sentencepiece` itself.

The conversion to a `tokenizer.json` is not used: it drops combining marks and resolves `<pad>` in a text to the special
token (docs/decisions.md).
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from gpt2train.data.added_tokens import Added
from gpt2train.errors import UserError
from gpt2train.extras import needs_extra

MODEL = "tokenizer.model"
MODEL_NAMES = (MODEL, "spiece.model", "sentencepiece.bpe.model")
EXTRA = "sentencepiece"
NO_PREFIX = b"\x1a\x02\x18\x00"  # normalizer_spec.add_dummy_prefix = false; a later field of a message counts
SPACE = "\u2581"  # stands for a space in a piece


class SentencePieceTokenizer:
    """Tokenizer of a SentencePiece model; a text is never parsed for control symbols such as `</s>`.

    Args:
        model: content of the `.model` file.
        source: path of the file, for error messages.
        add_bos: a text begins with the model's `<s>`, as Llama 2's; the model itself does not say so.
        added: tokens beside the model, with their ids; those that are not special are found in a text.
        spaces_each: each part of a text between such tokens is encoded as a text of its own, with the space that the
            model puts before it; else that space is put before the first part alone.

    Attributes:
        prefix: ids before a text.
        added: tokens beside the model, by their ids.

    Raises:
        UserError: the content is not a model, has no end-of-text token, or sentencepiece is not installed.
    """

    def __init__(
        self,
        model: bytes,
        source: str,
        add_bos: bool = False,
        added: Sequence[Added] = (),
        spaces_each: bool = True,
    ) -> None:
        try:
            import sentencepiece  # an extra
        except ImportError as error:
            raise needs_extra(f"{source} is a SentencePiece model, which", EXTRA) from error
        self.model, self._source = model, source
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{source} is not a SentencePiece model: {error}; copy the file again") from error
        self._pieces = int(self._processor.get_piece_size())
        if self._pieces == 0:
            raise UserError(f"{source} is not a SentencePiece model: it has no pieces; copy the file again")
        self.added = {token.id: token for token in added if token.id is not None}
        self.spaces_each = spaces_each
        self._ids = {token.content: number for number, token in self.added.items()}
        self._pattern = _pattern([token for token in self.added.values() if not token.special])
        bos = self._processor.bos_id()
        self.prefix: tuple[int, ...] = (bos,) if add_bos and bos >= 0 else ()

    @property
    def end(self) -> int | None:
        """Id of the end-of-text token, None if the model has none."""
        found = self._processor.eos_id()
        return found if found >= 0 else None

    @property
    def special(self) -> dict[str, int]:
        """Control symbols, the piece of unknown characters and special tokens beside the model, by their names."""
        kinds = (self._processor.is_control, self._processor.is_unknown)
        pieces = (number for number in range(self._pieces) if any(kind(number) for kind in kinds))
        found = {str(self._processor.id_to_piece(number)): number for number in pieces}
        return found | {token.content: number for number, token in self.added.items() if token.special}

    @property
    def by_merges(self) -> bool:
        """True for BPE, whose pieces have their rank as score; those of a unigram model are log-probabilities."""
        scores = (self._processor.get_score(number) for number in range(self._pieces))
        return all(score == int(score) for score in scores)

    @property
    def unknown(self) -> str:
        """Piece that stands for a character without one."""
        return str(self._processor.id_to_piece(self._processor.unk_id()))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts on the calling thread.

        Raises:
            TypeError: a text contains a lone surrogate.
        """
        try:
            raw = [text.encode() for text in texts]
        except UnicodeEncodeError as error:
            raise TypeError(str(error)) from error
        if self._pattern is None:
            return self._processor.encode(raw, num_threads=1)
        return [list(self._with_added(text, self._pattern)) for text in texts]

    def _with_added(self, text: str, pattern: re.Pattern[str]) -> Iterator[int]:
        """Yield the ids of a text with tokens beside the model in it."""
        place = 0
        for match in pattern.finditer(text):
            yield from self._part(text[place : match.start()], first=place == 0)
            yield self._ids[match[match.lastgroup or 0]]
            place = match.end()
        yield from self._part(text[place:], first=place == 0)

    def _part(self, text: str, first: bool) -> list[int]:
        if not text:
            return []
        if first or self.spaces_each:
            return list(self._processor.encode(text.encode(), num_threads=1))
        return list(self._without_space.encode(text.encode(), num_threads=1))

    @cached_property
    def _without_space(self) -> Any:
        """The model without the space that it puts before a text."""
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_proto=self.model + NO_PREFIX)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode ids; an id outside the vocabulary has no text. Control symbols never have any."""
        known = [number for number in ids if 0 <= number < self._pieces or number in self.added]
        if self.added.keys().isdisjoint(known):
            return str(self._processor.decode(known))
        parts = list[str]()
        for is_added, group in groupby(known, key=self.added.__contains__):
            numbers = list(group)
            if is_added:
                tokens = [self.added[number] for number in numbers]
                parts += [token.content for token in tokens if not (token.special and skip_special_tokens)]
            elif not parts:
                parts.append(str(self._processor.decode(numbers)))
            else:  # after another piece, so that the first space stays
                before = str(self._processor.decode(self._letter))
                parts.append(str(self._processor.decode([*self._letter, *numbers])).removeprefix(before))
        return "".join(parts)

    @cached_property
    def _letter(self) -> list[int]:
        """Piece with a text of its own."""
        return [next(n for n in range(self._pieces) if self._processor.decode([n]).strip() and not self._is_other(n))]

    def _is_other(self, number: int) -> bool:
        kinds = (self._processor.is_control, self._processor.is_unknown, self._processor.is_byte)
        return any(kind(number) for kind in kinds)

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of pieces, and of the tokens beside them."""
        return max([self._pieces, *(number + 1 for number in self.added)]) if with_added_tokens else self._pieces

    def id_to_token(self, id: int) -> str | None:
        """Return the piece of an id, None if it has none."""
        if id in self.added:
            return self.added[id].content
        return str(self._processor.id_to_piece(id)) if 0 <= id < self._pieces else None

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a piece, None if there is none."""
        if token in self._ids:
            return self._ids[token]
        found = int(self._processor.piece_to_id(token))
        return found if self.id_to_token(found) == token else None

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a piece within a text; a control symbol has none."""
        if token in self.added:
            return b"" if self.added[token].special else self.added[token].content.encode()
        piece = self.id_to_token(token)
        if piece is None or self._processor.is_control(token):
            return b""
        if self._processor.is_byte(token):
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(SPACE, " ").encode()


def _pattern(tokens: Sequence[Added]) -> re.Pattern[str] | None:
    """Return the pattern of tokens in a text, the longest first; the last group of a match is the token alone."""
    parts = list[str]()
    for number, token in enumerate(sorted(tokens, key=lambda token: -len(token.content))):
        found = f"(?P<t{number}>{re.escape(token.content)})"
        found = rf"(?<!\w){found}(?!\w)" if token.single_word else found
        parts.append(r"\s*" * token.lstrip + found + r"\s*" * token.rstrip)
    return re.compile("|".join(parts)) if parts else None
