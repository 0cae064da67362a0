"""llama.cpp's library on a GGUF file of an encoder-decoder, in a process of its own.

Its server does not run encoders, so this calls the functions of `llama.h` that the package xllamacpp exports. Reads
{"texts": [...], "written": [[...]]} from the standard input and writes {"tokens": [[...]], "likeliest": [[...]]}: the
tokens of each text, which the encoder reads, and the likeliest token at each place of what the decoder has written.
"""

import ctypes
import json
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

# Offsets of fields of `llama_context_params`, with their defaults, by which another layout of the structure is noticed.
N_CTX, FLASH_ATTENTION, TYPE_K, TYPE_V = 0, 52, 104, 108
DEFAULTS = {N_CTX: 512, 4: 2048, 8: 512, 12: 1, FLASH_ATTENTION: -1, 80: 0, TYPE_K: 1, TYPE_V: 1}
F32 = 0  # of the cache of keys and values; by default it is float16
CONTEXT = 512


class Parameters(ctypes.Structure):
    """Structure that is passed by value, with more bytes than any release of it needs."""

    _fields_ = (("bytes", ctypes.c_uint8 * 512),)


class Batch(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n", "s", "o")),
    )


def ask(file: Path, texts: Sequence[str], written: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of texts, and for each written token the likeliest one at its place: equal if it was written greedily."""
    pytest.importorskip("xllamacpp", reason="needs the extra peers")
    command = [sys.executable, "-m", "tests.gpt2train.convert.llama_cpp_t5_peer", str(file)]
    request = json.dumps({"texts": list(texts), "written": [list(tokens) for tokens in written]})
    done = subprocess.run(command, input=request.encode(), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:].decode(errors="replace")  # the log has tokens that are no UTF-8
    answer = json.loads(done.stdout)
    return answer["tokens"], answer["likeliest"]


class Library:
    """llama.cpp with one model.

    Args:
        file: GGUF file.
    """

    def __init__(self, file: str) -> None:
        import xllamacpp

        library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
        pointer, integer = ctypes.c_void_p, ctypes.c_int32

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found

        load = function("llama_model_load_from_file", pointer, ctypes.c_char_p, Parameters)
        self.model = load(file.encode(), function("llama_model_default_params", Parameters)())
        assert self.model, f"llama.cpp cannot load {file}"
        parameters = function("llama_context_default_params", Parameters)()
        for offset, default in DEFAULTS.items():
            (found,) = struct.unpack_from("<i", parameters.bytes, offset)
            assert found == default, f"llama_context_params has another layout: {found} at byte {offset}"
        for offset, value in ((N_CTX, CONTEXT), (FLASH_ATTENTION, 0), (TYPE_K, F32), (TYPE_V, F32)):
            struct.pack_into("<i", parameters.bytes, offset, value)
        self.context = function("llama_init_from_model", pointer, pointer, Parameters)(self.model, parameters)
        self.vocab = function("llama_model_get_vocab", pointer, pointer)(self.model)
        self.start = function("llama_model_decoder_start_token", integer, pointer)(self.model)
        self.rows = function("llama_vocab_n_tokens", integer, pointer)(self.vocab)
        self._memory = function("llama_get_memory", pointer, pointer)(self.context)
        self._clear = function("llama_memory_clear", None, pointer, ctypes.c_bool)
        self._one = function("llama_batch_get_one", Batch, pointer, integer)
        self._encode = function("llama_encode", integer, pointer, Batch)
        self._decode = function("llama_decode", integer, pointer, Batch)
        self._logits = function("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), pointer, integer)
        text = (pointer, ctypes.c_char_p, integer, pointer, integer, ctypes.c_bool, ctypes.c_bool)
        self._tokenize = function("llama_tokenize", integer, *text)
        assert function("llama_model_has_encoder", ctypes.c_bool, pointer)(self.model)

    def tokens(self, text: str) -> list[int]:
        """Tokens of a text, with those that the file puts after it."""
        encoded, tokens = text.encode(), (ctypes.c_int32 * CONTEXT)()
        count = self._tokenize(self.vocab, encoded, len(encoded), tokens, CONTEXT, True, True)
        assert count >= 0, "too many tokens"
        return list(tokens[:count])

    def likeliest(self, prompt: Sequence[int], written: Sequence[int]) -> list[int]:
        """Likeliest token at each place of what the decoder has written, after the encoder has read a prompt."""
        self._clear(self._memory, True)
        self._run(self._encode, prompt)
        found: list[int] = []
        for token in (self.start, *written[:-1]):
            self._run(self._decode, [token])
            logits = self._logits(self.context, -1)[: self.rows]
            found.append(max(range(self.rows), key=logits.__getitem__))
        return found

    def _run(self, step: Any, tokens: Sequence[int]) -> None:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        assert step(self.context, self._one(array, len(tokens))) == 0


def main() -> None:
    request = json.load(sys.stdin)
    library = Library(sys.argv[1])
    tokens = [library.tokens(text) for text in request["texts"]]
    likeliest = [library.likeliest(*pair) for pair in zip(tokens, request["written"], strict=True)]
    json.dump({"tokens": tokens, "likeliest": likeliest}, sys.stdout)


if __name__ == "__main__":
    main()
