"""Small files that are written whole: what a person is told where they cannot be."""

import errno
import os
from pathlib import Path

import pytest

from gpt2train import files
from gpt2train.errors import RunError, UserError
from gpt2train.files import folder_whole, write_whole


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_want_of_space_is_no_mistake_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "run.json").write_text("as it was")
    monkeypatch.setattr(files, "fsync", full)
    with pytest.raises(RunError, match=r"no space left while writing .*run\.json: free some, or .* to go on$"):
        write_whole(tmp_path / "run.json", b"new")
    with (
        pytest.raises(RunError, match=r"no space left while writing .*model: free some"),
        folder_whole(tmp_path / "model") as draft,
    ):
        (draft / "weights").write_bytes(b"w")
    assert (tmp_path / "run.json").read_text() == "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_place_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*run\.json: .*; give another --output"):
        write_whole(tmp_path / "file" / "run.json", b"new")
