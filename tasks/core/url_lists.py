"""Streaming readers of URL lists: text with one URL per line, compressed or not, or Parquet with a column `url`.

Blank lines and lines that begin with `#` are skipped, and white space around a line is removed. Validation of the URLs
is left to the blacklist step.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.data.documents import JSON_NAMES, PARQUET_NAMES, encoding_of, no_mark, read_lines
from gpt2train.data.parquet_column import is_text
from gpt2train.errors import UserError
from tasks.core.input_files import BLOCK, InputFile, find_inputs, kind_of, open_input, open_raw

TEXT = (".txt", ".lst")
LONGEST = 8192  # bytes of a URL; longer ones are crawler traps or not URLs
COLUMN = "url"
TABLE = "give its URLs alone, one per line, or Parquet with a column 'url'"
LINES = 100  # of a list, whose form is looked at
DOCUMENTS = (*JSON_NAMES, ".html", ".htm", ".xhtml")
LISTED = b"crawl-data/"  # beginning of the lines of Common Crawl's warc.paths.gz
ROWS = 8192  # of a Parquet file, in memory at a time
# URL whose host needs no parser: in lower-case ASCII, not in brackets, without a user name before it.
_PLAIN_HOST = re.compile(r"https?://([a-z0-9.-]+)(?::[0-9]*)?(?:[/?#]|\Z)")
_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#]*@)?(?P<host>\[[^\]/]*\]|[^/?#:@]+)"
# Scheme and slashes, if present, then everything before the last @ of the authority. Browsers treat a backslash as a
# slash.
_USERINFO = re.compile(r"([^/?#\\@.]*:[/\\]*|[/\\]{2,})?[^/?#\\]*@")


def find_url_lists(patterns: Sequence[str]) -> list[InputFile]:
    """Find the lists that match the patterns, and check the beginning of each.

    Raises:
        UserError: A file is missing, cannot be read, or holds no URL; or it is an archive or holds documents, and the
            message names the option for it.
    """
    for pattern in patterns:
        _check_kind(pattern, b"")  # before a large file is read for its hash
    lists = find_inputs(patterns, "--urls", (*TEXT, *PARQUET_NAMES), check=_check_start)
    for item in lists:
        if next(read_urls(item.location), None) is None:
            raise UserError(f"{item.location} holds no URL; one per line is expected")
    return lists


def _check_start(location: str) -> None:
    """Reject a file that is not a list, by its name and first bytes.

    Raises:
        UserError: The file is something else or cannot be read.
    """
    if kind_of(location) in PARQUET_NAMES:
        return
    with open_input(location) as stream:
        head = stream.read(BLOCK)  # so much that a truncated list of some thousand URLs is found here
        _check_kind(location, head[:256].removeprefix(b"\xef\xbb\xbf").lstrip())
        lines = [line.split() for line in head.decode(errors="replace").splitlines()[:LINES] if "://" in line]
        if len(lines) > 1 and all(len(parts) > 1 for parts in lines):  # the crawl would ask for URLs that do not exist
            raise UserError(f"{location} has more than a URL in each line; {TABLE}; write a space of a URL as %20")
        if len(lines) > 1 and all(parts[0][0] in "\"'<" or parts[-1].endswith(",") for parts in lines):
            raise UserError(f"{location} has quotes, commas or <> around its URLs; {TABLE}")
        if b"\r" in head.strip() and b"\n" not in head:  # as spreadsheets of macOS write text
            remedy = r"convert it: tr '\r' '\n' < IN > OUT"
            raise UserError(f"{location} is a single line: its lines end in carriage returns; {remedy}")


def _check_kind(location: str, head: bytes) -> None:
    kind = kind_of(location)
    if kind == ".wet" or (head.startswith(b"WARC/") and b"\nWARC-Type: conversion" in head):
        raise UserError(f"{location} holds extracted text (WET), not a list of URLs; give it with --documents")
    if kind == ".warc" or head.startswith(b"WARC/"):
        raise UserError(f"{location} is a web archive, not a list of URLs; give it with --warcs")
    if kind in DOCUMENTS or (head.startswith((b"{", b"<", b"[{")) and not head.startswith(b"<http")):
        raise UserError(f"{location} holds documents, not a list of URLs; give it with --documents")
    if kind in (".csv", ".tsv"):  # read by lines, the other columns would be parts of the URLs
        raise UserError(f"{location} is a table; {TABLE}")
    if (encoding := encoding_of(head)) != "utf-8" or no_mark(head):
        remedy = (
            no_mark(head)
            or f"as its byte order mark says; convert it: iconv -f {encoding[:6].upper()} -t UTF-8 IN > OUT"
        )
        raise UserError(f"{location} is not UTF-8, {remedy}")
    if b"\0" in head:
        raise UserError(f"{location} is not text; a list of URLs has one per line, or is Parquet with a column 'url'")
    if head.startswith(LISTED):
        raise UserError(f"{location} lists archives of Common Crawl, not pages; fetch those and give them with --warcs")


def read_urls(location: str) -> Iterator[tuple[int, str | None]]:
    """Yield the URLs of a list with their row numbers, from 1; None for a row of more than `LONGEST` bytes.

    Raises:
        UserError: The file cannot be read or does not have the format of its suffix; the message names the file.
    """
    return _read_parquet(location) if kind_of(location) in PARQUET_NAMES else _read_text(location)


def without_credentials(url: str) -> str:
    """Remove the user name and password before the host of a URL, well formed or not."""
    found = _USERINFO.match(url) if "@" in url else None
    return (found[1] or "") + url[found.end() :] if found else url


def host_of(url: str) -> str:
    """Return the host of any text that may be a URL; empty if it has none."""
    if found := _PLAIN_HOST.match(url):  # nearly all URLs: 0.3 µs instead of 3
        return found[1]
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def hosts_of(urls: Any) -> Any:
    """Return the hosts of an Arrow array of URLs: an IPv6 address in its brackets, null where a text has no host."""
    return pc.utf8_lower(pc.struct_field(pc.extract_regex(urls, _HOST), "host"))


def _read_text(location: str) -> Iterator[tuple[int, str | None]]:
    with open_input(location) as stream:
        for number, line in read_lines(stream, LONGEST):
            if line is None:
                yield number, None
                continue
            url = line.decode(errors="replace").strip().removeprefix("\ufeff").strip()  # a mark where files were joined
            if url and not url.startswith("#"):
                yield number, url


def _read_parquet(location: str) -> Iterator[tuple[int, str | None]]:
    number = 0
    try:
        with open_raw(location) as file:
            table = pq.ParquetFile(file)
            names = table.schema_arrow.names
            if names.count(COLUMN) != 1:
                none = f"no column {COLUMN!r}, only {', '.join(names)}"
                found = f"several columns {COLUMN!r}" if COLUMN in names else none
                remedy = "rename the one with the URLs, or give documents with --documents"
                raise UserError(f"{location} has {found}; {remedy}")
            kind = table.schema_arrow.field(COLUMN).type
            if not is_text(kind):
                raise UserError(f"column {COLUMN!r} of {location} holds {kind}, strings expected; give another file")
            for batch in table.iter_batches(batch_size=ROWS, columns=[COLUMN]):
                column = batch[COLUMN]
                column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                for value in column.cast(pa.large_binary()).to_pylist():
                    number += 1
                    url = (value or b"").decode("utf-8", errors="replace").strip()
                    yield number, url if len(value or b"") <= LONGEST else None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{location} is not a readable Parquet file ({error}); fetch it again or rename it") from error
