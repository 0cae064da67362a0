"""The warcs step: existing web archives -> an index of their pages, without copying them.

`warcs/part-00000-00000.parquet` (schema `index.INDEX`), about `shard_rows` rows each, ends where a reader can start. A
file of rejected rows for each has the responses without a usable page and the broken records, by file and byte. One
batch per archive: it is read once from end to end here, and in parts by the extraction.
"""

from collections import Counter
from collections.abc import Sequence

from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome, digest
from tasks.blacklist.rules import Rules, UrlClassifier, rules_of
from tasks.blacklist.settings import BlacklistSettings
from tasks.core.document import strip_unstorable
from tasks.core.forgotten import read_forgotten
from tasks.core.input_files import InputFile, check_unchanged, commits_of, find_inputs, kind_of, where_to_read
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.download.consent.settings import ConsentSettings
from tasks.download.response_body import FetchRejectedError
from tasks.sources.archive_stream import RECORD, open_archive
from tasks.sources.archived_consent import check_consent
from tasks.sources.http_payload import is_page, page_of
from tasks.sources.index import INDEX, PAGE_KINDS, index_row, write_locations
from tasks.sources.settings import WarcSettings
from tasks.sources.user_files import ShardWriter, commit_some, identity_of
from tasks.sources.warc_records import BrokenRecord, Record, read_records

ENDINGS = (".warc",)
HINTS = {  # by first bytes of a file that is no WARC; the last is that of any other
    b"crawl-data/": "it lists archives of Common Crawl: fetch those, or give their addresses",  # warc.paths.gz
    b"PK\x03\x04": "it is a zip; the archives of a WACZ are 'zip://archive/*.warc.gz::FILE'",
    b"filedesc:": "it is an ARC: warcio recompress IN.arc.gz OUT.warc.gz converts it",
    b"": "give lists of URLs with --urls, text with --documents",
}
MAX_SHARD_FACTOR = 50  # times `shard_rows` after which a shard ends even where no reader can start (no members)


class ArchiveConsent(ConsentSettings):
    """Consent signals that are honoured, and the name of the crawler that they are read for."""

    agent: str


def find_warcs(patterns: Sequence[str]) -> list[InputFile]:
    """Find and check the archives of `--warcs`.

    Raises:
        UserError: A file is missing or is not a WARC; the message says what it is.
    """
    return find_inputs(patterns, "--warcs", ENDINGS, check=_check_archive)


def _check_archive(location: str) -> None:
    """Raise a `UserError` for a file that is not a web archive of pages; the message names the option for it."""
    if kind_of(location) == ".wet":
        raise UserError(f"{location} holds extracted text (WET); give it with --documents")
    with open_archive(location) as stream:
        head = stream.start()
    if head and not head.startswith(RECORD):
        hint = next(hint for first, hint in HINTS.items() if head.startswith(first))
        raise UserError(f"{location} is not a WARC: it begins with {head[:12]!r}, WARC/1.0 or 1.1 expected; {hint}")


def warcs(
    root: Folder,
    files: Sequence[InputFile],
    settings: WarcSettings,
    runner: Runner,
    blacklist: BlacklistSettings | None = None,
    consent: ArchiveConsent | None = None,
) -> Manifest:
    """Index the pages of archives into `warcs/`; one batch per archive. `blacklist` holds the rules for its setting.

    Pages whose header or tags refuse their use are rejected, if `consent` is given and enabled.

    Raises:
        UserError: No archive holds a usable page; the message has the counts of the reasons.
    """
    inputs = {"files": identity_of(files), **read_forgotten(root).inputs}
    rules = None
    if settings.blacklist:
        rules = rules_of(blacklist or BlacklistSettings())
        inputs["rules"] = digest([rules.listed.digest, sorted(rules.names), rules.extensions, rules.min_length])
    parameters = settings.model_dump(mode="json")
    if consent is not None and not consent.enabled:
        consent = None
    if consent is not None:
        parameters["consent"] = consent.model_dump(mode="json")
    packages = ("idna", "tld", "warcio", *(("libxml2", "lxml") if consent else ()))
    read = commits_of(files)
    step = Step(root, "warcs", version=13, parameters=parameters, inputs=inputs, packages=packages, commits=read)
    write_locations(step.folder, [[file] for file in files])
    if done := runner.finished(step):
        return done
    where = where_to_read(files, root)
    outcomes = runner.batches(step, "part", list(files), warcs_part, settings, rules, consent, where=where)
    what = "the archives given with --warcs hold no page that can be used"
    return commit_some(step, outcomes, what, "no record of a page")


def warcs_part(
    folder: Folder,
    name: str,
    file: InputFile,
    settings: WarcSettings,
    rules: Rules | None = None,
    consent: ArchiveConsent | None = None,
) -> Outcome:
    """Index one archive; runs in a worker."""
    classify = UrlClassifier(rules) if rules is not None else None
    signals: Counter[str] = Counter()  # of the pages that are kept
    shards = ShardWriter(folder, name, INDEX, "bytes", lambda row: int(row["bytes"]))
    with open_archive(file.location) as stream:
        last = -1
        for record in read_records(stream, PAGE_KINDS, settings.max_record):
            if isinstance(record, Record) and not is_page(record):
                continue
            full, overfull = settings.shard_rows, MAX_SHARD_FACTOR * settings.shard_rows
            if shards.rows >= (full if record.position.offset != last else overfull):
                shards.end_shard()
            last = record.position.offset
            try:
                if isinstance(record, BrokenRecord):
                    raise FetchRejectedError(record.reason, record.detail)
                if classify is not None and (verdict := classify(record.url))[0]:
                    raise FetchRejectedError(verdict[0], verdict[1])
                page = page_of(record, file.name, settings.max_bytes, settings.max_ratio)
                if consent is not None:
                    found = check_consent(page, record, consent, consent.agent)
                    signals.update(signal.name for signal in found.signals)
            except FetchRejectedError as error:
                row, (offset, skip) = {"url": strip_unstorable(record.url), "source": file.name}, record.position
                place = f"{offset:,}" + (f" + {skip:,} unpacked" if skip else "")
                shards.reject(row, error.reason, f"{file.name}, byte {place}: {error.detail}")
            else:
                shards.keep(index_row(file, page, record))
    check_unchanged(file)
    outcome = shards.close()
    facts = {f"{signal}_signals": count for signal, count in sorted(signals.items())}
    return outcome.model_copy(update={"facts": outcome.facts | facts})
