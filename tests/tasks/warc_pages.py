"""Archives of pages, as the download writes them."""

from collections.abc import Iterable
from pathlib import Path

from tasks.download.warc import EMPTY, Page, encode_record


def write_pages(path: Path, pages: Iterable[Page]) -> int:
    """Write pages as one `.warc.gz` file and return their number.

    The bytes depend only on the pages: a record's id is a hash of its URL and content.
    """
    records = [encode_record(page) for page in pages]
    path.write_bytes(b"".join(records) or EMPTY)
    return len(records)
