"""The pages of a shard, whichever source they come from: WARC files that the download wrote, or an index."""

from collections.abc import Iterator

from tasks.download.warc import Page
from tasks.download.warc import read_pages as read_fetched
from tasks.sources.index import read_indexed
from tasks.storage import Folder


def read_pages(folder: Folder, shard: str) -> Iterator[Page]:
    """HTML pages in order, one in memory at a time.

    Raises:
        RunError: the archive is damaged, or a file of the user has changed; the message names it.
    """
    return read_indexed(folder, shard) if shard.endswith(".parquet") else read_fetched(folder, shard)
