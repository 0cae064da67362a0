"""Incremental decoding of tokens into text, without partial characters and partial stop strings."""

import codecs
from collections.abc import Sequence

from gpt2train.data.token_bytes import token_bytes
from gpt2train.data.tokenizer import Tokenizer


class TextStream:
    """Text of tokens that are added one by one, up to the first stop string.

    `tokenizers.decoders.DecodeStream` is not used: after an invalid UTF-8 byte it never returns any text again.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.text = ""
        """Whole characters so far, up to a stop string."""
        self.stopped = False
        """True once a stop string was found."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._returned = 0
        self._ended = False

    def add(self, token: int) -> None:
        """Append a token."""
        self._append(self._decoder.decode(token_bytes(self.tokenizer, token)))

    def end(self) -> None:
        """End the text; a partial character becomes U+FFFD, as in `tokenizer.decode`."""
        if not self._ended:
            self._append(self._decoder.decode(b"", True))
            self._ended = True

    def pop_delta(self) -> str:
        """Return the text that is final and was not returned before, for streaming."""
        end = len(self.text)
        if not (self._ended or self.stopped):
            end -= max((_overlap(self.text, stop) for stop in self.stop), default=0)
        start, self._returned = self._returned, max(self._returned, end)
        return self.text[start:end]

    def _append(self, more: str) -> None:
        if self.stopped or not more:
            return
        before, self.text = len(self.text), self.text + more
        # A stop string that was not there before ends in the new text.
        starts = [self.text.find(stop, max(0, before - len(stop) + 1)) for stop in self.stop]
        found = [start for start in starts if start >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of the stop string that ends the text."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
