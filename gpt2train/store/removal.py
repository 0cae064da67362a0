"""Files of a removal of pages (`gpt2train forget`) in an output: its list, and its mark while it has not ended.

The files of an output may not fit together while the mark is there.
"""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from gpt2train.errors import UserError

FORGOTTEN = "forgotten.json"  # hashes of what was ever removed
PENDING = "forgotten.pending.json"  # of a removal that has not ended: what it removes, with excerpts


def removal_message(output: str | Path) -> str:
    """Return the message for an output in which a removal was interrupted."""
    command = f"gpt2train forget --yes --output {quote(str(output))}"
    return f"{output}: a removal of pages was interrupted; complete it by {command}"


def check_no_removal_above(path: str | Path) -> None:
    """Raise a UserError if a folder above a local file, such as its output, has an interrupted removal."""
    for folder in Path(path).absolute().parents:
        if (folder / PENDING).exists():
            raise UserError(removal_message(folder))


def removed_message(output: str | Path) -> str:
    """Return the message for an output whose pages were removed while a server had it open."""
    return f"{output}: pages were removed since this server opened it; run the data flow, then start the server"


class RemovalCheck:
    """Check that no removal has begun or ended in an output since it was opened.

    The paths are local files, each in any depth below its output.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        folders = {folder for path in paths for folder in Path(path).absolute().parents}
        self._lists = {folder: _read(folder / FORGOTTEN) for folder in sorted(folders)}

    def __call__(self) -> None:
        """Raise a UserError if an output had a removal."""
        for folder, listed in self._lists.items():
            if (folder / PENDING).exists():
                raise UserError(removal_message(folder))
            if _read(folder / FORGOTTEN) != listed:
                raise UserError(removed_message(folder))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
