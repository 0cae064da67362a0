"""The embedded Prefect server: one per command, gone with the command.

A command uses the server that `PREFECT_API_URL` (or the active profile) names. Where there is none it starts one of
its own on 127.0.0.1, UI included, so that a newcomer starts nothing by hand and can watch the run in a browser. Its
database is the one in the user's Prefect home, so runs stay listed and the schema migrates once. Prefect's own
temporary server is not used: a killed flow would leave it behind.

`python -m flows.server --parent PID --port N` is that child.
"""

import argparse
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gpt2train.errors import RunError, UserError
from gpt2train.files import is_full
from gpt2train.lifeline import die_with_parent
from gpt2train.settings import read_toml

START_SECONDS = 120.0  # the first start migrates SQLite: 9-13 s on 2 quiet cores
STOP_SECONDS = 10.0
EMBEDDED = "GPT2TRAIN_EMBEDDED_SERVER"  # address of the server that a command has of its own
NOWHERE = "http://127.0.0.1:9"
FLUSH_SECONDS = 10.0
ANSWER_SECONDS = 10.0


@contextlib.contextmanager
def prefect_server() -> Iterator[str | None]:
    """Make sure that a Prefect API answers; yields the address of the embedded UI, or None with a server of the user.

    Must be entered before Prefect is imported: it sets `PREFECT_API_URL`.

    Raises:
        UserError: nothing answers at the address that is named.
        RunError: the embedded server did not come up; the message has its last words.
    """
    if named := _named_server():
        check_answers(named)
        yield None
        return
    port = _free_port()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.server", "--parent", str(os.getpid()), "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches the command, which stops the server last
        )
        try:
            _wait_until_healthy(process, port, output)
            os.environ["PREFECT_API_URL"] = os.environ[EMBEDDED] = f"http://127.0.0.1:{port}/api"
            yield f"http://127.0.0.1:{port}"
        finally:
            _flush_prefect()
            for name in ("PREFECT_API_URL", EMBEDDED):
                os.environ.pop(name, None)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_embedded() -> bool:
    """Whether the server is this command's own, which ends with it."""
    return EMBEDDED in os.environ and os.environ[EMBEDDED] == os.environ.get("PREFECT_API_URL")


def names_a_server() -> bool:
    """Whether the environment or the active Prefect profile names an API, so that none is embedded."""
    return _named_server() is not None


def check_answers(address: str) -> None:
    """See that something answers at the address of an API; Prefect itself tries for minutes, and ends in a traceback.

    Raises:
        UserError: nothing does.
    """
    # A proxy must not see loopback; other machines may be reached through one alone.
    handlers = [urllib.request.ProxyHandler({})] if _is_loopback(address) else []
    reason: object
    try:
        urllib.request.build_opener(*handlers).open(f"{address.rstrip('/')}/health", timeout=ANSWER_SECONDS).close()
        return
    except urllib.error.HTTPError:
        return  # whoever refuses us is there; what it wants (a key, another path) Prefect knows better
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            return  # Prefect has settings of its own for certificates
        reason = error.reason
    except (OSError, ValueError) as error:
        reason = error
    said = getattr(reason, "strerror", None) or str(reason)
    raise UserError(
        f"no Prefect server answers at {address} ({said.lower()}); start it (prefect server start), or unset "
        "PREFECT_API_URL (in the Prefect profile too) to have one for this command alone"
    )


def _is_loopback(address: str) -> bool:
    host = urllib.parse.urlsplit(address).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _named_server() -> str | None:
    """The address of the API that the environment or the active Prefect profile names."""
    return os.environ.get("PREFECT_API_URL") or _profile_server()


def _home() -> Path:
    """Where Prefect keeps its profiles and the database of a server that it is not told another for."""
    return Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))


def _profile_server() -> str | None:
    """The API address of the active Prefect profile. Read without importing Prefect (1-3 s)."""
    path = Path(os.environ.get("PREFECT_PROFILES_PATH", _home() / "profiles.toml"))
    if not path.exists():
        return None
    profiles = read_toml(path)
    active = os.environ.get("PREFECT_PROFILE", profiles.get("active"))
    return profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL") or None


def _flush_prefect() -> None:
    """Deliver what Prefect still holds (logs, events) while the server answers; later it would retry for a minute."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (APILogWorker, EventsWorker):
        service.drain_all(timeout=FLUSH_SECONDS, at_exit=False)


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, output: IO[str]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy must not see loopback
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            if opener.open(f"http://127.0.0.1:{port}/api/health", timeout=5).status == 200:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            if is_full(home := _home()):  # of which the server itself says nothing
                raise RunError(f"no space left in {home} for the embedded Prefect server; free some and run again")
            output.seek(0)
            words = " ".join(output.read().split())[-300:] or "it said nothing"
            raise RunError(f"the embedded Prefect server did not start ({words}); run again, or set PREFECT_API_URL")
        time.sleep(0.1)


def serve(port: int) -> None:
    """Run Prefect's API and UI on 127.0.0.1 until told to stop."""
    # Whoever looks at the work pools makes the API fetch a list of worker types from outside; where nothing answers it
    # takes the copy beside it. Port 9 (discard) of this machine answers nothing.
    os.environ.update(dict.fromkeys(("https_proxy", "HTTPS_PROXY"), NOWHERE), no_proxy="", NO_PROXY="")
    os.environ["PREFECT__SERVER_FINAL"] = "1"
    os.environ["PREFECT_UI_API_URL"] = f"http://127.0.0.1:{port}/api"
    # A run that is killed takes its server along; the next one finds on the disk which slots were that run's.
    import uvicorn

    # `--factory` as Prefect starts it; the lifespan runs the migrations.
    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=port,
        log_level="critical",
        lifespan="on",
        timeout_graceful_shutdown=3,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    serve(arguments.port)
