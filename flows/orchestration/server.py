"""Embedded Prefect server: started by a command and ended with it.

A command uses the server that `PREFECT_API_URL` or the active Prefect profile names. Without one it starts its own on
127.0.0.1, UI included, so that a newcomer can watch the run in a browser without setting anything up. Its database is
the one in the user's Prefect home, so runs stay listed and the schema migrates once. Prefect's own temporary server is
not used: it would outlive a killed flow.

The command binds the port and hands the socket to the server process. So no other process can ever answer at the
address to which the key goes: neither before the server listens, which takes seconds, nor after it has died.

Any web page in a browser on the same machine can send requests to a port of 127.0.0.1. So the embedded server requires
a key from a file in the Prefect home that only its owner can read, accepts only its own names in the Host header (DNS
rebinding), and allows no other origin (CORS).

`python -m flows.orchestration.server --parent PID --socket DESCRIPTOR` runs the server process.
"""

import argparse
import contextlib
import functools
import gc
import http.client
import io
import logging
import os
import re
import secrets
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import psutil
from pydantic import ValidationError

from gpt2train.errors import RunError, UserError
from gpt2train.launch.process_env import is_loopback
from gpt2train.settings import read_toml
from gpt2train.store.files import probe_space
from gpt2train.store.process import LastChange, die_with_parent, end_process

log = logging.getLogger("gpt2train")

# The first start migrates SQLite: 9-13 s on 2 idle cores, minutes on a busy machine. A process that uses no CPU for
# this long hangs: even under load a runnable process gets some.
STALLED_SECONDS = 120.0
STATUS_SECONDS = 15.0  # between two status lines of the start
STOP_SECONDS = 10.0
WATCH_SECONDS = 1.0  # between two looks at the server process
EMBEDDED = "GPT2TRAIN_EMBEDDED_SERVER"  # environment variable: address of the embedded server of this command
NO_SERVER = "http://127.0.0.1:9"
FLUSH_SECONDS = 10.0
ANSWER_SECONDS = 10.0
HEALTH_SECONDS = 5.0  # for an answer of the server that starts; then its process is looked at
HOSTS = ("127.0.0.1", "localhost")
NO_PROXY = ("no_proxy", "NO_PROXY")
SERVICES = {
    # By default Prefect writes each state of a task run by itself, which takes 17 to 20 ms of the server's CPU time for
    # a task run, and 6 ms in batches. A page shows a state up to a second later.
    "TASK_RUN_RECORDER_BATCH_SIZE": "50",
    "TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # They serve deployments and workers, which need a server that outlives a command; this one would call runs late.
    **dict.fromkeys(("SCHEDULER_ENABLED", "LATE_RUNS_ENABLED", "FOREMAN_ENABLED"), "false"),
}
BACKLOG = 2048  # connections that wait until the server accepts them, as many as uvicorn asks for
KEY_FILE = "gpt2train-api-key"
_ADDRESS = re.compile(r"""^\s*(?:export\s+)?PREFECT_API_URL\s*=\s*(?:["']([^"'\n]+)|([^\s"'#]+))""", re.MULTILINE)
START_LOCK = "gpt2train-server-start.lock"
CLIENT_KEY, SERVER_KEY = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"


@contextlib.contextmanager
def prefect_server(print_status: Callable[[str], None] | None = None) -> Iterator[str | None]:
    """Provide a Prefect API. Yields the address of the embedded UI, or None if a server is configured.

    Enter it before Prefect is imported: it sets `PREFECT_API_URL` and the key of the embedded server.

    Args:
        print_status: callback for the status lines of the start; the default prints them to standard error.

    Raises:
        UserError: no server answers at the configured address.
        RunError: the embedded server did not start, and the message ends with its last output; or it ended before the
            command, which then failed.
    """
    if configured := configured_server():
        check_reachable(configured)
        yield None
        return
    with _take_early() or _start() as server:
        process, listener, port = server.process, server.listener, server.listener.getsockname()[1]
        saved = {name: os.environ.get(name) for name in (CLIENT_KEY, *NO_PROXY)}
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(process, listener, ended), daemon=True)
        try:
            _wait_until_healthy(process, port, server.output, print_status or functools.partial(print, file=sys.stderr))
            os.environ["PREFECT_API_URL"] = os.environ[EMBEDDED] = f"http://127.0.0.1:{port}/api"
            os.environ[CLIENT_KEY] = server.key
            # Prefect's client would ask a proxy for this machine's server. Of both names the lower one counts.
            direct = saved["no_proxy"] or saved["NO_PROXY"]
            if direct != "*":
                os.environ.update(dict.fromkeys(NO_PROXY, ",".join(filter(None, (direct, *HOSTS)))))
            watch.start()
            yield f"http://127.0.0.1:{port}"
        except (UserError, RunError):
            raise
        except Exception as error:
            if process.poll() is None:
                raise
            raise RunError(
                "the embedded Prefect server has ended during the run; run again: finished work is kept"
            ) from error
        finally:
            ended.set()
            _stop(process, saved)
            if watch.is_alive():  # while it looks for connections, the port listens also if it is closed here
                watch.join(2 * WATCH_SECONDS)


@dataclass(frozen=True)
class _Server:
    """Process of an embedded server, whose files are closed at the end of the block."""

    process: subprocess.Popen[bytes]
    listener: socket.socket
    output: IO[str]
    key: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.listener.close()
        self.output.close()


def _start() -> _Server:
    """Start the process of an embedded server."""
    key, output = api_key(), tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `_Server`
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    program = [sys.executable, "-m", "flows.orchestration.server"]
    process = subprocess.Popen(
        [*program, "--parent", str(os.getpid()), "--socket", str(listener.fileno())],
        env={**os.environ, SERVER_KEY: key},  # other users can read a command line, but not an environment
        pass_fds=[listener.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C reaches the command, which stops the server last
    )
    return _Server(process, listener, output, key)


_early: _Server | None = None  # of this process


def start_early() -> None:
    """Start the embedded server that `prefect_server` will need, if it needs one, beside all that the command imports.

    A command that then finds a mistake in its arguments leaves the server to end with it. `kill -9` does it no harm:
    each of its migrations is a transaction.
    """
    global _early
    with contextlib.suppress(UserError, RunError, OSError):  # `prefect_server` meets it again, and reports it
        if not configured_server():
            _early = _start()


def _take_early() -> _Server | None:
    global _early
    early, _early = _early, None
    return early


def _stop(process: subprocess.Popen[bytes], saved: dict[str, str | None]) -> None:
    """Stop the server after what Prefect has yet to send, and restore the environment."""
    if "prefect" in sys.modules:
        from flows.compat.prefect import discard, flush  # import Prefect, which a server alone does not need

        if process.poll() is None:
            flush(FLUSH_SECONDS)  # while the server answers; later Prefect would retry for a minute
        else:
            discard()
    for name in ("PREFECT_API_URL", EMBEDDED, *saved):
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in saved.items() if value is not None})
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _watch(process: subprocess.Popen[bytes], listener: socket.socket, ended: threading.Event) -> None:
    """Cut Prefect's client off from a server process that has ended before the command, whose work needs none.

    Without it a flow whose server was killed ended after 222 s of repeated requests. The port stays bound, or another
    user of the machine could take it and be sent the key; every connection is closed at once.
    """
    while process.poll() is None:
        if ended.wait(WATCH_SECONDS):
            return
    if "prefect" in sys.modules:
        from flows.compat.prefect import disconnect

        disconnect()
    log.warning("the embedded Prefect server has ended; the run goes on without its page")
    with contextlib.suppress(OSError):  # closed at the end of the command
        listener.settimeout(WATCH_SECONDS)
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                listener.accept()[0].close()


def key_file() -> Path:
    """Return the path of the file that holds the key of this user's embedded servers."""
    return _prefect_home() / KEY_FILE


def api_key() -> str:
    """Return the key `user:password` of the embedded servers of this Prefect home, created by the first of them.

    The UI asks for this password, so it stays the same. A file that belongs to another user, or that others can read,
    is replaced.

    Raises:
        UserError: the file cannot be written.
        RunError: the disk is full.
    """
    path = key_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            stat = path.lstat()
            if stat.st_uid != os.geteuid() or stat.st_mode & 0o177077 != 0o100000 or not stat.st_size:
                path.unlink()
        # Written to a temporary file and linked, so that two commands that start at once read the same complete key.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{KEY_FILE}-")  # mode 0600
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"gpt2train:{secrets.token_urlsafe(32)}\n")
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            Path(temporary).unlink()
        return path.read_text().strip()
    except OSError as error:
        _check_space(error)
        raise UserError(
            f"cannot store the key of the embedded Prefect server in {path} ({error.strerror}); set PREFECT_HOME to a "
            "folder that you own"
        ) from error


def is_embedded() -> bool:
    """Return True if the current server is the embedded one of this command."""
    return EMBEDDED in os.environ and os.environ[EMBEDDED] == os.environ.get("PREFECT_API_URL")


def configured_server() -> str | None:
    """Return the API address that the user's settings of Prefect name, so that none is embedded.

    They are the environment, `.env`, `prefect.toml` and `pyproject.toml` of the working folder, and the active profile,
    in Prefect's order. It reads them without importing Prefect (1-3 s).
    """
    path = _profiles_path()
    if address := os.environ.get("PREFECT_API_URL") or _address_in_folder():
        return address
    if not path.exists():
        return None
    profiles = read_toml(path)
    active = os.environ.get("PREFECT_PROFILE", profiles.get("active"))
    return profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL") or None


def _address_in_folder() -> str | None:
    """Return the API address that a file of the working folder names; Prefect itself reports a damaged one."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for quoted, plain in _ADDRESS.findall(Path(".env").read_text("utf-8"))[-1:]:  # of several, the last one counts
            return str(quoted or plain)
    for name, table in (("prefect.toml", ()), ("pyproject.toml", ("tool", "prefect"))):
        with contextlib.suppress(UserError, AttributeError):
            settings = read_toml(name)
            for key in (*table, "api"):
                settings = settings.get(key, {})
            if address := settings.get("url"):
                return str(address)
    return None


def check_reachable(address: str) -> None:
    """Check that a server answers at the address of an API. Prefect itself retries for minutes, then raises.

    Raises:
        UserError: no server answers.
    """
    # Requests to loopback must bypass proxies; other machines may be reachable only through one.
    loopback = is_loopback(urllib.parse.urlsplit(address).hostname or "")
    handlers = [urllib.request.ProxyHandler({})] if loopback else []
    try:
        urllib.request.build_opener(*handlers).open(f"{address.rstrip('/')}/health", timeout=ANSWER_SECONDS).close()
        return
    except (OSError, ValueError, http.client.HTTPException) as error:  # the last of another service at that port
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        # A server that refuses the request is there; Prefect handles the refusal (a key, another path), and has its own
        # settings for certificates.
        if isinstance(error, urllib.error.HTTPError) or isinstance(reason, ssl.SSLError):
            return
    text = getattr(reason, "strerror", None) or str(reason)
    raise UserError(
        f"no Prefect server answers at {address} ({text.lower()}); start it (prefect server start), or unset "
        "PREFECT_API_URL (in the Prefect profile too) to use the embedded server"
    )


def check_home() -> None:
    """Check that Prefect can read the profiles in its home folder, as its import does.

    Raises:
        UserError: the folder is another user's, as after `sudo -u`, there is no home folder, or the file is damaged.
    """
    # Of Prefect's import, two lines; the server that needs the folder names it.
    warnings.filterwarnings("ignore", message="Failed to create the Prefect home")
    try:
        with contextlib.suppress(FileNotFoundError):
            _profiles_path().stat()
            read_toml(_profiles_path())
    except RuntimeError as error:
        raise UserError("there is no home folder, which Prefect needs; set HOME to a folder that you own") from error
    except OSError as error:
        raise UserError(
            f"cannot read {_prefect_home()} ({error.strerror}), the home of Prefect; set PREFECT_HOME to a folder that "
            "you own"
        ) from error


def check_settings() -> None:
    """Check the settings of Prefect by importing it, as a command does next.

    Raises:
        UserError: Prefect refuses a value, or cannot read a file.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:  # it also prints the error, in many lines
            from prefect.settings import get_current_settings

            get_current_settings()
    except ValueError as error:  # of pydantic, of pydantic-settings, or of a file's encoding
        text = _explain_setting(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(
            f"Prefect refuses its settings: {text}; correct it in the environment, in the .env, prefect.toml or "
            f"pyproject.toml of this folder, or in {_profiles_path()}"
        ) from error
    print(said.getvalue(), end="", file=sys.stderr)


def _explain_setting(error: ValidationError) -> str:
    """Return the environment variable of the first setting that Prefect refuses, and the reason."""
    from prefect.settings.base import PrefectBaseSettings

    groups = PrefectBaseSettings.__subclasses__()
    prefix = next(group.model_config["env_prefix"] for group in groups if group.__name__ == error.title)
    first = error.errors(include_url=False)[0]
    return f"{prefix}{'_'.join(map(str, first['loc']))}".upper() + f": {first['msg']}"


def _profiles_path() -> Path:
    return Path(os.environ.get("PREFECT_PROFILES_PATH", _prefect_home() / "profiles.toml"))


def _prefect_home() -> Path:
    """Folder of Prefect's profiles and of the default database of its server."""
    return Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))


def _check_space(cause: OSError | None = None) -> None:
    if full := probe_space(_prefect_home()):
        place = f"in {_prefect_home()} for the embedded Prefect server"
        raise RunError(f"{full.reason} {place}; {full.remedy} and run again") from cause


def _wait_until_healthy(
    process: subprocess.Popen[bytes], port: int, output: IO[str], print_status: Callable[[str], None]
) -> None:
    """Wait for the server as long as its process lives and uses CPU time; on a busy machine this takes minutes.

    Raises:
        RunError: the process ended, or used no CPU time for `STALLED_SECONDS`.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # requests to loopback bypass proxies
    started_at = last_status = time.monotonic()
    progress = LastChange()
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            if opener.open(f"http://127.0.0.1:{port}/api/health", timeout=HEALTH_SECONDS).status == 200:
                return
        now, used = time.monotonic(), _cpu_seconds(process.pid)
        if process.poll() is not None or progress.age(used) > STALLED_SECONDS:
            _check_space()  # the server itself does not report it
            output.seek(0)
            lines = output.read().rpartition("Traceback (most recent call last):")[2].splitlines()
            text = " ".join(line.strip() for line in lines if not line.startswith(" "))[-300:].strip() or "no output"
            raise RunError(
                f"the embedded Prefect server did not start ({text}); run again, or set PREFECT_HOME to another "
                "folder, for another database, or PREFECT_API_URL to your server"
            )
        if now - last_status > STATUS_SECONDS:
            last_status = now
            print_status(
                f"waiting for the embedded Prefect server to start: {now - started_at:.0f} s, {used:.0f} s of CPU; the "
                "first start creates its tables"
            )
        time.sleep(0.1)


def _cpu_seconds(pid: int) -> float:
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def serve(listener: socket.socket) -> None:
    """Run Prefect's API and UI on a socket of 127.0.0.1 until the process gets a signal to stop."""
    port = listener.getsockname()[1]
    # The page of the work pools makes the API fetch a list of worker types from the internet; if that fails it uses a
    # bundled copy. Nothing answers on port 9 (discard) of this machine, so the fetch fails at once.
    os.environ.update(dict.fromkeys(("https_proxy", "HTTPS_PROXY"), NO_SERVER), no_proxy="", NO_PROXY="")
    gc.disable()  # imports create a million objects and no garbage; collection takes a sixth of their time
    os.environ["PREFECT_SERVER_API_BASE_PATH"] = "/api"  # the user's is that of a server behind a proxy
    os.environ["PREFECT_UI_API_URL"] = f"http://127.0.0.1:{port}/api"
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(f"http://{host}:{port}" for host in HOSTS)
    for name, value in SERVICES.items():
        os.environ.setdefault(f"PREFECT_SERVER_SERVICES_{name}", value)
    import uvicorn  # here, with Prefect (1-3 s): the commands import this module too
    from filelock import FileLock
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    class Server(uvicorn.Server):
        """Server that creates or migrates its tables while no other one of this Prefect home does."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            # Two servers that create the same tables at once both run the same statements, and the second one ends.
            with FileLock(_prefect_home() / START_LOCK):
                await super().startup(sockets)
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # nobody reads what a run of days writes
            gc.freeze()
            gc.enable()

    config = uvicorn.Config(
        TrustedHostMiddleware(create_app(final=True), allowed_hosts=HOSTS, www_redirect=False),
        log_level="error",  # the command reads why the start failed
        lifespan="on",  # it runs the migrations
        timeout_graceful_shutdown=3,
    )
    server = Server(config)
    server.run(sockets=[listener])
    end_process(0 if server.started else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--socket", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    serve(socket.socket(fileno=arguments.socket))
