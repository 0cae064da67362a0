"""The engine and the data steps import without POSIX: what Windows lacks of Python's library is hidden."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# All modules are imported twice: what other libraries need of POSIX is loaded by the first time.
PROGRAM = """
import importlib, os, pkgutil, select, signal, socket, sys
import gpt2train, tasks

def load():
    failed = []
    for package in (gpt2train, tasks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except Exception as error:
                    failed.append(f"{module.name}: {type(error).__name__}: {error}")
    return failed

assert not load()
for name in [one for one in sys.modules if one.partition(".")[0] in ("gpt2train", "tasks")]:
    del sys.modules[name]
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
hidden = {
    os: "fork forkpty getegid geteuid getgid getpgid getpgrp getsid getuid killpg mkfifo nice openpty register_at_fork "
    "sched_getaffinity sched_setaffinity setpgid setsid statvfs sysconf uname wait O_CLOEXEC O_DIRECTORY O_NOFOLLOW "
    "O_NONBLOCK WNOHANG",
    select: "epoll poll",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 "
    "SIG_UNBLOCK ITIMER_PROF alarm pthread_kill pthread_sigmask setitimer sigwait",
    socket: "AF_UNIX",
}
for module, names in hidden.items():
    for name in names.split():
        delattr(module, name)
print("\\n".join(load()))
"""


@pytest.mark.slow
def test_every_module_imports_without_posix() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
