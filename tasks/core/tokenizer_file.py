"""The file of a tokenizer step from which workers open the tokenizer, once for all their batches."""

import contextlib
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

from gpt2train.data.added_tokens import CONFIG
from gpt2train.data.encoder import Encoder, FastEncoder, PlainEncoder
from gpt2train.data.tokenizer import PRIMARY, Tokenizer, open_tokenizer
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest

Engine = Literal["gigatoken", "tokenizers"]
ENGINES: dict[Engine, Callable[[Tokenizer], Encoder]] = {"gigatoken": FastEncoder, "tokenizers": PlainEncoder}


class TokenizerFile(NamedTuple):
    """Location of a tokenizer; by the hash, workers do not take that of an earlier run for it."""

    folder: Folder
    name: str
    sha256: str


def tokenizer_file(root: Folder, tokenizer: Manifest) -> TokenizerFile:
    """Location of the tokenizer of a step."""
    record = tokenizer_record(tokenizer)
    return TokenizerFile(root / tokenizer.folder, record.name, record.sha256)


def tokenizer_of(file: TokenizerFile) -> Tokenizer:
    """Open a tokenizer, or return that of the last call."""
    return _cached(file.folder.url, file.name, file.sha256)[0]


def encoder_of(file: TokenizerFile, engine: Engine) -> Encoder:
    """Return an encoder of a tokenizer, that of earlier calls with its cache of words.

    Raises:
        ImportError: gigatoken is not installed.
        ValueError: gigatoken does not support this tokenizer.
    """
    tokenizer, encoders = _cached(file.folder.url, file.name, file.sha256)
    if engine not in encoders:
        encoders[engine] = ENGINES[engine](tokenizer)
    return encoders[engine]


@functools.lru_cache(maxsize=1)
def _cached(url: str, name: str, sha256: str) -> tuple[Tokenizer, dict[Engine, Encoder]]:
    return read_tokenizer(Folder(url), name), {}


def tokenizer_record(tokenizer: Manifest) -> FileRecord:
    """Return the record of the one file that is a tokenizer by itself: `tokenizer.json` or `tokenizer.model`.

    Raises:
        LookupError: the step has written none, as in a dry run.
    """
    for record in tokenizer.outputs:
        if record.name in PRIMARY:
            return record
    raise LookupError("the tokenizer step has written no tokenizer")


def read_tokenizer(folder: Folder, name: str) -> Tokenizer:
    """Open the tokenizer of a folder, local or not, from its file and, if there is one, its configuration."""
    files = {name: folder.read_bytes(name)}
    with contextlib.suppress(FileNotFoundError):
        files[CONFIG] = folder.read_bytes(CONFIG)
    return open_tokenizer(files, folder.url)
