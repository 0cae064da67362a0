"""Comparison of the compiled sketches with datasketch's on a sample of the corpus."""

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.core.manifest import Outcome
from tasks.core.runner import Runner
from tasks.core.shards import sample_texts
from tasks.core.step import Step
from tasks.core.storage import Folder
from tasks.dedup import datasketch_engine, shingles
from tasks.dedup.minhash import sketch_texts
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Sets

log = logging.getLogger("gpt2train")

CHECK_SHARDS = 16  # evenly spaced
CHECK_BYTES = 1 << 17  # of text; the comparison takes one to two seconds


def choose_engine(
    step: Step, source: Folder, shards: Sequence[str], settings: DedupSettings, runner: Runner
) -> tuple[DedupSettings, Outcome]:
    """Settings with the engine that runs, and an outcome with the number of documents that were compared."""
    if settings.engine == "datasketch":
        return settings, Outcome()
    sample = tuple(shards[:: -(-len(shards) // CHECK_SHARDS)])
    checked = runner.batches(step, "check", [sample], check_engine, source, settings)[0]
    if wrong := checked.facts.get("engine_mismatches"):
        log.warning(
            f"the compiled sketches and datasketch differ for {wrong:,} of {checked.facts['engine_checked']:,} "
            f"documents of {source.url}: using datasketch, which is many times slower"
        )
        return settings.model_copy(update={"engine": "datasketch"}), checked
    return settings, checked


def check_engine(folder: Folder, name: str, shards: Sequence[str], source: Folder, settings: DedupSettings) -> Outcome:
    """Sketch the beginnings of some documents by both engines, and count the documents that differ."""
    column = pa.array(sample_texts(source, shards, CHECK_BYTES), pa.large_string())
    plain = settings.model_copy(update={"engine": "datasketch"})
    ours, theirs = (pa.table(sketch_texts(column, chosen)).to_pylist() for chosen in (settings, plain))
    sets = zip(
        _each(shingles.shingle_sets(column, settings)),
        _each(datasketch_engine.shingle_sets(column, plain)),
        strict=True,
    )
    differ = [one != other for one, other in zip(ours, theirs, strict=True)]
    wrong = sum(row or not np.array_equal(*both) for row, both in zip(differ, sets, strict=True))
    return Outcome(facts={"engine_checked": len(column)} | ({"engine_mismatches": wrong} if wrong else {}))


def _each(sets: Sets) -> list[np.ndarray]:
    return np.split(sets.values, sets.starts[1:-1]) if len(sets.starts) > 1 else []
