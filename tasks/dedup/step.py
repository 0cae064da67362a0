"""Deduplication step: runs the stages in order."""

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.errors import UserError
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, Outcome, output_names
from tasks.core.engine_check import check_engine
from tasks.core.runner import Runner
from tasks.core.shards import EXCERPT, REJECTED, read_table, write_table
from tasks.core.step import Step
from tasks.dedup.bands import with_bands
from tasks.dedup.clusters import CLUSTER, Part, find_clusters
from tasks.dedup.components import edge_parts, partition_edges
from tasks.dedup.document_index import ROW_MASK, Corpus, make_groups, read_dropped
from tasks.dedup.exact import find_exact
from tasks.dedup.lost_sources import check_sources, count_sources
from tasks.dedup.lost_text import measure_lost, share_kept
from tasks.dedup.lsh import find_candidates
from tasks.dedup.minhash import count_mismatches, sketch_group
from tasks.dedup.previous_runs import like_previous, open_previous, previous_groups
from tasks.dedup.settings import DedupSettings, word_shingles
from tasks.dedup.shingle_exchange import collect_group
from tasks.dedup.verify import check_containment, verify_group

log = logging.getLogger("gpt2train")

VERSION = 5
CHECK_BYTES = 1 << 17  # of text; the comparison takes one to two seconds
RunStage = Callable[..., list[Outcome]]  # `Runner.batches` of the step
MAX_KEYS = 1 << 24  # hashes that are sorted in memory at a time: about 600 MB with their documents


def dedup(root: Folder, documents: Manifest, settings: DedupSettings, runner: Runner) -> Manifest:
    """Keep one document of each set of duplicates: the longest, then the one with the lowest id.

    All splits are deduplicated together, and the choice does not depend on the split of a document: the kept copy may
    be in the test split and the dropped one in train, or the other way round. No text is left in two splits. Similar
    documents below the threshold may remain in different splits.

    Raises:
        UserError: a previous deduplication cannot be used.
        RunError: a source is lost, and `settings.stop_on_lost_source` is set.
    """
    settings = with_bands(like_previous(settings))
    previous = open_previous(settings, VERSION)
    if any(folder.path() == (root / "dedup").path() for folder, _ in previous):
        raise UserError(f"dedup.previous: {root.url}/dedup is the output of this run; give another --output")
    compiled = settings.engine == "compiled"
    left_out = {"previous", "recall", "stop_on_lost_source"} | ({"engine"} if compiled else set())
    left_out |= {"containment"} if settings.policy != "containment" else set()
    step = Step(
        root,
        "dedup",
        version=VERSION,
        # Previous runs are inputs by content, independent of their location; bands and rows stand for the recall.
        parameters=settings.model_dump(mode="json", exclude=left_out),
        inputs={"documents": documents} | {f"earlier_{n}": manifest for n, (_, manifest) in enumerate(previous)},
        packages=("unicodedata",) if compiled else ("unicodedata", "datasketch"),
    )
    manifest = runner.finished(step) or _run(step, root / documents.folder, documents, previous, settings, runner)
    check_sources(step.folder, manifest, settings)
    return manifest


def _run(
    step: Step,
    source: Folder,
    documents: Manifest,
    previous: Sequence[tuple[Folder, Manifest]],
    settings: DedupSettings,
    runner: Runner,
) -> Manifest:
    """Run all stages, and commit the step."""
    shards = [record.name for record in documents.outputs]
    if not shards:
        return step.commit(Outcome())
    checked = Outcome()
    if settings.engine == "compiled":
        compare = functools.partial(count_mismatches, settings=settings)
        checked, difference = check_engine(step, source, shards, CHECK_BYTES, runner, compare)
        if difference:
            found = f"the compiled sketches and datasketch differ {difference}"
            log.warning(f"{found}: using datasketch, which is many times slower")
            settings = settings.model_copy(update={"engine": "datasketch"})
    groups = make_groups(source, documents.outputs)
    sketched = runner.batches(step, "sketch", groups, sketch_group, settings)
    groups = [
        replace(group, sketch=outcome.outputs[0].name, rows=outcome.outputs[0].rows or 0)
        for group, outcome in zip(groups, sketched, strict=True)
        if outcome.outputs
    ]
    own, start = len(groups), len(shards)
    for number, (folder, manifest) in enumerate(previous):
        groups += previous_groups(folder, manifest, number, start)
        start += len(manifest.outputs)
    compared = _compare(functools.partial(runner.batches, step), Corpus(groups, settings), own) if own else []
    dropped_files = [
        record.name for outcome in compared for record in outcome.audit if record.name.startswith("dropped/")
    ]
    kept = runner.batches(step, "part", range(len(shards)), keep_shard, source, shards, dropped_files)
    rejected = [record.name for outcome in kept for record in outcome.rejected]
    counted = runner.batches(step, "sources", [""], count_sources, output_names(kept), rejected)
    return step.commit(
        Outcome.total([checked, *map(_for_audit, sketched), *compared, *kept, *map(_for_audit, counted)])
    )


def check_previous(settings: DedupSettings) -> None:
    """Check the previous deduplications before the run starts.

    Raises:
        UserError: one cannot be used.
    """
    open_previous(with_bands(like_previous(settings)), VERSION)


def _compare(run: RunStage, corpus: Corpus, own: int) -> list[Outcome]:
    """Run the stages from sketches to clusters; the first `own` groups are of this crawl."""
    groups, settings = corpus
    parts = 1 << (sum(group.rows for group in groups) // MAX_KEYS).bit_length()
    copied = run("exact", range(parts), find_exact, parts, groups)
    copies = output_names(copied)
    cells = list(itertools.product(range(settings.num_bands), range(parts)))
    banded = run("band", cells, find_candidates, corpus, parts, copies)
    every = range(len(groups))
    collected = run("collect", every, collect_group, corpus, output_names(banded))
    unique = [outcome.outputs[0].name for outcome in collected]
    sets = [outcome.outputs[1].name for outcome in collected]
    verified = run("verify", range(own), verify_group, corpus, unique, sets)
    facts_only = [*banded]
    if settings.policy == "containment":
        facts_only += verified
        verified = _check_containment(run, corpus, own, verified)
    edges = _edge_files(run, corpus, copied, verified)
    clustered = run("clusters", edges, find_clusters, settings.policy, groups)
    removed = [outcome.outputs[-1].name for outcome in clustered]
    shared = run("kept_sets", every, share_kept, corpus, removed)
    measured = run("lost", range(own), measure_lost, corpus, removed, output_names(shared))
    # Exact, candidate, unique and set files are intermediate: the manifest does not name them, so they are removed.
    return [
        *(outcome.model_copy(update={"outputs": ()}) for outcome in facts_only),
        *map(_for_audit, verified),
        *(outcome.model_copy(update={"audit": outcome.outputs[:-1], "outputs": ()}) for outcome in clustered),
        *map(_for_audit, measured),
    ]


def _edge_files(run: RunStage, corpus: Corpus, copied: Sequence[Outcome], verified: Sequence[Outcome]) -> list[Part]:
    """Files with the edges of each part of the duplicates; those of the earlier stages if there is one part."""
    exact, pairs = output_names(copied), output_names(verified)
    parts = edge_parts(sum(record.rows or 0 for outcome in (*copied, *verified) for record in outcome.outputs))
    if parts == 1:
        return [Part(0, tuple(exact), tuple(pairs))]
    [divided] = run("edges", [parts], partition_edges, corpus.groups, exact, pairs)
    names = output_names([divided])
    return [Part(number, (names[number],), (names[parts + number],)) for number in range(parts)]


def _check_containment(run: RunStage, corpus: Corpus, own: int, verified: Sequence[Outcome]) -> list[Outcome]:
    """Run the stages of the policy `containment`, from the similar pairs to the accepted ones."""
    similar = [outcome.outputs[0].name for outcome in verified]
    accepted = [outcome.outputs[1].name for outcome in verified]
    words, every = corpus._replace(settings=word_shingles(corpus.settings)), range(len(corpus.groups))
    collected = run("collect_words", every, collect_group, words, accepted, "word_")
    sets = [outcome.outputs[1].name for outcome in collected]
    return run("contain", range(own), check_containment, corpus, similar, sets)


def keep_shard(
    folder: Folder, name: str, shard: int, source: Folder, shards: Sequence[str], dropped_files: Sequence[str]
) -> Outcome:
    """Write one shard without its duplicates, and the file of its rejected documents."""
    table = read_table(source, shards[shard])
    low = shard << 32
    dropped = read_dropped(folder, dropped_files, low, low + ROW_MASK) if dropped_files else CLUSTER.empty_table()
    rows = pc.bit_wise_and(dropped["number"], ROW_MASK)
    kept = pc.invert(pc.is_in(pa.array(range(table.num_rows), pa.int64()), rows))
    output = write_table(folder, f"{name}.parquet", table.filter(kept).combine_chunks())
    rejected: tuple[FileRecord, ...] = ()
    characters = 0
    if len(dropped):
        removed = table.take(rows)
        characters = pc.sum(pc.utf8_length(removed["text"])).as_py()
        columns = {
            "id": removed["id"],
            "url": removed["url"],
            "source": removed["source"],
            "reason": dropped["reason"],
            "detail": pa.array(map(_detail, dropped.to_pylist()), pa.string()),
            "text": pc.utf8_slice_codeunits(removed["text"], 0, EXCERPT),
        }
        rejected = (write_table(folder, f"rejected/{name}.parquet", pa.table(columns).cast(REJECTED).combine_chunks()),)
    return Outcome(
        outputs=(output,),
        rejected=rejected,
        seen=table.num_rows,
        kept=table.num_rows - len(dropped),
        reasons=dict(sorted(Counter(dropped["reason"].to_pylist()).items())),
        facts={"removed_characters": characters},
    )


def _detail(row: dict[str, object]) -> str:
    if str(row["reason"]).startswith("exact"):
        return f"same text as {row['kept_url']} (Jaccard 1.000)"
    similarity = "in one cluster, not compared" if row["jaccard"] is None else f"Jaccard {row['jaccard']:.3f}"
    return f"much like {row['kept_url']} ({similarity})"


def _for_audit(outcome: Outcome) -> Outcome:
    return outcome.model_copy(update={"audit": outcome.outputs, "outputs": ()})
