"""Commit of a step that reads the user's files, in which no usable row is a user error."""

from gpt2train.errors import UserError
from tasks.core.step import Manifest, Outcome, Step


def commit_some(step: Step, total: Outcome, what: str, nothing: str) -> Manifest:
    """Write the manifest of a step that kept at least one row.

    Args:
        step: The step.
        total: Outcome of all batches.
        what: Message if no row was kept: `the files … hold no text that can be used`.
        nothing: Explanation if there are no reasons either: `no records`.

    Raises:
        UserError: No row was kept; the message has the counts of the reasons. The next run reads the files again.
    """
    if total.kept:
        return step.commit(total)
    step.remove_batch_records()
    counts = ", ".join(f"{reason} {count}" for reason, count in total.reasons.items()) or nothing
    raise UserError(f"{what} ({counts}); see {step.folder.url}/rejected")
