"""What a download and its retry write alike: the files of one shard, and the manifest over all."""

from collections.abc import Iterable, Sequence

from gpt2train.errors import RunError
from tasks.download.journal import clear_journals
from tasks.download.ledger import LEDGER, LEDGERS, Row, content_of, counts_of, ledgers_of, rejected_rows
from tasks.download.tally import HOSTS_FILE, tally_hosts
from tasks.download.warc import EMPTY, encode_head
from tasks.shards import REJECTED, write_rows, write_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder


def write_part(folder: Folder, name: str, rows: Sequence[Row], pages: Iterable[bytes]) -> Outcome:
    """Write the archive, the ledger and the rejected rows of one shard.

    Args:
        rows: of the ledger, in the order of the list.
        pages: the WARC record of each row; empty where it has none.
    """
    dates = [row["fetched_at"] for row in rows if not row["reason"]]
    archive = f"{name}.warc.gz"
    with folder.writing(archive) as draft, draft.open("wb") as file:
        file.write(encode_head(archive, min(dates)) if dates else EMPTY)
        file.writelines(pages)
    rejected = rejected_rows(rows)
    return counts_of(rows).model_copy(
        update={
            "outputs": (folder.record(archive, rows=len(dates)),),
            "audit": (write_rows(folder, f"{LEDGERS}{name}.parquet", rows, LEDGER),),
            "rejected": (write_rows(folder, f"rejected/{name}.parquet", rejected, REJECTED),) if rejected else (),
        }
    )


def finish(step: Step, total: Outcome, hosts_name: str = HOSTS_FILE) -> Manifest:
    """Add the table of hosts, and write the manifest."""
    if not total.kept:
        step.forget_batches()  # or the next run would believe them
        clear_journals(step.folder)
        counts = ", ".join(f"{reason} {count}" for reason, count in total.reasons.items())
        remedy = "check the network and run again"
        if [*total.reasons] == ["not_public_address"]:
            remedy = "download.allow_private names networks of your own that may be asked"
        raise RunError(f"none of the {total.seen} pages could be fetched ({counts}); {remedy}")
    ledgers = ledgers_of(total.audit)
    hosts = write_table(step.folder, f"{hosts_name}.parquet", tally_hosts(step.folder, ledgers))
    total = total.model_copy(update={"audit": (*total.audit, hosts)})
    manifest = step.commit(total, content=content_of(step.folder, ledgers))
    clear_journals(step.folder)
    return manifest
