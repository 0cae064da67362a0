"""Output of a download and its retry: the files of one shard, and the manifest."""

from collections.abc import Iterable, Sequence

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.forgotten import forgotten_beside
from tasks.core.shards import REJECTED, rejected_row, write_rows, write_table
from tasks.core.step import Step
from tasks.download.host_stats import CONSENT_FILE, HOSTS_FILE, signal_counts, tally_hosts, tally_signals
from tasks.download.journal import clear_journals
from tasks.download.ledger import LEDGERS, Row, content_of, counts_of, ledgers_of, schema_of, without_forgotten
from tasks.download.warc import is_forgotten, write_archive

REFRESH = "refresh/"  # folder of what the last refresh found
REFRESH_FACT = "refresh_"  # prefix of the facts with the number of URLs by change
CHANGES = ("new", "changed", "gone", "unchanged", "fresh", "kept", "missing")  # `revisit.py` says what they mean


def write_shard(folder: Folder, name: str, rows: Sequence[Row], pages: Iterable[bytes]) -> Outcome:
    """Write the archive, the ledger and the rejected rows of one shard; a row without a page has an empty record.

    Pages that were redirected to a forgotten one are left out; before the removal they may have come to the journal.
    """
    if forgotten := forgotten_beside(folder):
        rows = without_forgotten(rows, forgotten)
        pages = (page for page in pages if not is_forgotten(page, forgotten))
    dates = [row["fetched_at"] for row in rows if not row["reason"]]
    rejected = [rejected_row(row, row["reason"], row["detail"]) for row in rows if row["reason"]]
    return counts_of(rows).model_copy(
        update={
            "outputs": (write_archive(folder, f"{name}.warc.gz", dates, pages),),
            "audit": (write_rows(folder, f"{LEDGERS}{name}.parquet", rows, schema_of(rows)),),
            "rejected": (write_rows(folder, f"rejected/{name}.parquet", rejected, REJECTED),) if rejected else (),
        }
    )


def finish(step: Step, total: Outcome, hosts_name: str = HOSTS_FILE) -> Manifest:
    """Write the host table, named `hosts_name` without suffix, and the manifest.

    Raises:
        RunError: No page could be fetched.
    """
    if not total.kept:
        clear_journals(step.folder)
        remedy = "check the network and run again"
        if [*total.reasons] == ["not_public_address"]:
            remedy = "add networks of your own that are allowed to download.allow_private"
        raise RunError(f"none of the {total.seen} pages could be fetched ({step.reasons_of(total)}); {remedy}")
    ledgers = ledgers_of(total.audit)
    hosts = write_table(step.folder, f"{hosts_name}.parquet", tally_hosts(step.folder, ledgers))
    total = total.model_copy(update={"audit": (*total.audit, hosts)})
    if "consent" in step.parameters:
        table = tally_signals(step.folder, ledgers)
        record = write_table(step.folder, f"{hosts_name.replace(HOSTS_FILE, CONSENT_FILE, 1)}.parquet", table)
        facts = total.facts | signal_counts(table)
        total = total.model_copy(update={"audit": (*total.audit, record), "facts": dict(sorted(facts.items()))})
    clear_journals(step.folder)  # every shard is committed, so that a run killed from here on leaves no journal
    return step.commit(total, content=content_of(step.folder, ledgers))


def changes(download: Manifest) -> dict[str, int]:
    """Return the number of URLs by change at the last refresh; empty if there was none."""
    facts = download.outcome.facts
    return {change: facts[REFRESH_FACT + change] for change in CHANGES if REFRESH_FACT + change in facts}
