"""Web archives of others as a source of pages: found, checked, and cut into batches, without a copy.

`warcs/part-00000-00000.parquet` (schema `index.INDEX`), about `shard_rows` rows each, cut where a reader can begin; a
rejected twin for each with the responses that are no usable page and the records that are broken, named by file and
byte. One batch a file; so a file is read once from end to end here, and in parts by the extraction.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from gpt2train.errors import UserError
from gpt2train.settings import Settings
from tasks.blacklist.listed import read_listed
from tasks.blacklist.rules import EXTENSIONS, Judge, Rules, blocked_names
from tasks.blacklist.settings import BlacklistSettings
from tasks.download.body import Refused
from tasks.html.decode import storable
from tasks.inputs import InputFile, find_inputs, kind_of
from tasks.runner import Runner
from tasks.shards import commit_rows, rejected_row
from tasks.sources.commit import commit_some
from tasks.sources.index import INDEX, index_row, where_of, write_places
from tasks.sources.payload import page_of
from tasks.sources.records import Broken, read_records
from tasks.sources.stream import RECORD, Place, open_archive
from tasks.steps import Manifest, Outcome, Step, digest
from tasks.storage import Folder

ENDINGS = (".warc",)
LISTED = b"crawl-data/"  # as the lines of warc.paths.gz begin
FURTHER = 50  # times `shard_rows` at which a shard ends where a reader must unpack the archive from its beginning


class WarcSettings(Settings):
    """Which pages of an archive are taken."""

    shard_rows: int = Field(1000, ge=1)
    """Pages a shard of the index; a shard is what the extraction takes, and repeats when killed, at a time."""
    blacklist: bool = False
    """Drop pages whose URL the [blacklist] rules drop. Repeated URLs stay: the deduplication looks at the texts."""
    max_record: int = Field(8 * 2**20, ge=1)
    """Bytes of one page as it lies in the archive."""
    max_bytes: int = Field(16 * 2**20, ge=1)
    """Bytes of one page when decoded."""
    max_ratio: float = Field(100.0, ge=1)
    """Decoded bytes for each byte in the archive, above 1 MiB: what makes far more is a compression bomb."""


def find_warcs(patterns: Sequence[str]) -> list[InputFile]:
    """The archives that `--warcs` names.

    Raises:
        UserError: one is not there or is no WARC; the message says what it is.
    """
    files = find_inputs(patterns, "--warcs", ENDINGS)
    for file in files:
        if kind_of(file.place) == ".wet":
            raise UserError(f"{file.place} holds extracted text (WET); give it with --documents")
        with open_archive(file.place) as stream:
            head = stream.start()
        if head and not head.startswith(RECORD):
            hint = "give lists of URLs with --urls, text with --documents"
            if head.startswith(LISTED):
                hint = "it lists archives of Common Crawl: fetch those, or give their addresses"
            raise UserError(
                f"{file.place} is no WARC: it begins with {head[:12]!r}, WARC/1.0 or WARC/1.1 expected; {hint}"
            )
    return files


def warcs(
    root: Folder,
    files: Sequence[InputFile],
    settings: WarcSettings,
    runner: Runner,
    blacklist: BlacklistSettings | None = None,
) -> Manifest:
    """Index the pages of archives into `warcs/`; one batch a file.

    Args:
        root: the output URL.
        files: the archives.
        settings: which pages are taken.
        runner: where the batches run.
        blacklist: the rules, for `settings.blacklist`.

    Raises:
        UserError: no archive holds a page that can be used; the message counts the reasons.
    """
    inputs = {"files": digest([[file.name, file.identity] for file in files])}
    rules = None
    if settings.blacklist:
        rules = rules_of(blacklist or BlacklistSettings())
        inputs["rules"] = digest([rules.listed.digest, sorted(rules.names), rules.extensions, rules.min_length])
    step = Step(
        root,
        "warcs",
        version=1,
        parameters=settings,
        inputs=inputs,
        packages=("brotli", "warcio"),
    )
    write_places(step.folder, [[file] for file in files])
    if done := runner.finished(step):
        return done
    total = Outcome.total(
        runner.batches(step, "part", list(files), warcs_part, settings, rules, where=where_of(root, files))
    )
    what = "the archives given with --warcs hold no page that can be used"
    return commit_some(step, total, what, "no response records")


def rules_of(settings: BlacklistSettings) -> Rules:
    """The rules of the blacklist, but for its peculiarities that concern lists (repetition, parity)."""
    names = blocked_names() if settings.block_names else frozenset()
    extensions = EXTENSIONS if settings.block_extensions else ()
    return Rules(names, extensions, read_listed(settings.domain_lists), settings.min_length)


def warcs_part(
    folder: Folder, name: str, file: InputFile, settings: WarcSettings, rules: Rules | None = None
) -> Outcome:
    """Index one archive; runs in a worker."""
    judge = Judge(rules) if rules is not None else None
    outcomes: list[Outcome] = []
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []

    def flush() -> None:
        shard = f"{name}-{len(outcomes):05d}.parquet"
        outcomes.append(commit_rows(folder, shard, kept, rejected, INDEX, {"bytes": sum(row["bytes"] for row in kept)}))
        kept.clear()
        rejected.clear()

    with open_archive(file.place) as stream:
        last = -1
        for record in read_records(stream, ("response",), settings.max_record):
            rows = len(kept) + len(rejected)
            if rows >= settings.shard_rows and (record.place.offset != last or rows >= FURTHER * settings.shard_rows):
                flush()
            last = record.place.offset
            try:
                if isinstance(record, Broken):
                    raise Refused(record.reason, record.detail)
                if judge is not None and (verdict := judge(record.url))[0]:
                    raise Refused(verdict[0], verdict[1])
                page = page_of(record, file.name, settings.max_bytes, settings.max_ratio)
            except Refused as error:
                row = {"url": storable(record.url), "source": file.name}
                rejected.append(
                    rejected_row(row, error.reason, f"{file.name}, byte {_at(record.place)}: {error.detail}")
                )
            else:
                kept.append(index_row(file, page, record))
    if kept or rejected or not outcomes:
        flush()
    return Outcome.total(outcomes)


def _at(place: Place) -> str:
    """A place as a person reads it."""
    return f"{place.offset:,}" + (f" + {place.skip:,} unpacked" if place.skip else "")
