"""`gpt2train client` against a real server: requests, output, refused input, and exit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.serve import OURS, server
from gpt2train.errors import RunError, UserError
from gpt2train.serve.client import ASK_PROMPT, ASK_TOKENS, base_of, complete
from tests.gpt2train.serve.fixed_text_model import write_reciting_model

KEY = "open sesame"
TEXT = "sesame \x1b[31m opens.\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with a key; after n letters it continues with TEXT from letter n on."""
    model = tmp_path_factory.mktemp("reciting") / "model"
    write_reciting_model(model, TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPT2TRAIN_API_KEY", KEY)
        with server(OURS, model, ["--temperature", "0.01"], threads=1) as (found, _):
            yield found.removeprefix("http://")


def start(address: str, key: str | None = KEY) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "GPT2TRAIN_API_KEY"}
    environment["http_proxy"] = "http://127.0.0.1:9"  # where nothing listens: the client asks its server directly
    if key:
        environment["GPT2TRAIN_API_KEY"] = key
    command = [sys.executable, "-m", "gpt2train", "client", address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **pipes)  # type: ignore[call-overload]


def test_a_conversation_shows_the_answers_of_the_server(address: str, tmp_path: Path) -> None:
    spoil = tmp_path / "spoiled"
    typed = ["Open", f"open({str(spoil)!r}, 'w')", "-3", "2.5", "0", "", "33", "More", "100000", "", "5"]
    client = start(address)
    out, err = client.communicate("\n".join([*typed, ""]), timeout=60)
    assert (client.returncode, err) == (0, "")
    assert not spoil.exists()
    assert out.count("is not a number of tokens; type a whole number of 1 or more") == 5
    begun = "Open" + (TEXT * 9)[4:][:33].replace("\x1b", "\ufffd")  # a terminal obeys no model
    assert f"{ASK_TOKENS}Megatron Response: \n{begun}\n{ASK_PROMPT}" in out
    assert "error: tokens_to_generate: length of prompt (4 tokens) + tokens_to_generate (100000) is longer" in out
    assert "error: prompts: an empty prompt needs add_BOS (HTTP 400)" in out
    assert out.endswith(f"{ASK_PROMPT}\n")


def test_a_missing_key_is_reported(address: str) -> None:
    client = start(address, key=None)
    out, _ = client.communicate("Open\n3\n", timeout=60)
    assert client.returncode == 0
    assert "error: send the key of this server" in out


def test_ctrl_c_ends_the_client(address: str) -> None:
    client = start(address)
    assert client.stdout and client.stdout.read(len(ASK_PROMPT)) == ASK_PROMPT
    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=60)
    assert (client.returncode, out, err) == (0, "\n", "")


def test_an_unreachable_server_is_an_error() -> None:
    client = start("127.0.0.1:1")
    out, err = client.communicate("Open\n3\n", timeout=60)
    assert (client.returncode, out) == (1, "")
    assert err.startswith("error: no server responds at http://127.0.0.1:1: Connection refused; check the address")
    with pytest.raises(RunError, match="is the server still running"):
        complete("http://127.0.0.1:1", "Open", 3)


@pytest.mark.parametrize("typed", ["", "localhost", ":5000", "localhost:many", "ftp://localhost:5000", "[::1:5000"])
def test_an_invalid_address_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="give HOST:PORT"):
        base_of(typed)


def test_addresses_are_completed() -> None:
    assert base_of("localhost:5000") == "http://localhost:5000"
    assert base_of("[::1]:5000") == "http://[::1]:5000"
    assert base_of("https://models.example/gpt2/api") == "https://models.example/gpt2"
