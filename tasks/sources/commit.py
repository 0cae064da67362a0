"""The end of a step that reads files of the user: not one row that can be used is a mistake of theirs."""

from gpt2train.errors import UserError
from tasks.steps import Manifest, Outcome, Step


def commit_some(step: Step, total: Outcome, what: str, nothing: str) -> Manifest:
    """Write the manifest of a step that kept something.

    Args:
        what: what is wrong where it kept nothing: `the files … hold no text that can be used`.
        nothing: what there was none of, where there is no reason to count: `no records`.

    Raises:
        UserError: it kept nothing; the message counts the reasons. The next run reads the files again.
    """
    if total.kept:
        return step.commit(total)
    step.forget_batches()
    counts = ", ".join(f"{reason} {count}" for reason, count in total.reasons.items()) or nothing
    raise UserError(f"{what} ({counts}); see {step.folder.url}/rejected")
