"""Deduplication as a step: the stages in order."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.errors import UserError
from tasks.dedup.candidates import find_candidates
from tasks.dedup.clusters import find_clusters
from tasks.dedup.collect import collect_group
from tasks.dedup.earlier import groups_of, open_earlier
from tasks.dedup.exact import find_exact
from tasks.dedup.groups import ROW, Group, cut, read_dropped
from tasks.dedup.settings import DedupSettings
from tasks.dedup.sketch import sketch_group
from tasks.dedup.verify import verify_group
from tasks.runner import Runner
from tasks.shards import EXCERPT, REJECTED, read_table, write_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import FileRecord, Folder

VERSION = 2
KEYS_AT_ONCE = 1 << 24  # hashes that are sorted in memory at a time: about 600 MB with what belongs to them


def dedup(root: Folder, documents: Manifest, settings: DedupSettings, runner: Runner) -> Manifest:
    """Keep one of each set of duplicates: the longest, then the one with the lowest id.

    All splits are deduplicated together, and the split of a document has no say in which one is kept: the copy that
    stays may be in the test split and the one that goes in train, or the other way round. Either way no text is left
    in two splits. What stays of two documents below the threshold of similarity may well be in two splits.

    Raises:
        UserError: an earlier deduplication cannot be used.
    """
    earlier = open_earlier(settings, VERSION)
    if any(folder.path() == (root / "dedup").path() for folder, _ in earlier):
        raise UserError(f"dedup.earlier: {root.url}/dedup is what this run writes; give another --output")
    step = Step(
        root,
        "dedup",
        version=VERSION,
        parameters=settings.model_dump(mode="json", exclude={"earlier"}),  # by content, wherever they lie
        inputs={"documents": documents} | {f"earlier_{n}": manifest for n, (_, manifest) in enumerate(earlier)},
        packages=("numba", "numpy", "pyarrow", "scipy"),
    )
    if done := runner.finished(step):
        return done
    source, shards = root / documents.folder, [record.name for record in documents.outputs]
    if not shards:
        return step.commit(Outcome())
    groups = cut(source, documents.outputs)
    sketched = runner.batches(step, "sketch", groups, sketch_group, settings)
    groups = [
        replace(group, sketch=outcome.outputs[0].name, rows=outcome.outputs[0].rows or 0)
        for group, outcome in zip(groups, sketched, strict=True)
        if outcome.outputs
    ]
    ours, start = len(groups), len(shards)
    for number, (folder, manifest) in enumerate(earlier):
        groups += groups_of(folder, manifest, number, start)
        start += len(manifest.outputs)
    compared = _compare(step, groups, ours, settings, runner) if ours else []
    gone = [record.name for outcome in compared for record in outcome.audit if record.name.startswith("dropped/")]
    kept = runner.batches(step, "part", range(len(shards)), keep_shard, source, shards, gone)
    return step.commit(Outcome.total([*map(_for_audit, sketched), *compared, *kept]))


def check_earlier(settings: DedupSettings) -> None:
    """Find before anything starts that an earlier deduplication cannot be used.

    Raises:
        UserError: it cannot.
    """
    open_earlier(settings, VERSION)


def _compare(step: Step, groups: Sequence[Group], ours: int, settings: DedupSettings, runner: Runner) -> list[Outcome]:
    """From sketches to clusters; the first `ours` groups are of this crawl."""
    parts = 1 << (sum(group.rows for group in groups) // KEYS_AT_ONCE).bit_length()
    copies = _names(runner.batches(step, "exact", range(parts), find_exact, parts, groups))
    cells = list(itertools.product(range(settings.bands), range(parts)))
    banded = runner.batches(step, "band", cells, find_candidates, parts, groups, copies, settings.pivots)
    every = range(len(groups))
    collected = runner.batches(step, "collect", every, collect_group, groups, _names(banded), settings)
    unique = [outcome.outputs[0].name for outcome in collected]
    sets = [outcome.outputs[1].name for outcome in collected]
    verified = runner.batches(step, "verify", range(ours), verify_group, groups, unique, sets, settings)
    clustered = runner.batches(step, "cluster", [settings.policy], find_clusters, groups, copies, _names(verified))
    # Exact, candidate, unique and set files were steps on the way: no manifest names them, so they are swept.
    passed_on = [outcome.model_copy(update={"outputs": ()}) for outcome in banded]
    return [*passed_on, *map(_for_audit, verified), *map(_for_audit, clustered)]


def keep_shard(
    folder: Folder, name: str, shard: int, source: Folder, shards: Sequence[str], gone: Sequence[str]
) -> Outcome:
    """Write one shard without its duplicates, and its rejected twin."""
    table = read_table(source, shards[shard])
    low = shard << 32
    dropped = (
        read_dropped(folder, gone, low, low + ROW, None) if gone else pa.table({"number": pa.array([], pa.int64())})
    )
    rows = pc.bit_wise_and(dropped["number"], ROW)
    stays = pc.invert(pc.is_in(pa.array(range(table.num_rows), pa.int64()), rows))
    output = write_table(folder, f"{name}.parquet", table.filter(stays).combine_chunks())
    rejected: tuple[FileRecord, ...] = ()
    if len(dropped):
        losers = table.take(rows)
        columns = {
            "id": losers["id"],
            "url": losers["url"],
            "source": losers["source"],
            "reason": dropped["reason"],
            "detail": pa.array(map(_detail, dropped.to_pylist()), pa.string()),
            "text": pc.utf8_slice_codeunits(losers["text"], 0, EXCERPT),
        }
        rejected = (write_table(folder, f"rejected/{name}.parquet", pa.table(columns).cast(REJECTED).combine_chunks()),)
    reasons = pc.value_counts(dropped["reason"]).to_pylist() if len(dropped) else []
    return Outcome(
        outputs=(output,),
        rejected=rejected,
        seen=table.num_rows,
        kept=table.num_rows - len(dropped),
        reasons=dict(sorted((found["values"], found["counts"]) for found in reasons)),
    )


def _detail(row: dict[str, object]) -> str:
    if str(row["reason"]).startswith("exact"):
        return f"same text as {row['kept_url']} (Jaccard 1.000)"
    similarity = "in one cluster, not compared" if row["jaccard"] is None else f"Jaccard {row['jaccard']:.3f}"
    return f"much like {row['kept_url']} ({similarity})"


def _names(outcomes: Sequence[Outcome]) -> list[str]:
    return [record.name for outcome in outcomes for record in outcome.outputs]


def _for_audit(outcome: Outcome) -> Outcome:
    return outcome.model_copy(update={"audit": outcome.outputs, "outputs": ()})
