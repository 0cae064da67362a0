"""Asking once more for what failed: only the rows of a finished download whose reason may pass.

Shards with such rows are written anew under other names (`part-00003.retry-1.warc.gz`), what was fetched before is
copied as it is, and the new manifest replaces the old one in one act: until then the old download stands whole.
"""

import re
from collections.abc import Iterator

from warcio.archiveiterator import ArchiveIterator

from gpt2train.errors import RunError
from tasks.download.crawl import Crawler
from tasks.download.journal import Journal, journal_folder
from tasks.download.ledger import counts_of, ledgers_of
from tasks.download.parts import finish, write_part
from tasks.download.tally import HOSTS_FILE, hosts_file
from tasks.runner import Runner
from tasks.shards import read_rows
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

ROUND = re.compile(r"\.retry-(\d+)$")
COUNTED = ["bytes", "retryable", "reason"]


def retry(step: Step, done: Manifest, runner: Runner, crawler: Crawler, at_once: int) -> Manifest:
    """Fetch the retryable rows of a finished download; returns the new manifest.

    Args:
        step: the download.
        done: its manifest.
    """
    runner.skipped.discard(step.name)
    folder = step.folder
    stems = [record.name.removesuffix(".warc.gz") for record in done.outputs]
    ledgers = dict(zip(stems, ledgers_of(done.outcome.audit), strict=True))
    wanted = {stem: sum(row["retryable"] for row in read_rows(folder, ledgers[stem].name, COUNTED)) for stem in stems}
    stale = [stem for stem in stems if wanted[stem]]
    # The batches of this round are known by what they start from, not by the download that they mend.
    again = Step(
        step.root, step.name, version=step.version, parameters={}, inputs={"retry": done}, folder=step.folder_name
    )
    outcomes = runner.batches(
        again,
        "retry",
        stale,
        retry_part,
        crawler,
        again.fingerprint,
        where="thread",
        at_once=at_once,
        rows=[wanted[stem] for stem in stale],
    )
    mended = dict(zip(stale, outcomes, strict=True))
    rejected = {record.name: record for record in done.outcome.rejected}
    parts = []
    for stem, output in zip(stems, done.outputs, strict=True):
        if stem in mended:
            files = mended[stem]
        else:
            twin = rejected.get(f"rejected/{stem}.parquet")
            files = Outcome(outputs=(output,), audit=(ledgers[stem],), rejected=(twin,) if twin else ())
        (ledger,) = files.audit
        counts = counts_of(read_rows(folder, ledger.name, COUNTED))
        parts.append(
            counts.model_copy(update={"outputs": files.outputs, "audit": files.audit, "rejected": files.rejected})
        )
    hosts = hosts_file(done.outcome.audit)
    return finish(step, Outcome.total(parts), next_name(hosts.name.removesuffix(".parquet") if hosts else HOSTS_FILE))


def retry_part(folder: Folder, name: str, stem: str, crawler: Crawler, key: str) -> Outcome:
    """Fetch the retryable rows of one shard and write it anew, the rest as it was."""
    rows = list(read_rows(folder, f"ledger/{stem}.parquet"))
    wanted = [(index, row["url"], row["source"]) for index, row in enumerate(rows) if row["retryable"]]
    with Journal(journal_folder(folder) / name, key, [row["url"] for row in rows]) as journal:
        crawler.fetch(name, [item for item in wanted if item[0] not in journal.done], journal)
        fetched = {index: entry for (index, _, _), entry in zip(wanted, journal.rows(), strict=True)}
        merged = [fetched[index][0] if index in fetched else row for index, row in enumerate(rows)]

        def pages() -> Iterator[bytes]:
            before = records(folder, f"{stem}.warc.gz")
            for index, row in enumerate(rows):
                if index in fetched:
                    yield journal.page(*fetched[index][1:])
                elif not row["reason"]:
                    yield next(before)

        written = write_part(folder, next_name(stem), merged, pages())
    # Counted where all shards are: a limit on what a step rejects has seen these rows before.
    return Outcome(outputs=written.outputs, audit=written.audit, rejected=written.rejected)


def records(folder: Folder, name: str) -> Iterator[bytes]:
    """The packed response records of an archive, as they lie there."""
    with folder.open(name) as file:
        places = []
        iterator = ArchiveIterator(file)
        for record in iterator:
            kind = record.rec_type
            iterator.read_to_end(record)
            places.append((kind, iterator.get_record_offset(), iterator.get_record_length()))
        for kind, offset, length in places:
            if kind == "response":
                file.seek(offset)
                data = file.read(length)
                if len(data) != length:
                    raise RunError(f"{folder.url}/{name} is cut short; remove it and run again")
                yield data


def next_name(stem: str) -> str:
    """Name of a shard's files in the next round: `part-00003` -> `part-00003.retry-1` -> `part-00003.retry-2`."""
    found = ROUND.search(stem)
    return f"{ROUND.sub('', stem)}.retry-{int(found[1]) + 1 if found else 1}"
