"""Mark of an interrupted removal of pages (`gpt2train forget`) in an output, whose files may not fit together then."""

from pathlib import Path

from gpt2train.errors import UserError

PENDING = "forgotten.pending.json"  # of a removal that has not ended: what it removes, with excerpts


def removal_message(output: str | Path) -> str:
    """Return the message for an output in which a removal was interrupted."""
    return f"{output}: a removal of pages was interrupted; complete it by gpt2train forget --yes --output {output}"


def check_no_removal_above(path: str | Path) -> None:
    """Check that no folder above a local file, such as the output that has it, has an interrupted removal.

    Raises:
        UserError: One has.
    """
    for folder in Path(path).absolute().parents:
        if (folder / PENDING).exists():
            raise UserError(removal_message(folder))
