"""Deduplication as a step: the stages in order."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dedup.clusters import find_clusters
from tasks.dedup.pairs import find_candidates, find_exact
from tasks.dedup.settings import DedupSettings
from tasks.dedup.sketch import sketch_shard
from tasks.dedup.verify import ROW, verify_shard
from tasks.runner import Runner
from tasks.shards import REJECTED, read_table, rejected_row, write_rows, write_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import FileRecord, Folder


def dedup(root: Folder, documents: Manifest, settings: DedupSettings, runner: Runner) -> Manifest:
    """Keep one of each set of duplicates: the longest, then the one with the lowest id.

    All splits are deduplicated together, and the split of a document has no say in which one is kept: the copy that
    stays may be in the test split and the one that goes in train, or the other way round. Either way no text is left
    in two splits. What stays of two documents below the threshold of similarity may well be in two splits.
    """
    step = Step(
        root,
        "dedup",
        version=1,
        parameters=settings,
        inputs={"documents": documents},
        packages=("numpy", "pyarrow", "scipy"),
    )
    if done := runner.finished(step):
        return done
    source, shards = root / documents.folder, [record.name for record in documents.outputs]
    if not shards:
        return step.commit(Outcome())
    every = range(len(shards))
    sketched = runner.batches(step, "sketch", shards, sketch_shard, source, settings)
    sketches = _names(sketched)
    copies = _names(runner.batches(step, "exact", [sketches], find_exact))
    banded = runner.batches(step, "band", range(settings.bands), find_candidates, sketches, copies, settings.pivots)
    verified = runner.batches(step, "verify", every, verify_shard, source, shards, _names(banded), settings)
    clustered = runner.batches(step, "cluster", [settings.policy], find_clusters, sketches, copies, _names(verified))
    kept = runner.batches(step, "part", every, keep_shard, source, shards, _names(clustered))
    # The exact and candidate files were steps on the way: no manifest names them, so they are swept.
    passed_on = [outcome.model_copy(update={"outputs": ()}) for outcome in banded]
    for_audit = [
        outcome.model_copy(update={"audit": outcome.outputs, "outputs": ()})
        for stage in (sketched, verified, clustered)
        for outcome in stage
    ]
    return step.commit(Outcome.total([*passed_on, *for_audit, *kept]))


def keep_shard(
    folder: Folder, name: str, shard: int, source: Folder, shards: list[str], clusters: list[str]
) -> Outcome:
    """Write one shard without its duplicates, and its rejected twin."""
    bounds = [("number", ">=", shard << 32), ("number", "<", (shard + 1) << 32)]
    dropped = {}
    for part in clusters:
        with folder.open(part) as file:
            for row in pq.read_table(file, filters=bounds).to_pylist():
                if row["reason"]:
                    dropped[row["number"] & ROW] = row
    table = read_table(source, shards[shard])
    places = sorted(dropped)
    stays = pa.array([row not in dropped for row in range(table.num_rows)], pa.bool_())
    rejected = [
        rejected_row(row, dropped[place]["reason"], _detail(dropped[place]))
        for place, row in zip(places, table.take(pa.array(places, pa.int64())).to_pylist(), strict=True)
    ]
    output = write_table(folder, f"{name}.parquet", table.filter(stays).combine_chunks())
    reasons = dict(sorted(Counter(row["reason"] for row in rejected).items()))
    return Outcome(
        outputs=(output,),
        rejected=(write_rows(folder, f"rejected/{name}.parquet", rejected, REJECTED),) if rejected else (),
        seen=table.num_rows,
        kept=table.num_rows - len(rejected),
        reasons=reasons,
    )


def _detail(row: dict[str, object]) -> str:
    if row["reason"] == "exact_duplicate":
        return f"same text as {row['kept_url']} (Jaccard 1.000)"
    similarity = "in one cluster, not compared" if row["jaccard"] is None else f"Jaccard {row['jaccard']:.3f}"
    return f"much like {row['kept_url']} ({similarity})"


def _names(outcomes: list[Outcome]) -> list[str]:
    records: list[FileRecord] = [record for outcome in outcomes for record in outcome.outputs]
    return [record.name for record in records]
