"""The warcs step: existing web archives -> an index of their pages, without copying them.

`warcs/part-00000-00000.parquet` (schema `index.INDEX`), about `shard_rows` rows each, ends where a reader can start. A
file of rejected rows for each has the responses without a usable page and the broken records, by file and byte. One
batch per archive: it is read once from end to end here, and in parts by the extraction.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from gpt2train.errors import UserError
from gpt2train.settings import Settings
from tasks.blacklist.blocklists import read_blocklists
from tasks.blacklist.rules import EXTENSIONS, Rules, UrlClassifier, blocked_names
from tasks.blacklist.settings import BlacklistSettings
from tasks.core.document import strip_unstorable
from tasks.core.input_files import InputFile, find_inputs, kind_of
from tasks.core.runner import Runner
from tasks.core.shards import commit_rows, rejected_row
from tasks.core.step import Manifest, Outcome, Step, digest
from tasks.core.storage import Folder
from tasks.download.response_body import FetchRejectedError
from tasks.sources.archive_stream import RECORD, StreamPosition, open_archive
from tasks.sources.commit import commit_some
from tasks.sources.http_payload import page_of
from tasks.sources.index import INDEX, index_row, where_of, write_locations
from tasks.sources.warc_records import BrokenRecord, read_records

ENDINGS = (".warc",)
LISTED = b"crawl-data/"  # beginning of the lines of warc.paths.gz
MAX_SHARD_FACTOR = 50  # times `shard_rows` after which a shard ends even where no reader can start (no members)


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


def find_warcs(patterns: Sequence[str]) -> list[InputFile]:
    """Find and check the archives of `--warcs`.

    Raises:
        UserError: A file is missing or is not a WARC; the message says what it is.
    """
    for pattern in patterns:
        if "://" not in pattern and Path(pattern).is_file():
            _check_archive(pattern)  # before a large file is read for its hash
    files = find_inputs(patterns, "--warcs", ENDINGS)
    for file in files:
        _check_archive(file.location)
    return files


def _check_archive(location: str) -> None:
    """Reject a file that is not a web archive of pages.

    Raises:
        UserError: The file is something else; the message names the option for it.
    """
    if kind_of(location) == ".wet":
        raise UserError(f"{location} holds extracted text (WET); give it with --documents")
    with open_archive(location) as stream:
        head = stream.start()
    if head and not head.startswith(RECORD):
        hint = "give lists of URLs with --urls, text with --documents"
        if head.startswith(LISTED):
            hint = "it lists archives of Common Crawl: fetch those, or give their addresses"
        raise UserError(
            f"{location} is not a WARC: it begins with {head[:12]!r}, WARC/1.0 or WARC/1.1 expected; {hint}"
        )


def warcs(
    root: Folder,
    files: Sequence[InputFile],
    settings: WarcSettings,
    runner: Runner,
    blacklist: BlacklistSettings | None = None,
) -> Manifest:
    """Index the pages of archives into `warcs/`; one batch per archive.

    Args:
        root: Output URL.
        files: The archives.
        settings: Filters and limits.
        runner: Runner of the batches.
        blacklist: URL rules, for `settings.blacklist`.

    Raises:
        UserError: No archive holds a usable page; the message has the counts of the reasons.
    """
    inputs = {"files": digest([[file.name, file.identity] for file in files])}
    rules = None
    if settings.blacklist:
        rules = rules_of(blacklist or BlacklistSettings())
        inputs["rules"] = digest([rules.listed.digest, sorted(rules.names), rules.extensions, rules.min_length])
    step = Step(
        root,
        "warcs",
        version=2,
        parameters=settings,
        inputs=inputs,
        packages=("idna", "tld", "warcio"),
    )
    write_locations(step.folder, [[file] for file in files])
    if done := runner.finished(step):
        return done
    total = Outcome.total(
        runner.batches(step, "part", list(files), warcs_part, settings, rules, where=where_of(root, files))
    )
    what = "the archives given with --warcs hold no page that can be used"
    return commit_some(step, total, what, "no response records")


def rules_of(settings: BlacklistSettings) -> Rules:
    """Return the rules of the blacklist, without those for whole lists (duplicates, parity)."""
    names = blocked_names() if settings.block_names else frozenset()
    extensions = EXTENSIONS if settings.block_extensions else ()
    return Rules(names, extensions, read_blocklists(settings.domain_lists), settings.min_length)


def warcs_part(
    folder: Folder, name: str, file: InputFile, settings: WarcSettings, rules: Rules | None = None
) -> Outcome:
    """Index one archive; runs in a worker."""
    classify = UrlClassifier(rules) if rules is not None else None
    outcomes: list[Outcome] = []
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []

    def flush() -> None:
        shard = f"{name}-{len(outcomes):05d}.parquet"
        outcomes.append(commit_rows(folder, shard, kept, rejected, INDEX, {"bytes": sum(row["bytes"] for row in kept)}))
        kept.clear()
        rejected.clear()

    with open_archive(file.location) as stream:
        last = -1
        for record in read_records(stream, ("response",), settings.max_record):
            rows = len(kept) + len(rejected)
            if rows >= settings.shard_rows and (
                record.position.offset != last or rows >= MAX_SHARD_FACTOR * settings.shard_rows
            ):
                flush()
            last = record.position.offset
            try:
                if isinstance(record, BrokenRecord):
                    raise FetchRejectedError(record.reason, record.detail)
                if classify is not None and (verdict := classify(record.url))[0]:
                    raise FetchRejectedError(verdict[0], verdict[1])
                page = page_of(record, file.name, settings.max_bytes, settings.max_ratio)
            except FetchRejectedError as error:
                row = {"url": strip_unstorable(record.url), "source": file.name}
                rejected.append(
                    rejected_row(row, error.reason, f"{file.name}, byte {_format(record.position)}: {error.detail}")
                )
            else:
                kept.append(index_row(file, page, record))
    if kept or rejected or not outcomes:
        flush()
    return Outcome.total(outcomes)


def _format(position: StreamPosition) -> str:
    """Format a position for a message."""
    return f"{position.offset:,}" + (f" + {position.skip:,} unpacked" if position.skip else "")
