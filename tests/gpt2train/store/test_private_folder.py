"""The private temporary folder of a user, whose name other users can predict."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from gpt2train.errors import UserError
from gpt2train.store.files import private_folder
from gpt2train.store.folder import DRAFT, Folder, sweep_drafts
from tasks.download.journal import Journal, journal_folder

OTHER_USER = 12345  # a user id


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_folder_is_private_and_reused(temporary: Path) -> None:
    umask = os.umask(0)
    try:
        folder = private_folder()
    finally:
        os.umask(umask)
    assert folder.parent == temporary and stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "kept").touch()
    assert private_folder() == folder and (folder / "kept").exists()


def test_a_symbolic_link_instead_of_the_folder_is_refused(temporary: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (temporary / f"gpt2train-{os.geteuid()}").symlink_to(victim)
    with pytest.raises(UserError, match=r"is a link.*set TMPDIR"):
        private_folder()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o700


def test_a_folder_that_others_may_write_to_is_refused(temporary: Path) -> None:
    (temporary / f"gpt2train-{os.geteuid()}").mkdir()
    (temporary / f"gpt2train-{os.geteuid()}").chmod(0o777)
    with pytest.raises(UserError, match="is writable by others"):
        private_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
def test_journals_are_not_written_to_a_folder_of_another_user(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "authorized_keys"
    keys.write_text("ssh-rsa KEY")
    store = Folder("memory://bucket/out/pages")
    monkeypatch.setattr("tasks.download.journal.private_folder", lambda: temporary / "planted")
    planted = journal_folder(store)  # where another user who predicts all names would put them
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = temporary / f"gpt2train-{os.geteuid()}"
    (folder / planted.name).mkdir(parents=True)
    (folder / planted.name / "part-00000.rows").symlink_to(keys)
    for path in (folder, folder / planted.name):
        os.chown(path, OTHER_USER, OTHER_USER)
    with (
        pytest.raises(UserError, match="belongs to another user"),
        Journal(journal_folder(store) / "part-00000", "key", ["http://a/"]) as journal,
    ):
        journal.add(0, {"url": "http://a/"}, b"")
    assert keys.read_text() == "ssh-rsa KEY"


@pytest.mark.parametrize(("number", "stays"), [("9" * 40, False), ("0", True), ("\u00b2", True), ("-1", True)])
def test_a_file_of_another_user_among_upload_drafts_is_ignored(temporary: Path, number: str, stays: bool) -> None:
    """A number too large for a process id is of no process; 0, -1 and other digits are none of a draft."""
    other = temporary / f"{DRAFT}{number}-x"
    other.touch()
    dead = temporary / f"{DRAFT}{2**22 + 1}-x"  # Linux gives out no such process id
    dead.touch()
    sweep_drafts()
    assert not dead.exists()
    assert other.exists() == stays
