"""Settings of the steps that read given files: texts, warcs, webpages."""

from collections.abc import Mapping
from operator import not_

from pydantic import Field

from gpt2train.settings import Settings

KEYS = ("url", "id", "title", "date")  # keys of a record that are read if present, beside the text
# Names of published corpora for them, which count where the row has none of those: HPLT's, OSCAR's; C4's and
# CulturaX's, Dolma's, RedPajama's, HPLT's, DCLM's, OSCAR's.
OTHERS = {
    "url": ("u", "warc_headers.warc-target-uri"),
    "date": ("timestamp", "created", "date_download", "ts", "metadata.WARC-Date", "warc_headers.warc-date"),
}
# The keys also in the nested objects of dolma's and RedPajama's rows.
Paths = Mapping[str, tuple[str, ...]]
PATHS: Paths = {key: (key, f"metadata.{key}", f"meta.{key}", *OTHERS.get(key, ())) for key in KEYS}


class TextsSettings(Settings):
    """Settings of the texts step: size limits and shard sizes."""

    max_bytes: int = Field(16 * 2**20, ge=1)
    """Maximum bytes of one JSON line, text or text file; longer ones are rejected without being read into memory."""
    shard_rows: int = Field(5000, ge=1)
    """Documents per shard. A shard is one batch of the cleaning, and is repeated after a kill."""
    shard_bytes: int = Field(64 * 2**20, ge=1)
    """Characters of text after which a shard ends early, because it is held in memory."""
    separator: str = ""
    """String between the documents of a text file, such as <|endoftext|>; without one a file is a document."""
    id_key: str = Field("id", min_length=1, exclude_if=lambda key: key == "id")
    """Key of a document's id in JSON lines, and name of its column in Parquet."""
    license_key: str = Field("", exclude_if=not_)
    """Key or column of a document's licence, one or a list; the passport counts them."""

    @property
    def paths(self) -> Paths:
        """Keys that are read beside the text."""
        own = {"id": (self.id_key, *PATHS["id"][1:])} | ({"license": (self.license_key,)} if self.license_key else {})
        return {**PATHS, **own}


class WarcSettings(Settings):
    """Settings of the warcs step: shard size, filters and size limits."""

    shard_rows: int = Field(1000, ge=1)
    """Pages per shard of the index. A shard is one batch of the extraction, and is repeated after a kill."""
    blacklist: bool = False
    """Drop pages whose URL the [blacklist] rules drop. Duplicate URLs stay: the deduplication compares the texts."""
    max_record: int = Field(8 * 2**20, ge=1)
    """Maximum bytes of one page in the archive."""
    max_bytes: int = Field(16 * 2**20, ge=1)
    """Maximum bytes of one page when decoded."""
    max_ratio: float = Field(100.0, ge=1)
    """Maximum ratio of decoded bytes to bytes in the archive, above 1 MiB. Limits compression bombs."""


class WebpagesSettings(Settings):
    """Settings of the webpages step: size limit and shard sizes."""

    max_bytes: int = Field(16 * 2**20, ge=1)
    """Maximum bytes of one page, decompressed."""
    shard_rows: int = Field(1000, ge=1)
    """Pages per shard of the index. A shard is one batch of the extraction, and is repeated after a kill."""
    shard_bytes: int = Field(256 * 2**20, ge=1)
    """Bytes of files after which a shard ends early."""
