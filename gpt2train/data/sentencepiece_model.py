"""SentencePiece models (`.model`, unigram or BPE), encoded and decoded by `sentencepiece` itself.

The conversion to a `tokenizer.json` is not used: it drops combining marks and resolves `<pad>` in a text to the special
token (docs/decisions/sentencepiece-by-its-library.md).
"""

from collections.abc import Sequence
from typing import Any

from gpt2train.errors import UserError

MODEL = "tokenizer.model"
MODEL_NAMES = (MODEL, "spiece.model", "sentencepiece.bpe.model")
INSTALL = "pip install 'gpt2train[sentencepiece]'"
SPACE = "\u2581"  # stands for a space in a piece


class SentencePieceTokenizer:
    """Tokenizer of a SentencePiece model; a text is never parsed for control symbols such as `</s>`.

    Args:
        model: content of the `.model` file.
        source: path of the file, for error messages.
        add_bos: a text begins with the model's `<s>`, as Llama 2's; the model itself does not say so.

    Attributes:
        prefix: ids before a text.

    Raises:
        UserError: the content is not a model, has no end-of-text token, or sentencepiece is not installed.
    """

    def __init__(self, model: bytes, source: str, add_bos: bool = False) -> None:
        try:
            import sentencepiece  # an extra
        except ImportError as error:
            raise UserError(f"{source} is a SentencePiece model, which needs sentencepiece: {INSTALL}") from error
        self.model, self._source = model, source
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{source} is not a SentencePiece model: {error}; copy the file again") from error
        if self.get_vocab_size() == 0:
            raise UserError(f"{source} is not a SentencePiece model: it has no pieces; copy the file again")
        bos = self._processor.bos_id()
        self.prefix: tuple[int, ...] = (bos,) if add_bos and bos >= 0 else ()

    @property
    def end(self) -> int | None:
        """Id of the end-of-text token, None if the model has none."""
        found = self._processor.eos_id()
        return found if found >= 0 else None

    @property
    def by_merges(self) -> bool:
        """True for BPE, whose pieces have their rank as score; those of a unigram model are log-probabilities."""
        scores = (self._processor.get_score(number) for number in range(self.get_vocab_size()))
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
        return self._processor.encode(raw, num_threads=1)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode ids; an id outside the vocabulary has no text. Control symbols never have any."""
        size = self.get_vocab_size()
        return str(self._processor.decode([number for number in ids if 0 <= number < size]))

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of pieces."""
        return int(self._processor.get_piece_size())

    def id_to_token(self, id: int) -> str | None:
        """Return the piece of an id, None if it has none."""
        return str(self._processor.id_to_piece(id)) if 0 <= id < self.get_vocab_size() else None

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a piece, None if there is none."""
        found = int(self._processor.piece_to_id(token))
        return found if self.id_to_token(found) == token else None

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a piece within a text; a control symbol has none."""
        piece = self.id_to_token(token)
        if piece is None or self._processor.is_control(token):
            return b""
        if self._processor.is_byte(token):
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(SPACE, " ").encode()
