"""The file of a tokenizer step from which workers open the tokenizer."""

import contextlib

from gpt2train.data.added_tokens import CONFIG
from gpt2train.data.tokenizer import PRIMARY, Tokenizer, open_tokenizer
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest


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
