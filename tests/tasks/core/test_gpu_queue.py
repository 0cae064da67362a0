"""The GPU queue of one machine: waiting trainings, shared GPUs, locks of killed ones, foreign files."""

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpt2train.errors import RunError
from tasks.core import gpu_queue
from tests.processes import wait_for

HOLDS = """
import sys
from pathlib import Path
from tasks.core.gpu_queue import gpu_slot
folder, who, share, *devices = sys.argv[1:]
with gpu_slot(devices, int(share), who, lambda what: print("waits:", what, flush=True), Path(folder)):
    print("holds", flush=True)
    sys.stdin.read()
"""


class Training:
    """A process that takes GPUs and holds them until it is asked to end."""

    def __init__(self, folder: Path, who: str, *places: str, share: int = 1) -> None:
        command = [sys.executable, "-c", HOLDS, str(folder), who, str(share), *places]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def says(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[Training]]:
    trainings: list[Training] = []
    yield trainings
    for one in trainings:
        one.process.kill()
        one.process.wait()


def test_trainings_wait_for_the_gpus_of_each_other(
    tmp_path: Path, running: list[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Training(tmp_path, "run A", "GPU 0", "GPU 1")
    running.append(first)
    wait_for(lambda: first.says("holds"), 60, "the first")
    overlaps = Training(tmp_path, "run B", "GPU 1", "GPU 2")
    elsewhere = Training(tmp_path, "run C", "GPU 3")
    shares = Training(tmp_path, "run D", "GPU 0", share=2)
    running += [overlaps, elsewhere, shares]
    wait_for(lambda: elsewhere.says("holds"), 60, "the one on another GPU")
    wait_for(lambda: shares.says("holds"), 60, "the one that shares")
    wait_for(lambda: overlaps.says(f"waits: GPU 1 is taken by run A (process {first.process.pid})"), 60, "the wait")
    assert not overlaps.says("holds")
    first.process.kill()  # leaves no message; the kernel frees its locks
    wait_for(lambda: overlaps.says("holds"), 60, "the turn after a kill")
    overlaps.end()
    logged: list[str] = []
    with gpu_queue.gpu_slot(["GPU 1", "GPU 2"], 1, "run E", logged.append, tmp_path):
        assert logged == []


def test_a_job_keeps_the_gpus_of_a_killed_flow(tmp_path: Path) -> None:
    flow = f"""
import os, subprocess, sys
from pathlib import Path
from tasks.core.gpu_queue import gpu_slot
with gpu_slot(["cores"], 1, "me", print, Path({str(tmp_path)!r})):
    subprocess.Popen([sys.executable, "-c", "input()"], stdout=subprocess.DEVNULL, close_fds=False)
    os.kill(os.getpid(), 9)
"""
    reads, writes = os.pipe()  # the job ends when it closes
    assert subprocess.run([sys.executable, "-c", flow], stdin=reads, check=False).returncode == -9
    os.close(reads)

    def is_free() -> bool:
        file = gpu_queue._open(tmp_path / "cores.0")
        try:
            return gpu_queue._lock(file)
        finally:
            os.close(file)

    assert not is_free()
    os.close(writes)
    wait_for(is_free, 60, "the end of the job")


def test_text_of_another_user_is_shown_as_one_short_line(tmp_path: Path) -> None:
    file = tmp_path / "cores.0"
    file.write_text('{"who": "a\\nb\\u001b[2J' + "x" * 900 + '", "process": 1}')
    [words] = gpu_queue._holders(tmp_path, "cores", 1)
    assert words.startswith("a b [2Jx")
    assert len(words) < gpu_queue.MAX_HOLDER_CHARS + 20
    file.write_text("no note")
    assert gpu_queue._holders(tmp_path, "cores", 1) == []


def check_refused(reason: str, *place: Path) -> None:
    with pytest.raises(RunError, match=reason), gpu_queue.gpu_slot(["cores"], 1, "me", print, *place):
        pass


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to, lambda file, _: os.mkfifo(file)])
def test_a_link_is_not_followed_and_a_pipe_blocks_nobody(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    (tmp_path / "precious").write_text("mine")
    make(tmp_path / "cores.0", tmp_path / "precious")
    check_refused(gpu_queue.FOLDER_VARIABLE if make is Path.symlink_to else "not a regular file", tmp_path)
    assert (tmp_path / "precious").read_text() == "mine"
    assert gpu_queue._holders(tmp_path, "cores", 1) == []


def test_a_symbolic_link_instead_of_the_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "gpt2train-gpu-queue").symlink_to(tmp_path / "mine")
    monkeypatch.delenv(gpu_queue.FOLDER_VARIABLE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    check_refused("it is a link.*set GPT2TRAIN_GPU_QUEUE")
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    assert list((tmp_path / "mine").iterdir()) == []


def test_an_existing_folder_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu_queue.FOLDER_VARIABLE, str(tmp_path / "turns"))
    (tmp_path / "turns").mkdir(mode=0o700)
    with gpu_queue.gpu_slot(["cores"], 1, "me", print):
        assert stat.S_IMODE((tmp_path / "turns").stat().st_mode) == 0o700
    (tmp_path / "turns").chmod(0o777)
    check_refused(r"chmod \+t")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process of another user")
def test_two_users_share_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = """
import fcntl, os, sys
os.setgroups([]); os.setgid(12345); os.setuid(12345)
file = os.open(sys.argv[1], os.O_RDWR | os.O_NOFOLLOW)
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(75)
os.ftruncate(file, 0)
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:  # pytest's own folders are closed to other users
        Path(shared).chmod(0o711)
        monkeypatch.setenv(gpu_queue.FOLDER_VARIABLE, f"{shared}/turns")
        command = [sys.executable, "-c", stranger, f"{shared}/turns/cores.0"]
        with gpu_queue.gpu_slot(["cores"], 1, "me", print):
            assert subprocess.run(command, check=False).returncode == 75
        assert subprocess.run(command, check=False).returncode == 0


def test_the_folder_is_writable_for_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu_queue.FOLDER_VARIABLE, str(tmp_path / "turns"))
    umask = os.umask(0o077)
    try:
        with gpu_queue.gpu_slot(["cores"], 1, "me", print):
            assert (tmp_path / "turns").stat().st_mode & 0o7777 == 0o1777
            assert (tmp_path / "turns" / "cores.0").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(umask)
    monkeypatch.setenv(gpu_queue.FOLDER_VARIABLE, "/proc/none")
    check_refused("set GPT2TRAIN_GPU_QUEUE to another folder")
