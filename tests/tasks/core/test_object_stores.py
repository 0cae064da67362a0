"""Folders in object stores: S3 and GCS servers on loopback, and fsspec's memory file system."""

import errno
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import filelock
import fsspec
import fsspec.config
import pytest

from gpt2train.errors import RunError, UserError, redact
from gpt2train.store import output_lock
from gpt2train.store.folder import DRAFT, Folder
from gpt2train.store.manifest import Outcome, need_manifest
from gpt2train.store.output_lock import LOCK, locked
from tasks.blacklist.blocklists import check_blocklists
from tasks.core.input_files import find_inputs, read_any
from tasks.core.runner import Runner
from tasks.core.shards import read_table, write_rows
from tasks.core.stage_inputs import on_local_disk
from tests.object_stores import KEY, SECRET, environment, free_port, store_server
from tests.tasks.core.test_runner import note
from tests.tasks.core.test_step import SCHEMA, make_step
from tests.tasks.corpus import documents_of, row


@pytest.fixture(scope="module", params=["s3", "gs", "memory"])
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of an empty bucket of each store; its environment is set."""
    kind = request.param
    if kind == "memory":
        yield f"memory://{uuid.uuid4().hex}"
        return
    pytest.importorskip({"s3": "s3fs", "gs": "gcsfs"}[kind])
    with store_server({"s3": "s3", "gs": "gcs"}[kind]) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        _refresh_fsspec(kind)
        if kind == "s3":
            Folder("s3://bucket").fs.mkdir("bucket")
        yield f"{kind}://bucket"
    _refresh_fsspec(kind)


def _refresh_fsspec(kind: str) -> None:
    """fsspec reads its variables once, and keeps file systems; a fresh process has neither."""
    fsspec.config.conf.clear()
    fsspec.config.set_conf_env(fsspec.config.conf)
    fsspec.get_filesystem_class(kind).clear_instance_cache()


@pytest.fixture
def folder(bucket: str) -> Folder:
    return Folder(f"{bucket}/{uuid.uuid4().hex}")


def test_files_are_written_and_removed(folder: Folder) -> None:
    assert folder.size("a/b.bin") is None and folder.files() == []
    folder.write_bytes("a/b.bin", b"hello")
    folder.write_bytes("c", b"")
    assert folder.sizes() == {"a/b.bin": 5, "c": 0}
    assert (folder / "a").read_bytes("b.bin") == b"hello" == pickle.loads(pickle.dumps(folder)).read_bytes("a/b.bin")  # noqa: S301
    assert folder.read_all(["c", "a/b.bin"]) == {"a/b.bin": b"hello", "c": b""}
    with pytest.raises(FileNotFoundError):
        folder.read_bytes("none")
    folder.remove("none")
    folder.remove("c", "a/b.bin")
    assert folder.files() == []


def test_a_write_is_atomic(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="stop"), folder.writing("half") as draft:
        draft.write_bytes(b"half")
        raise ValueError("stop")
    with folder.writing("whole") as draft:
        draft.write_bytes(b"x" * 6_000_000)
    assert folder.files() == ["whole"] and list(tmp_path.iterdir()) == []
    uploaded = folder.record("whole", rows=3)  # as noted when it was sent
    assert uploaded == Folder(folder.url).record("whole", rows=3)  # as read back


def test_files_of_another_process_are_visible_at_once(folder: Folder) -> None:
    other = Folder(folder.url)
    assert folder.files() == [] == other.files() and folder.size("late") is None
    other.write_bytes("late", b"now")
    assert folder.size("late") == 3 and folder.files() == ["late"]
    other.write_bytes("late", b"longer")
    assert folder.read_bytes("late") == b"longer" and folder.size("late") == 6


def test_parquet_is_read_and_manifests_equal_those_of_a_disk(folder: Folder, tmp_path: Path) -> None:
    rows = [row(f"text number {number} " * 50) for number in range(3000)]
    manifest = documents_of(folder, rows, per_shard=1500)
    assert need_manifest(folder / "clean") == manifest == documents_of(Folder(tmp_path), rows, per_shard=1500)
    table = read_table(folder / "clean", manifest.outputs[1].name, ["id"])
    assert table["id"].to_pylist() == [one["id"] for one in rows[1500:]]


def test_a_step_resumes_from_its_batches(folder: Folder) -> None:
    step = make_step(folder)
    step.begin()
    record = write_rows(step.folder, "part-00001.parquet", [{"id": "1", "url": "u"}], SCHEMA)
    step.commit_batch("part-00001", Outcome(outputs=(record,)))
    assert set(step.batches(["part-00000", "part-00001"])) == {"part-00001"}
    step.folder.write_bytes("part-00001.parquet", b"damaged")
    assert step.batches(["part-00001"]) == {} and step.batch("part-00001") is None
    step.commit(Outcome())
    assert step.folder.files() == ["_manifest.json"]


def test_an_outage_during_the_sweep_of_a_commit_loses_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the earlier manifest names goes before the new one is there; the next run sweeps."""
    step = make_step(folder)
    rows = [{"id": "1", "url": "u"}]
    old = step.commit(Outcome(outputs=(write_rows(step.folder, "old.parquet", rows, SCHEMA),)))
    new = Outcome(outputs=(write_rows(step.folder, "new.parquet", rows, SCHEMA),))

    def fail(*_: object) -> None:
        raise ConnectionError("the store is gone")

    for act in ("write_bytes", "remove"):
        with monkeypatch.context() as patch, pytest.raises(ConnectionError):
            patch.setattr(Folder, act, fail)
            step.commit(new)
        with Runner(workers=1) as runner:
            found = runner.finished(make_step(folder))
        assert found is not None and (found == old) == (act == "write_bytes")
        if act == "write_bytes":
            new = Outcome(outputs=(write_rows(step.folder, "new.parquet", rows, SCHEMA),))
    assert step.folder.files() == ["_manifest.json", "new.parquet"]


def test_tokens_are_fetched_once_and_verified(folder: Folder, tmp_path: Path) -> None:
    manifest = documents_of(folder, [row("one"), row("two")], per_shard=1)
    copy = on_local_disk(folder, [manifest], Folder(tmp_path))
    assert need_manifest(copy / "clean") == manifest and str(tmp_path) in copy.path()
    second = Path((copy / "clean").path(manifest.outputs[1].name))
    inode = second.stat().st_ino
    assert on_local_disk(folder, [manifest], Folder(tmp_path)).url == copy.url and second.stat().st_ino == inode
    assert on_local_disk(copy, [manifest], Folder(tmp_path)) is copy
    second.unlink()  # a copy that was killed before its end
    (copy / "clean").remove("_manifest.json")
    on_local_disk(folder, [manifest], Folder(tmp_path))
    assert second.exists() and (copy / "clean").size("_manifest.json")
    data = bytearray((folder / "clean").read_bytes(manifest.outputs[0].name))
    data[100] ^= 1
    (folder / "clean").write_bytes(manifest.outputs[0].name, bytes(data))
    with pytest.raises(RunError, match="does not match its manifest"):
        on_local_disk(folder, [manifest], Folder(tmp_path / "other"))
    assert not list((tmp_path / "other").rglob("_manifest.json"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(output_lock, "POLL_SECONDS", 0.02)


def test_an_output_is_locked_by_one_run(folder: Folder) -> None:
    with locked(folder):
        with pytest.raises(UserError, match=f"another run .process {os.getpid()} on .* is at work"), locked(folder):
            pass
        assert folder.size(LOCK)
    assert folder.size(LOCK) is None


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_run_with_patience_waits_for_the_other_one(kind: str, tmp_path: Path) -> None:
    folder = Folder(str(tmp_path) if kind == "local" else f"memory://{uuid.uuid4().hex}")
    order, holds = list[str](), threading.Event()

    def other() -> None:
        with locked(folder):
            holds.set()
            with (
                pytest.raises(UserError, match=f"another run .process {os.getpid()}.* is at work"),
                locked(folder, patience=0.2),
            ):
                pass
            order.append("first ends")

    thread = threading.Thread(target=other)
    thread.start()
    assert holds.wait(60)
    with locked(folder, patience=60):
        order.append("second begins")
    thread.join()
    assert order == ["first ends", "second begins"]


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.ENOLCK, UserError, r"^cannot write .*out/\.lock: No locks available; give another --output$"),
        (errno.ENOSPC, RunError, r"^no space left while writing .*out/\.lock: free some"),
    ],
)
def test_an_output_that_cannot_be_locked_is_named(
    number: int, kind: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network disk without locks."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(filelock.UnixFileLock, "_acquire", refuse)
    with pytest.raises(kind, match=said), locked(Folder(tmp_path / "out")):
        pass


def test_a_dead_lock_is_taken_over(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = f"""
import os, signal
from gpt2train.store.output_lock import _acquire, _machine
from gpt2train.store.folder import Folder
_acquire(Folder({folder.url!r}), {{"token": "x", "host": "h", "machine": _machine(), "pid": os.getpid()}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    if folder.url.startswith("memory"):
        pytest.skip("the memory of a process dies with it")
    done = subprocess.run([sys.executable, "-c", killed], timeout=60)
    assert done.returncode == -signal.SIGKILL and folder.size(LOCK)
    with monkeypatch.context() as patch:
        patch.setattr(output_lock, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pytest.fail))
        with locked(folder):  # at once: its process on this machine is gone
            pass
    # Of another machine nothing is known but that it does not move.
    monkeypatch.setattr(output_lock, "LEASE_SECONDS", 0.5)
    folder.write_bytes(LOCK, b'{"token": "y", "host": "elsewhere", "machine": "m", "pid": 1, "beat": 7}')
    with locked(folder):
        assert b"elsewhere" not in folder.read_bytes(LOCK)


def test_a_run_stops_after_losing_its_lock(folder: Folder) -> None:
    runner = Runner(workers=1)
    with pytest.raises(RunError, match="another run took"), locked(folder, lost=runner.stop):
        folder.write_bytes(LOCK, b'{"token": "of another"}')
        for _ in range(1200):
            time.sleep(0.05)
            runner.batches(make_step(folder), "part", [], note, where="thread")
    assert folder.read_bytes(LOCK) == b'{"token": "of another"}'


def test_unfinished_uploads_are_aborted(folder: Folder) -> None:
    if not folder.url.startswith("s3"):
        pytest.skip("only S3 keeps parts of uploads that nobody finished")
    fs, path = folder.fs, folder.path("big")
    name, _, key = path.partition("/")
    fs.call_s3("create_multipart_upload", Bucket=name, Key=key)
    fs.call_s3("create_multipart_upload", Bucket=name, Key="of-another/big")
    with locked(folder):
        assert [upload["Key"] for upload in fs.list_multipart_uploads(name)] == ["of-another/big"]


def test_drafts_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"{DRAFT}{ended.pid}-aa").write_bytes(b"left")
    (tmp_path / f"{DRAFT}{os.getpid()}-bb").write_bytes(b"at work")
    with locked(Folder(f"memory://{uuid.uuid4().hex}")):
        assert [path.name for path in tmp_path.iterdir()] == [f"{DRAFT}{os.getpid()}-bb"]


def run_code(code: str, **variables: str) -> str:
    program = f"""
from gpt2train.store.folder import Folder
from gpt2train.errors import UserError
try:
    {code}
except (UserError, ConnectionError) as error:
    print(type(error).__name__, error)
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "STORAGE_", "FSSPEC_"))}
    command, env = [sys.executable, "-c", program], {**clean, **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr and KEY not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_an_unusable_store_is_reported_in_one_line() -> None:
    pytest.importorskip("s3fs")
    check = "Folder('s3://none/out').check_writable()"
    with store_server("s3") as variables:
        said = run_code(check, **variables)
        assert "UserError the bucket of s3://none/out/.writable does not exist; create it" in said
        bare = {name: value for name, value in variables.items() if "KEY" not in name}
        assert "UserError no valid credentials for s3://none/out" in run_code(check, **bare)
    once = "from gpt2train.store import object_stores; object_stores.MAX_ATTEMPTS = 1; "
    waiting = run_code(once + check, **environment("s3", free_port()))
    assert "ConnectionError the store does not answer for s3://none/out/.writable" in waiting


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="holds credentials") as caught:
        Folder("s3://AKIA:secret@bucket/out").files()
    assert "AKIA" not in str(caught.value) and "s3://…@bucket/out" in str(caught.value)
    with pytest.raises(UserError, match="Protocol not known"):
        Folder("nosuchstore://x/y").files()
    assert redact("see https://me:pw@h.org/a?sig=1&k=2 and s3://b/c") == "see https://…@h.org/a?… and s3://b/c"
    assert str(pickle.loads(pickle.dumps(RunError("at ftp://u:p@h")))) == "at ftp://…@h"  # noqa: S301


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://Bad_Bucket!/x", "'Bad_Bucket!' cannot be the name of a bucket; give s3://bucket/folder"),
        ("s3://a", "'a' cannot be the name of a bucket; give s3://bucket/folder"),
        ("s3://", "cannot use s3://: it names no bucket; give s3://bucket/folder"),
        *((url, "it names no bucket") for url in ("s3:///x", "s3:/bucket/x")),
        ("gs://b b/x", "'b b' cannot be the name of a bucket; give gs://bucket/folder"),
        ("gs://ünïcode/x", "'ünïcode' cannot be the name"),
    ],
)
def test_a_malformed_bucket_is_one_line(
    url: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (
        lambda: Folder(url).check_writable(),
        lambda: read_any(url),
        lambda: find_inputs([url], "--documents", (".jsonl",)),
        lambda: check_blocklists([url]),
    ):
        with pytest.raises(UserError, match=re.escape(problem)):
            use()
    assert not list(tmp_path.iterdir())


def test_buckets_of_old_and_other_stores_and_access_points_are_taken() -> None:
    pytest.importorskip("s3fs")
    for url in ("s3://My_Old.Bucket/x", "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/x", "s3://abc"):
        assert not Folder(url).is_local
    for name in ("./s3:", "as3:x"):
        assert Folder(name).is_local
