"""The server over HTTP: streams, limits, deadlines, its end; and the client of a conversation."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.serve import OURS, server
from gpt2train.errors import RunError, UserError
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.settings import SamplingSettings
from gpt2train.serve.client import ASK_PROMPT, ASK_TOKENS, base_of, complete
from gpt2train.serve.service import name_of
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.models import generate_tokens
from tests.gpt2train.serve.fixed_text_model import write_reciting_model
from tests.gpt2train.serve.local_server import Gate, Running, running, small_model, tokenizer
from tests.processes import wait_for

KEY = "a key that nobody may see"


def greedy(prompt: str, new: int) -> str:
    settings = SamplingSettings(temperature=0, max_new_tokens=new)
    tokens = generate_tokens(small_model(), [list(tokenizer().encode(prompt).ids)], 256, settings)[0]
    return str(tokenizer().decode(tokens))


def test_a_completion_equals_the_generation_of_the_model(server: Running) -> None:
    body = {"prompt": ["Once", "In"], "max_tokens": 6, "temperature": 0, "model": "small"}
    answer = server.client.post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in answer["choices"]] == [greedy("Once", 6), greedy("In", 6)]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18}


def test_a_small_answer_is_sent_at_once(server: Running) -> None:
    """Nagle's algorithm, which waits 40 ms for a client's acknowledgement, is off."""
    assert server.client.get("/health").status_code == 200
    [connection] = server.server.http.server_state.connections
    there = connection.transport.get_extra_info("socket")
    assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_echo_returns_the_prompt_with_scores(server: Running) -> None:
    ids = tokenizer().encode("Once upon").ids
    for prompt in ("Once upon", ids, [ids]):
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
        choice = server.client.post("/v1/completions", json=body).json()["choices"][0]
        scores = choice["logprobs"]
        assert choice["text"] == "Once upon" + greedy("Once upon", 1)
        assert scores["tokens"][:9] == list("Once upon")
        assert scores["text_offset"] == list(range(10))
        assert scores["token_logprobs"][0] is None
        logits = LocalDecoder(small_model(), 1).logits(ids).log_softmax(1)
        expected = [float(logits[i, token]) for i, token in enumerate(ids[1:])] + [float(logits[-1].max())]
        assert scores["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
        assert [max(top.values()) for top in scores["top_logprobs"][1:]] == pytest.approx(
            logits.max(1).values.tolist(), abs=1e-4
        )
        only = server.client.post("/v1/completions", json=body | {"max_tokens": 0}).json()["choices"][0]
        assert only["text"] == "Once upon"
        assert only["logprobs"]["token_logprobs"] == pytest.approx(scores["token_logprobs"][:-1], abs=1e-4)


@pytest.mark.parametrize(
    ("prompt", "starts"),
    [
        ("€a€b", [0, 1, 2, 2, 2, 3]),  # a partial character, and a whole one of three tokens
        ("€", [0]),
        ("", [0]),  # the end of a document, which is no part of the text
    ],
)
def test_offsets_are_places_in_the_text(server: Running, prompt: str, starts: list[int]) -> None:
    ids = tokenizer().encode(prompt).ids  # of the first character the first byte
    body = {
        "prompt": [ids[0], *ids[3:]] if ids else prompt,
        "max_tokens": 9,
        "temperature": 0,
        "logprobs": 0,
        "echo": True,
    }
    choice = server.client.post("/v1/completions", json=body).json()["choices"][0]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert offsets[: len(starts)] == starts
    for token, start in list(zip(tokens, offsets, strict=True))[not prompt :]:
        assert token.startswith("bytes:") or choice["text"].startswith(token, start)


def stream(client: httpx.Client, **body: Any) -> list[Any]:
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_stream_gives_the_same_text_in_pieces(server: Running) -> None:
    body = {"prompt": ["Once", "Upon a"], "max_tokens": 30, "n": 2, "seed": 7, "echo": True, "logprobs": 2, "stop": "e"}
    whole = server.client.post("/v1/completions", json=body).json()
    chunks = stream(server.client, **body, stream_options={"include_usage": True})
    assert chunks.pop()["usage"] == whole["usage"]
    for choice in whole["choices"]:
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            pieces = [value for c in own for value in c["logprobs"][name]]
            assert json.dumps(pieces)[:40] == json.dumps(values)[:40]
            assert len(pieces) == len(values)
    assert len({choice["text"] for choice in whole["choices"]}) == 4


WRONG: dict[str, list[Any]] = {
    "prompt": [1, [], [[]], ["a", 1], [True], [257], "\ud800"],
    "max_tokens": [128, True, 2.5],
    "temperature": [-1, float("nan")],
    "top_p": ["1"],
    "n": [0],
    "best_of": [2],
    "stop": [[""]],
    "seed": [2**64],
    "stream_options": [{}],
    "wrong": [2],
}


def test_wrong_completion_requests_are_refused(server: Running) -> None:
    bodies: list[dict[str, Any]] = [{}, {"prompt": "a" * 128, "max_tokens": 1}, {"prompt": ["a"] * 65, "n": 2}]
    cases = [(field, {"prompt": "a", field: value}) for field, values in WRONG.items() for value in values]
    for field, body in [*cases, *(("prompt", body) for body in bodies)]:
        sent = json.dumps(body)
        answer = server.client.post("/v1/completions", content=sent, headers={"Content-Type": "application/json"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["type"]) == (400, field, "invalid_request_error"), body
        assert field in error["message"] or "model's context" in error["message"], body


def test_model_names_are_listed_and_checked(server: Running) -> None:
    assert [model["id"] for model in server.client.get("/v1/models").json()["data"]] == ["small"]
    assert server.client.get("/v1/models/small").json()["id"] == "small"
    for answer, code in (
        (server.client.get("/v1/models/other"), "model_not_found"),
        (server.client.post("/v1/completions", json={"prompt": "a", "model": "other"}), "model_not_found"),
        (server.client.get("/v1/nothing"), None),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)
    long = server.client.post("/v1/completions", json={"prompt": "a" * 200})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert server.client.get("/v1/completions").status_code == 405
    assert "message" in server.client.get("/nothing").json()
    slash = server.client.post("/v1/completions/", json={"prompt": "a"})
    assert slash.status_code == 404 and "no such path; the paths are" in slash.text


def test_a_model_is_named_after_its_run(server: Running, tmp_path: Path) -> None:
    for folder, name in (("small-1/model", "small-1"), ("small-1", "small-1"), ("model/other", "other")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        assert name_of(tmp_path / folder) == name
    assert name_of(Path("/model")) == "model"
    assert name_of(tmp_path / f"hub/models--some--small-2/snapshots/{'0a' * 20}") == "small-2"
    (tmp_path / "link").symlink_to(tmp_path / "small-1" / "model")
    assert name_of(tmp_path / "link") == "small-1"
    [model] = server.client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("small", 128)
    assert model["parameters"] == sum(one.numel() for one in small_model().parameters()) - (384 - 257) * 32
    body = {"prompt": "a", "max_tokens": 1, "model": "model"}  # what every model was once called
    assert server.client.post("/v1/completions", json=body).json()["model"] == "small"
    assert server.client.get("/v1/models/model").json()["id"] == "small"


def test_pages_and_metrics_are_served(server: Running) -> None:
    assert server.client.get("/health").json()["status"] == "ok"
    assert server.client.get("/").status_code == 200
    manual = server.client.get("/docs").text
    assert "random_seed" in manual
    assert "max_tokens" in manual
    assert "http" not in manual  # nothing from elsewhere
    assert "<td>None" not in manual and "<td>False" not in manual  # as JSON has it
    assert set(server.client.get("/openapi.json").json()["paths"]["/api"]) == {"put", "post"}
    before = server.client.get("/metrics").text
    server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
    after = server.client.get("/metrics").text

    def count(text: str, name: str) -> float:
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    assert count(after, "gpt2train_generated_tokens_total") - count(before, "gpt2train_generated_tokens_total") == 3
    answered = 'gpt2train_requests_total{path="/v1/completions",status="200"}'
    assert count(after, answered) - count(before, answered) == 1
    assert "gpt2train_request_seconds_bucket" in after
    assert count(after, "gpt2train_running_rows") == count(after, "gpt2train_waiting_sequences") == 0


def test_a_full_queue_and_a_large_body_are_refused() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    with (
        running(gate, ServeSettings(max_batch_size=1, max_queued=1, max_body=2000)) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        body = {"prompt": "a", "max_tokens": 4, "temperature": 0}
        waiting = [pool.submit(server.client.post, "/v1/completions", json=body) for _ in range(2)]
        batcher = server.server.service.batcher
        wait_for(lambda: (batcher.rows, batcher.waiting) == (1, 1), 60, "one row and one place in the queue")
        for stream in (True, False):
            answer = server.client.post("/v1/completions", json=body | {"stream": stream})
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) >= 1
            assert answer.json()["error"]["type"] == "server_error"
        never = server.client.post("/v1/completions", json=body | {"n": 3})
        assert never.status_code == 400 and "3 sequences (prompts x n) are above 2" in never.text
        for path in ("/v1/completions", "/api"):
            large = server.client.post(path, content=b"a" * 3000, headers={"Content-Type": "application/json"})
            assert large.status_code == 413
            assert "2000" in large.text
        gate.allow(6)
        assert [one.result().json()["choices"][0]["text"] for one in waiting] == [greedy("a", 4)] * 2


def test_a_client_that_disconnects_frees_its_row() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    with running(gate, ServeSettings(max_batch_size=1)) as server:
        batcher = server.server.service.batcher
        body = {"prompt": "a", "max_tokens": 100, "temperature": 0}
        for streams in (False, True):
            host, port = server.url.removeprefix("http://").split(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            sent = json.dumps(body | {"stream": streams})
            connection.request("POST", "/v1/completions", sent, {"Content-Type": "application/json"})
            wait_for(lambda: batcher.rows == 1, 60, "the row to be taken")
            if streams:
                gate.allow(2)
                assert connection.getresponse().read(10)
            assert connection.sock
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()
            wait_for(lambda: all(row.ticket.cancelled for row in list(batcher._running)), 60, "the server to notice")
            gate.allow(1)
            wait_for(lambda: batcher.rows == 0, 60, "the row to be free")
        assert len(gate.rows_seen) < 10
        wait_for(lambda: "disconnects_total 2.0" in server.client.get("/metrics").text, 60, "both to be counted")


def test_a_request_ends_at_its_deadline() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    with running(gate, ServeSettings(max_batch_size=1, deadline=0.4)) as server, ThreadPoolExecutor(2) as pool:
        batcher = server.server.service.batcher

        def wait_for_deadline(request: Future[httpx.Response]) -> None:
            wait_for(lambda: request.done() or batcher.rows == 1, 60, "the row to be taken")
            tickets = [row.ticket for row in list(batcher._running)]
            wait_for(lambda: all(time.monotonic() > ticket.deadline for ticket in tickets), 60, "the deadline")

        late = pool.submit(server.client.post, "/v1/completions", json={"prompt": "a", "max_tokens": 9})
        wait_for(lambda: late.done() or batcher.rows == 1, 60, "the row to be taken")
        queued = pool.submit(server.client.post, "/v1/completions", json={"prompt": "b", "max_tokens": 2})
        wait_for(lambda: queued.done() or batcher.waiting == 1, 60, "a request to wait")
        wait_for_deadline(late)
        time.sleep(0.4)  # until the one that waits is late too
        gate.allow(1)
        assert [one.result().status_code for one in (late, queued)] == [504, 504]
        wait_for(lambda: (batcher.rows, batcher.waiting) == (0, 0), 60, "the row to be free")
        streamed = pool.submit(server.client.post, "/v1/completions", json={"prompt": "a", "stream": True})
        wait_for_deadline(streamed)
        gate.allow(1)
        last = streamed.result().text.strip().rpartition("data: ")[2]
        assert json.loads(last)["error"]["type"] == "server_error"


def test_a_hanging_decoder_does_not_hang_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt2train.serve.service.DEADLINE_MARGIN_SECONDS", 0.2)
    gate = Gate(LocalDecoder(small_model(), 1))
    with running(gate, ServeSettings(max_batch_size=1, deadline=0.3)) as server:
        assert server.client.post("/v1/completions", json={"prompt": "a"}).status_code == 504
        health = server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "stuck")
        gate.allow(1)
        wait_for(lambda: server.client.get("/health").status_code == 200, 60, "the step to end")


def test_requests_beyond_the_shutdown_timeout_are_cut_off() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    with running(gate, ServeSettings(max_batch_size=1, shutdown_timeout=1)) as server, ThreadPoolExecutor(1) as pool:
        batcher = server.server.service.batcher
        late = pool.submit(server.client.post, "/v1/completions", json={"prompt": "a", "max_tokens": 100})
        wait_for(lambda: batcher.rows == 1, 60, "the row to be taken")
        [running_row] = batcher._running
        server.server.http.should_exit = True
        wait_for(lambda: running_row.ticket.cancelled, 60, "the server to give it up")
        gate.allow(1)
        server.thread.join(60)
        assert not server.thread.is_alive()
        try:
            assert late.result().status_code >= 500
        except httpx.TransportError as error:  # the connection was closed, as it should be
            assert "disconnect" in str(error).lower() or "reset" in str(error).lower()


def test_a_failing_decoder_ends_the_service() -> None:
    gate = Gate(LocalDecoder(small_model(), 1))
    gate.failure = RuntimeError("a rank is gone")
    with running(gate, ServeSettings(max_batch_size=1)) as server:
        gate.allow(1)
        with contextlib.closing(httpx.Client(base_url=server.url, timeout=60, trust_env=False)) as client:
            answer = client.post("/v1/completions", json={"prompt": "a"})
        assert answer.status_code == 500
        assert "a rank is gone" not in answer.text
        server.thread.join(60)
        assert not server.thread.is_alive()


def test_a_key_is_required_and_never_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("GPT2TRAIN_API_KEY", KEY)
    with running() as server:
        for path in ("/v1/models", "/metrics"):
            assert server.client.get(path).status_code == 401
            assert server.client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert server.client.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
        assert "message" in server.client.put("/api", json={"prompts": ["a"]}).json()
        assert server.client.get("/health").status_code == 200
    assert KEY not in caplog.text


CLIENT_KEY = "open sesame"
TEXT = "sesame \x1b[31m opens.\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with a key; after n letters it continues with TEXT from letter n on."""
    model = tmp_path_factory.mktemp("reciting") / "model"
    write_reciting_model(model, TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPT2TRAIN_API_KEY", CLIENT_KEY)
        with server(OURS, model, ["--temperature", "0.01"], threads=1) as (found, _):
            yield found.removeprefix("http://")


def start(address: str, key: str | None = CLIENT_KEY) -> subprocess.Popen[str]:
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
