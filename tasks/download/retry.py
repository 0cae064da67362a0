"""Retry of a finished download: fetch again the rows that failed for a temporary reason.

Shards with such rows are rewritten under new names (`part-00003.retry-1.warc.gz`), with the pages fetched before copied
unchanged. The new manifest replaces the old one atomically; until then the old download stays valid.
"""

import re
from collections.abc import Iterator

from warcio.archiveiterator import ArchiveIterator

from gpt2train.errors import RunError
from tasks.core.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.core.step import Step
from tasks.core.storage import Folder
from tasks.download.crawl import Crawler
from tasks.download.host_stats import HOSTS_FILE
from tasks.download.journal import Journal, journal_folder
from tasks.download.ledger import counts_of, ledgers_of
from tasks.download.shard_writer import REFRESH, REFRESH_FACT, finish, write_shard

ROUND = re.compile(r"\.retry-(\d+)$")
COUNTED = ["bytes", "retryable", "reason"]


def retry(step: Step, done: Manifest, runner: Runner, crawler: Crawler, at_once: int) -> Manifest:
    """Fetch the retryable rows of a finished download, `at_once` shards at a time, and return the new manifest."""
    runner.skipped.discard(step.name)
    folder = step.folder
    stems = [record.name.removesuffix(".warc.gz") for record in done.outputs]
    ledgers = dict(zip(stems, ledgers_of(done.outcome.audit), strict=True))
    counts = {stem: counts_of(read_rows(folder, ledgers[stem].name, COUNTED)) for stem in stems}
    stale = [stem for stem in stems if counts[stem].facts["retryable"]]
    # The fingerprint of this round's batches depends on the manifest that they start from.
    retry_step = Step(
        step.root, step.name, version=step.version, parameters={}, inputs={"retry": done}, folder=step.folder_name
    )
    outcomes = runner.batches(
        retry_step,
        "retry",
        stale,
        retry_shard,
        crawler,
        retry_step.fingerprint,
        where="thread",
        at_once=at_once,
        rows=[counts[stem].facts["retryable"] for stem in stale],
    )
    rewritten = dict(zip(stale, outcomes, strict=True))
    rejected = {record.name: record for record in done.outcome.rejected}
    shards = []
    for stem, output in zip(stems, done.outputs, strict=True):
        if stem in rewritten:
            files = rewritten[stem]
            (ledger,) = files.audit
            counts[stem] = counts_of(read_rows(folder, ledger.name, COUNTED))
        else:
            rejects = rejected.get(f"rejected/{stem}.parquet")
            files = Outcome(outputs=(output,), audit=(ledgers[stem],), rejected=(rejects,) if rejects else ())
        named = {"outputs": files.outputs, "audit": files.audit, "rejected": files.rejected}
        shards.append(counts[stem].model_copy(update=named))
    names = [record.name for record in done.outcome.audit if record.name.startswith(HOSTS_FILE)]
    hosts = next_name(names[0].removesuffix(".parquet") if names else HOSTS_FILE)
    refreshed = Outcome(
        audit=tuple(record for record in done.outcome.audit if record.name.startswith(REFRESH)),
        facts={name: count for name, count in done.outcome.facts.items() if name.startswith(REFRESH_FACT)},
    )
    return finish(step, Outcome.total([*shards, refreshed]), hosts)


def retry_shard(folder: Folder, name: str, stem: str, crawler: Crawler, key: str) -> Outcome:
    """Fetch the retryable rows of one shard and rewrite the shard with all other rows unchanged."""
    rows = list(read_rows(folder, f"ledger/{stem}.parquet"))
    pending = [(index, row["url"], row["source"]) for index, row in enumerate(rows) if row["retryable"]]
    with Journal(journal_folder(folder) / name, key, [row["url"] for row in rows]) as journal:
        crawler.fetch(name, [item for item in pending if item[0] not in journal.done], journal)
        fetched = {index: entry for (index, _, _), entry in zip(pending, journal.rows(), strict=True)}
        merged = [fetched[index][0] if index in fetched else row for index, row in enumerate(rows)]

        def pages() -> Iterator[bytes]:
            before = records(folder, f"{stem}.warc.gz")
            for index, row in enumerate(rows):
                if index in fetched:
                    yield journal.page(*fetched[index][1:])
                elif not row["reason"]:
                    yield next(before)

        written = write_shard(folder, next_name(stem), merged, pages())
    # Without counts, which `retry` adds up over all shards: the reject limit has counted these rows before.
    return Outcome(outputs=written.outputs, audit=written.audit, rejected=written.rejected)


def records(folder: Folder, name: str) -> Iterator[bytes]:
    """Yield the response records of an archive in their compressed form."""
    with folder.open(name) as file:
        spans = []
        iterator = ArchiveIterator(file)
        for record in iterator:
            kind = record.rec_type
            iterator.read_to_end(record)
            spans.append((kind, iterator.get_record_offset(), iterator.get_record_length()))
        for kind, offset, length in spans:
            if kind == "response":
                file.seek(offset)
                data = file.read(length)
                if len(data) != length:
                    raise RunError(f"{folder.url}/{name} is truncated; remove it and run again")
                yield data


def next_name(stem: str) -> str:
    """Return the name of a shard in the next round: `part-00003` -> `part-00003.retry-1` -> `part-00003.retry-2`."""
    found = ROUND.search(stem)
    return f"{ROUND.sub('', stem)}.retry-{int(found[1]) + 1 if found else 1}"
