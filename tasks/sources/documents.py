"""Files of `--documents`: classified by their suffixes and checked before anything starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gpt2train.errors import UserError
from tasks.core.input_files import InputFile, find_inputs, kind_of
from tasks.sources import text_records, webpages

CHECKED_FILES = 32  # files whose first record is read before the run starts; the others are checked while they are read


@dataclass(frozen=True)
class Documents:
    """The user's document files: HTML files with one page each, which the extraction reads, and files of text."""

    pages: tuple[InputFile, ...]
    texts: tuple[InputFile, ...]


def find_documents(patterns: Sequence[str], key: str, max_bytes: int) -> Documents:
    """Find and check the files of `--documents`.

    Raises:
        UserError: A file is missing, has an unknown suffix or another format than its suffix, or lacks the key.
    """
    known = (*text_records.ENDINGS, *webpages.ENDINGS)

    def check(location: str) -> None:
        if kind_of(location) not in known:
            hint = "give archives with --warcs" if kind_of(location) == ".warc" else "rename it"
            raise UserError(f"{location}: its ending is none of {' '.join(known)} (also .gz .bz2 .xz .zst); {hint}")

    for pattern in patterns:
        if "://" not in pattern and Path(pattern).is_file():
            check(pattern)  # before a large file is read for its hash
    files = find_inputs(patterns, "--documents", known, faults=True)
    for file in files:
        check(file.location)
    texts = tuple(file for file in files if kind_of(file.location) in text_records.ENDINGS)
    keyed = (
        file
        for file in texts
        if file.fault is None and kind_of(file.location) in (*text_records.JSON, *text_records.PARQUET)
    )
    for file in islice(keyed, CHECKED_FILES):
        next(text_records.read_items(file, key, max_bytes), None)
    return Documents(tuple(file for file in files if kind_of(file.location) in webpages.ENDINGS), texts)
