"""Doing a step again in a temporary folder: some of its batches, or all of it."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.runner import Group, Outcomes, Runner, Stage, Where
from tasks.core.step import Step

PART = "part"  # stage whose batches each write files of the outcome


class NotRedoneError(Exception):
    """Reason for which a step cannot be done again here; not a difference."""


class _SampledError(Exception):
    """Raised after the sampled batches, to end the function of the step."""

    def __init__(self, outcomes: Outcomes, of: int) -> None:
        super().__init__()
        self.outcomes, self.of = outcomes, of


class RedoRunner(Runner):
    """Runner that does the step of a manifest again, in the folder `scratch`.

    `chosen` returns batches of those with these names; None does all of them.
    """

    def __init__(
        self, made: Manifest, scratch: Folder, workers: int, chosen: Callable[[Sequence[str]], set[str]] | None
    ) -> None:
        super().__init__(workers)
        self._made, self._scratch, self._chosen = made, scratch, chosen

    def finished(self, step: Step) -> None:
        """Send what the step writes to the scratch folder.

        Raises:
            NotRedoneError: The step is not the one of the manifest, in this release or by its settings.
        """
        made = self._made
        if step.version != made.version:
            raise NotRedoneError(f"made by version {made.version} of the step; this release has {step.version}")
        for kind in ("parameters", "inputs"):
            old, new = getattr(made, kind), getattr(step, kind)
            if differing := sorted(name for name in {*old, *new} if old.get(name) != new.get(name)):
                raise NotRedoneError(f"its {kind} cannot be restored from its manifest: {', '.join(differing)}")
        step.root, step.folder = self._scratch, self._scratch / step.folder_name
        step.records = step.folder
        step.begin()

    def batches(
        self,
        step: Step,
        stage: str,
        items: Sequence[Any],
        work: Callable[..., Outcome],
        *args: Any,
        where: Where = "process",
        at_once: int | None = None,
        rows: Sequence[int] = (),
    ) -> list[Outcome]:
        """Run all batches of a stage, or the chosen ones of the stage that writes the outputs, which end the step."""
        if self._chosen is None or stage != PART:
            return super().batches(step, stage, items, work, *args, where=where, at_once=at_once, rows=rows)
        names = [f"{stage}-{index:05d}" for index in range(len(items))]
        chosen = self._chosen(names)
        groups = [
            Group(step, ((name, item),), work, args) for name, item in zip(names, items, strict=True) if name in chosen
        ]
        outcomes: Outcomes = {}
        self.dispatch(Stage(step.name, stage, len(groups), outcomes.update), groups, where, at_once)
        raise _SampledError(outcomes, len(names))


def sample(count: int, seed: int, step: str, damaged: Sequence[str]) -> Callable[[Sequence[str]], set[str]]:
    """Return a function that chooses `count` random batches of a step, and those that wrote the damaged files."""

    def chosen(names: Sequence[str]) -> set[str]:
        drawn = random.Random(f"{seed} {step}").sample(names, min(count, len(names)))
        return {*drawn, *(name for name in names if any(is_of(name, file) for file in damaged))}

    return chosen


def is_of(batch: str, file: str) -> bool:
    """Return True if a batch writes this file: `rejected/part-00001.parquet` and `part-00001-00003.parquet`."""
    stem = file.rpartition("/")[2].partition(".")[0]
    return stem == batch or stem.startswith(f"{batch}-")


def redo(
    function: Callable[[Runner], Manifest], made: Manifest, runner: RedoRunner
) -> tuple[str, list[tuple[FileRecord | None, FileRecord | None]], list[str]]:
    """Do a step again with a runner that was made for it.

    Returns:
        What was done, for a message; the pairs of records (in the manifest, done again) that differ, None for a file
        that one of them lacks; and the counts that differ.
    """
    try:
        again = function(runner).outcome
    except _SampledError as sampled:
        files = [record for outcome in sampled.outcomes.values() for record in outcome.files]
        kept = [one for one in made.outcome.files if any(is_of(name, one.name) for name in sampled.outcomes)]
        return f"{len(sampled.outcomes)} of {sampled.of} batches", _differing(kept, files), []
    counts = [
        f"{name}: {getattr(made.outcome, name)} in the manifest, {getattr(again, name)} when done again"
        for name in ("seen", "kept", "reasons", "facts")
        if getattr(made.outcome, name) != getattr(again, name)
    ]
    return "whole", _differing(made.outcome.files, again.files), counts


def _differing(
    kept: Sequence[FileRecord], again: Sequence[FileRecord]
) -> list[tuple[FileRecord | None, FileRecord | None]]:
    old, new = {record.name: record for record in kept}, {record.name: record for record in again}
    return [(old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
