"""Atomic writes of small files, the private temporary folder of a user, and checkpoints by their names."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from gpt2train.config import CONFIG_FILE, preset, run_config, to_toml
from gpt2train.config.run import TrainSettings
from gpt2train.errors import RunError, UserError
from gpt2train.launch.torchrun import UNFINISHED, _completeness
from gpt2train.settings import build
from gpt2train.store import files
from gpt2train.store.files import atomic_file, atomic_folder, make_folder, private_folder, write_atomic
from gpt2train.store.folder import DRAFT, Folder, sweep_drafts
from gpt2train.store.run_folder import (
    FOLDER,
    MANIFEST,
    checkpoint_name,
    checkpoint_step,
    list_checkpoints,
    list_without_manifest,
    newest_checkpoint,
)
from tasks.download.journal import Journal, journal_folder


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "run.json").write_text("as it was")
    monkeypatch.setattr(files, "fsync", full)
    with pytest.raises(RunError, match=r"no space left while writing .*run\.json: free some, or .* to continue$"):
        write_atomic(tmp_path / "run.json", b"new")
    with (
        pytest.raises(RunError, match=r"no space left while writing .*model: free some"),
        atomic_folder(tmp_path / "model") as draft,
    ):
        (draft / "weights").write_bytes(b"w")
    assert (tmp_path / "run.json").read_text() == "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_an_unwritable_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (  # a command may have it as an argument without a name
        pytest.raises(UserError, match=r"cannot write .*model: .*; give another folder"),
        atomic_folder(tmp_path / "file" / "model"),
    ):
        pass
    with pytest.raises(FileNotFoundError, match="source"), atomic_folder(tmp_path / "model"):
        (tmp_path / "source").read_bytes()  # of a file that is read, which is no fault of the new folder
    with pytest.raises(UserError, match=r"cannot write .*run\.json: .*; give another --output"):
        write_atomic(tmp_path / "file" / "run.json", b"new")


def test_each_new_folder_is_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder that a durable write makes is an entry of another one, which is forced to the disk as well."""
    forced: list[Path] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(Path(f"/proc/self/fd/{descriptor}").resolve())
        fsync(descriptor)

    def written(root: Path) -> None:
        """The folders above the file, up to the first that was there before, in the order of their making."""
        wanted = [root.parent, root, root / "a", root / "a" / "b"]
        assert [path for path in forced if path in wanted] == wanted, forced
        forced.clear()

    monkeypatch.setattr(os, "fsync", noted)
    write_atomic(tmp_path / "one" / "a" / "b" / "run.json", b"x")
    written(tmp_path / "one")
    with atomic_folder(tmp_path / "two" / "a" / "b" / "model") as draft:
        (draft / "deep").mkdir()
        (draft / "deep" / "weights").write_bytes(b"w")
    deep = [path.name for path in forced if path.name in ("deep", "weights")]
    assert sorted(deep) == ["deep", "weights"]
    written(tmp_path / "two")
    Folder(tmp_path / "three").write_bytes("a/b/part.json", b"x")
    written(tmp_path / "three")
    make_folder(tmp_path / "three" / "a")
    assert not forced, "nothing was made"


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("file", "file/below", "link"):
        with pytest.raises(OSError):
            make_folder(tmp_path / place)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path)
    make_folder(tmp_path / "link" / "new" / "one")
    assert (tmp_path / "new" / "one").is_dir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        make_folder(Path("here/and/there"))
    assert (tmp_path / "here/and/there").is_dir()


def test_a_draft_is_renamed_when_it_is_whole_and_removed_after_an_error(tmp_path: Path) -> None:
    path, given = tmp_path / "file", tmp_path / "file.draft"
    for draft in (None, given):
        with atomic_file(path, draft) as at:
            at.write_text("one")
            assert not path.exists() and (draft is None or at == given)
        assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]
        with pytest.raises(ZeroDivisionError), atomic_file(path, draft) as at:
            at.write_text("two")
            raise ZeroDivisionError
        assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]
        path.unlink()


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


def add(run: Path, name: str, manifest: bool = True) -> Path:
    folder = run / FOLDER / name
    folder.mkdir(parents=True)
    if manifest:
        (folder / MANIFEST).write_text("{}")
    return folder


@pytest.mark.parametrize("step", [0, 7, 100, 123_456_789])
def test_a_name_gives_back_its_step(step: int) -> None:
    assert checkpoint_step(Path("run") / FOLDER / checkpoint_name(step)) == step


def test_a_checkpoint_has_a_manifest_and_is_no_draft(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint in"):
        newest_checkpoint(tmp_path)
    older, newer = add(tmp_path, checkpoint_name(5)), add(tmp_path, checkpoint_name(20))
    add(tmp_path, checkpoint_name(30) + ".tmp")
    broken = add(tmp_path, checkpoint_name(40), manifest=False)
    assert list_checkpoints(tmp_path) == [older, newer] and newest_checkpoint(tmp_path) == newer
    assert list_without_manifest(tmp_path) == [broken]


def test_a_run_that_stopped_early_is_unfinished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = build(TrainSettings, preset("tiny"), {"steps": 1000})
    config = run_config(settings, train="t", valid=None, vocab=300, tokenizer_hash=None, output=str(tmp_path))
    (tmp_path / CONFIG_FILE).write_text(to_toml(config))
    add(tmp_path, checkpoint_name(20))
    assert _completeness(tmp_path) == UNFINISHED == 75
    assert capsys.readouterr().out == "stopped at step 20 of 1000; it resumes from there when it is started again\n"
    add(tmp_path, checkpoint_name(1000))
    assert _completeness(tmp_path) == 0
