"""What `--documents` names: told apart by the endings, and looked at before anything starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from gpt2train.errors import UserError
from tasks.inputs import InputFile, find_inputs, kind_of
from tasks.sources import rows, webpages

LOOK = 32  # files whose first record is read before the run starts; each later one is checked as it is read


@dataclass(frozen=True)
class Documents:
    """Files of the user.

    Attributes:
        pages: of HTML, one a file; the extraction takes their text out.
        texts: that hold text as it is.
    """

    pages: tuple[InputFile, ...]
    texts: tuple[InputFile, ...]


def find_documents(patterns: Sequence[str], key: str, max_bytes: int) -> Documents:
    """The files that `--documents` names.

    Args:
        patterns: files, folders, globs, fsspec URLs.
        key: of the text, in JSON and Parquet.
        max_bytes: of a JSON line.

    Raises:
        UserError: a file is not there, is of no known kind, is not what its name says, or has no such key.
    """
    known = (*rows.ENDINGS, *webpages.ENDINGS)
    files = find_inputs(patterns, "--documents", known)
    for file in files:
        if kind_of(file.place) not in known:
            hint = "give archives with --warcs" if kind_of(file.place) == ".warc" else "rename it"
            raise UserError(f"{file.place}: its ending is none of {' '.join(known)} (also .gz .bz2 .xz .zst); {hint}")
    texts = tuple(file for file in files if kind_of(file.place) in rows.ENDINGS)
    told_by_key = (file for file in texts if kind_of(file.place) in (*rows.JSON, *rows.PARQUET))
    for file in islice(told_by_key, LOOK):
        next(rows.read_items(file, key, max_bytes), None)
    return Documents(tuple(file for file in files if kind_of(file.place) in webpages.ENDINGS), texts)
