"""Passwords and signatures in given addresses: absent from database, files and log lines."""

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.dataprep import dataprep
from flows.settings import DataprepSettings, resolve
from gpt2train.errors import UserError
from tasks.blacklist.blocklists import check_blocklists
from tasks.core.input_files import base_name, find_inputs, read_any
from tests.flows.conftest import Server
from tests.flows.mini_pipeline import Mini

SECRETS = ("SECRETPW", "SECRETSIG", "SECRETTOKEN", "SEC%2FRETENC", "RETSLASH")
SPELLINGS = [
    "http://user:SECRETPW@127.0.0.1:9/list.txt",
    "https://SECRETTOKEN@127.0.0.1:9/list.txt",
    "http://127.0.0.1:9/list.txt?X-Amz-Credential=a&X-Amz-Signature=SECRETSIG",
    "http://user:SEC%2FRETENC@127.0.0.1:9/list.txt?sig=SECRETSIG#token=SECRETTOKEN",
    "ftp://user:SECRETPW@127.0.0.1:9/list.txt",
    "s3://key:SECRETPW@bucket/list.txt",
    "s3://key:SEC/RETSLASH@bucket/list.txt",
    "S3A://SECRETTOKEN@bucket/list.txt",
    "gs://key:SECRETPW@bucket/list.txt",
    "simplecache::s3://key:SECRETPW@bucket/list.txt",
    "http:/user:SECRETPW@127.0.0.1:9/list.txt",
]


def leaks(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("address", SPELLINGS)
def test_no_error_and_no_parameter_contains_a_secret(address: str) -> None:
    """Messages of libraries included, which name what they took for a bucket."""
    for read in (lambda: find_inputs([address], "--urls", (".txt",)), lambda: read_any(address)):
        with pytest.raises(UserError) as caught:
            read()
        assert not leaks(str(caught.value)) and ("…" in str(caught.value))
    assert not leaks(base_name(address))

    with pytest.raises(UserError, match="holds credentials") as caught:
        check_blocklists(["s3://key:SECRETPW@bucket/list"])
    assert not leaks(str(caught.value))
    # Nor do parameters that are sent to Prefect.
    given = resolve(DataprepSettings, flags={"urls": [address], "lambada": address, "documents": [f"{address}.gz"]})
    sent = dataprep.serialize_parameters({"config": None, **given.model_dump(mode="json")})
    assert not leaks(repr(sent)) and "…" in sent["lambada"] and sent["json_key"] == "text"


@pytest.fixture
def lists(tmp_path: Path) -> Iterator[str]:
    """Address of a server of a list of URLs, none of which may be asked for, and of passages, whatever the query."""
    (folder := tmp_path / "served").mkdir()
    (folder / "urls.txt").write_text("http://www.youtube.example/x\nnot a url\n")
    (folder / "lambada.jsonl").write_text('{"text": "a b"}\n')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.slow
def test_a_command_leaves_no_secret_behind(mini: Mini, server: Server, lists: str, tmp_path: Path) -> None:
    """Checked are parameters, logs and state in the server's database, the output, and both streams."""
    command = [sys.executable, "-m", "flows.dataprep", "--output", str(tmp_path / "out")]
    command += ["--urls", f"http://user:SECRETPW@{lists}/urls.txt?X-Amz-Signature=SECRETSIG"]
    command += ["--lambada", f"http://SECRETTOKEN@{lists}/lambada.jsonl?sig=SECRETSIG"]
    environment = mini.environ(**server.environment)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "blacklisted_domain 1" in error and "malformed 1" in error
    by_name = {"name": {"any_": ["dataprep"]}}
    [run] = server.ask("POST", "flow_runs/filter", flows=by_name, sort="START_TIME_DESC", limit=1)
    assert run["parameters"]["urls"] == [f"http://…@{lists}/urls.txt?…"] and run["state"]["type"] == "FAILED"
    assert not leaks(done.stdout + done.stderr)
    held = [path for folder in (server.home, tmp_path / "out") for path in folder.rglob("*") if path.is_file()]
    assert held and not [path for path in held if leaks(path.read_bytes().decode("latin-1"))]
