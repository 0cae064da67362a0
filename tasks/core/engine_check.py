"""Check of a fast engine against its reference, on a sample of the corpus that a step is about to read.

One rule for all steps that have both: where the results differ, a warning says so and the reference runs.
"""

from collections.abc import Callable, Sequence

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.core.runner import Runner
from tasks.core.shards import sample_texts
from tasks.core.step import Step

CHECK_SHARDS = 16  # evenly spaced
CHECKS = 2  # batches; all others of the step wait for them

Compare = Callable[[list[str]], int | None]
"""Number of texts for which two engines differ; None if the fast one does not work here."""


def check_engine(
    step: Step, source: Folder, shards: Sequence[str], max_bytes: int, runner: Runner, compare: Compare
) -> tuple[Outcome, str]:
    """Compare two engines on the beginnings of some documents.

    Return an outcome with the documents that were compared (`engine_checked`) and that differ (`engine_mismatches`),
    and the latter in words; both are empty if there are none.
    """
    sample = shards[:: -(-len(shards) // CHECK_SHARDS)] if shards else ()
    compared = runner.batches(step, "check", range(CHECKS), _check, source, tuple(sample), max_bytes, compare)
    checked = Outcome.total(compared)
    wrong, seen = checked.facts.get("engine_mismatches", 0), checked.facts.get("engine_checked", 0)
    return checked, f"for {wrong:,} of {seen:,} documents of {source.url}" if wrong else ""


def _check(
    folder: Folder, name: str, number: int, source: Folder, shards: Sequence[str], max_bytes: int, compare: Compare
) -> Outcome:
    texts = sample_texts(source, shards, max_bytes)[number::CHECKS]
    if (wrong := compare(texts)) is None:
        return Outcome()
    return Outcome(facts={"engine_checked": len(texts)} | ({"engine_mismatches": wrong} if wrong else {}))
