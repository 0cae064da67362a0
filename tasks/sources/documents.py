"""Files of `--documents`: classified by their suffixes and checked before anything starts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from gpt2train.data.documents import COLUMN_NAMES, JSON_NAMES, TEXT_NAMES, scraped_text
from gpt2train.data.packed_file import PACKED
from gpt2train.errors import DamagedFileError, UserError
from gpt2train.store.manifest import digest
from tasks.core.input_files import WIKI_KIND, InputFile, find_inputs, kind_of
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
            hint = "give archives with --warcs" if kind_of(location) == ".warc" else "convert, unpack or rename it"
            raise UserError(f"{location}: its ending is none of {' '.join(known)} (also {' '.join(PACKED)}); {hint}")

    files = _with_meta(find_inputs(patterns, "--documents", known, faults=True, check=check))
    texts = tuple(file for file in files if kind_of(file.location) in text_records.ENDINGS)
    readable = [file for file in texts if file.fault is None]
    keyed = (file for file in readable if kind_of(file.location) in (*JSON_NAMES, *COLUMN_NAMES, WIKI_KIND))
    plain = (file for file in readable if kind_of(file.location) in TEXT_NAMES)
    for file in (*islice(keyed, CHECKED_FILES), *islice(plain, CHECKED_FILES)):
        try:
            text_records.check_format(file, key, max_bytes)
        except DamagedFileError:
            if file.location in patterns:  # one of a folder is a rejected row
                raise
    return Documents(tuple(file for file in files if kind_of(file.location) in webpages.ENDINGS), texts)


def _with_meta(files: Sequence[InputFile]) -> list[InputFile]:
    """Give each text of a crawler's tree, `data/NAME.txt`, its `meta/NAME.json`, which is no document of its own."""
    meta = {text: file for file in files if file.fault is None and (text := scraped_text(file.location))}
    names = {file.location for file in files}
    trees = {text.rpartition("/")[0] for text in meta if text in names}
    found: list[InputFile] = []
    for file in files:
        if (text := scraped_text(file.location)) and text.rpartition("/")[0] in trees:
            found += [] if text in names else [replace(file, fault="its text is missing in data/")]
            continue
        if pair := meta.get(file.location) or _meta_beside(file):
            file = replace(file, meta=pair.location, identity=digest([file.identity, pair.identity]))
        found.append(file)
    return found


def _meta_beside(file: InputFile) -> InputFile | None:
    """Return the metadata of a text if a local folder `data/` was given without the `meta/` beside it, else None."""
    path = Path(file.location)
    if file.fault or "://" in file.location or path.parent.name != "data" or path.suffix != ".txt":
        return None
    beside = path.parent.parent / "meta" / f"{path.stem}.json"
    return find_inputs([str(beside)], "--documents", ())[0] if beside.is_file() else None
