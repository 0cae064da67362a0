"""Text that grows token by token: never half a character, nothing that may turn out to begin a stop string."""

import codecs
from collections.abc import Sequence
from functools import cache

from tokenizers import Tokenizer


@cache
def _byte_of() -> dict[str, int]:
    """Byte that each letter of GPT-2's vocabulary stands for: printable ones for themselves, the others from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of a token: maybe less than a character. Those of an id that the tokenizer does not know are none."""
    letters = tokenizer.id_to_token(token)
    if letters is None:
        return b""
    table = _byte_of()
    try:
        return bytes([table[letter] for letter in letters])
    except KeyError:  # an added token that holds other letters, as they are
        return bytes(letters, "utf-8")


class TextStream:
    """Text of tokens that come one by one, up to the first stop string.

    `tokenizers.decoders.DecodeStream` is not used: after a byte that is no UTF-8 it holds everything back, for good.

    Args:
        stop: strings before which the text ends.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.text = ""
        """Whole characters so far, cut before a stop string."""
        self.stopped = False
        """Whether a stop string came."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._given = 0
        self._ended = False

    def add(self, token: int) -> None:
        """One more token."""
        self._append(self._decoder.decode(token_bytes(self.tokenizer, token)))

    def end(self) -> None:
        """No more tokens come: half a character becomes U+FFFD, as `tokenizer.decode` has it."""
        if not self._ended:
            self._append(self._decoder.decode(b"", True))
            self._ended = True

    def fresh(self) -> str:
        """Text that is sure by now and was not yet given: what streaming sends next."""
        until = len(self.text)
        if not (self._ended or self.stopped):
            until -= max((_overlap(self.text, stop) for stop in self.stop), default=0)
        given, self._given = self._given, max(self._given, until)
        return self.text[given:until]

    def _append(self, more: str) -> None:
        if self.stopped or not more:
            return
        before, self.text = len(self.text), self.text + more
        # A stop string that is new ends in what is new.
        places = [self.text.find(stop, max(0, before - len(stop) + 1)) for stop in self.stop]
        found = [place for place in places if place >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True


def _overlap(text: str, stop: str) -> int:
    """Letters at the end of the text with which the stop string begins, the most there are, but not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
