"""Pages of a shard from any source: WARC files of the download, or an index of the user's files."""

from collections.abc import Iterator

from tasks.core.storage import Folder
from tasks.download.warc import Page
from tasks.download.warc import read_pages as read_fetched
from tasks.sources.index import read_indexed


def read_pages(folder: Folder, shard: str) -> Iterator[Page]:
    """Yield the HTML pages of a shard in order, with one page in memory at a time.

    Raises:
        RunError: The archive is damaged, or a user's file has changed; the message names it.
    """
    return read_indexed(folder, shard) if shard.endswith(".parquet") else read_fetched(folder, shard)
