"""The OpenAPI description of the interface, compared with the server."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpt2train.serve.completions import IGNORED, NEUTRAL
from gpt2train.serve.middleware import bodies_of
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.serve.local_server import SHAPE, Running, running, small_chat

SCHEMATHESIS = shutil.which("schemathesis", path=Path(sys.executable).parent)
KEY = "a key that nobody may see"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(chat=small_chat()) as one:
        yield one


@pytest.fixture(scope="module")
def without_chat() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def description(server: Running) -> dict[str, Any]:
    return dict(server.client.get("/openapi.json").json())


def check(description: dict[str, Any], answer: Any) -> None:
    request = answer.request
    path = next(p for p in description["paths"] if p.partition("{")[0] == request.url.path.partition("small")[0])
    said = description["paths"][path][request.method.lower()]["responses"][str(answer.status_code)]
    kind = answer.headers["content-type"].partition(";")[0]
    schema = {**said["content"][kind]["schema"], "components": description["components"]}
    jsonschema.validate(answer.json() if kind == "application/json" else answer.text, schema)


def test_answers_match_the_description(server: Running, description: dict[str, Any]) -> None:
    completion = {"prompt": ["a", "b"], "max_tokens": 3}
    api = {"prompts": ["a"], "tokens_to_generate": 3}
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    for path, body in (
        ("/v1/completions", completion),
        ("/v1/completions", completion | {"logprobs": 0}),
        ("/v1/completions", completion | {"logprobs": 3, "echo": True, "n": 2, "model": "model"}),
        ("/v1/completions", completion | {"max_tokens": "x"}),
        ("/v1/completions", completion | {"model": "other"}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat | {"logprobs": True, "top_logprobs": 2, "n": 2, "model": "model"}),
        ("/v1/chat/completions", chat | {"messages": []}),
        ("/v1/chat/completions", chat | {"model": "other"}),
        ("/api", api),
        ("/api", api | {"logprobs": True}),
        ("/api", api | {"beam_width": 2}),
        ("/api", api | {"beam_width": 0}),
    ):
        check(description, server.client.post(path, json=body))
    for path in ("/v1/models", "/v1/models/small", "/health", "/metrics"):
        check(description, server.client.get(path))
        check(description, server.client.get(path, headers={"Host": "evil.example"}))
        check(description, server.client.get(path, headers={"Origin": "https://evil.example"}))


def test_every_error_is_described(server: Running, description: dict[str, Any]) -> None:
    for path, operations in description["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            assert {"200", "400", "403", "405", "408", "421", "500"} <= answers.keys()
            assert "422" not in answers
            assert ({"413", "503", "504"} <= answers.keys()) == (path in bodies_of(server.server.service))
            for answer in answers.values():
                assert all(content["schema"] for content in answer["content"].values())
    fields = description["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["seed"]["anyOf"][0]["maximum"] == 2**63 - 1
    assert fields["max_tokens"]["anyOf"][0]["maximum"] == SHAPE.context - 1
    assert set(description["components"]["schemas"]["ApiRequest"]["properties"]) >= {"prompts", "beam_width"}


@pytest.mark.parametrize("name", ["server", "without_chat"])
def test_every_route_is_described(name: str, request: pytest.FixtureRequest) -> None:
    """A body is read only on paths that are described with one."""
    server: Running = request.getfixturevalue(name)
    description = server.client.get("/openapi.json").json()
    bodies = bodies_of(server.server.service)
    with_body = {
        path: {m.upper() for m, one in of.items() if "requestBody" in one} for path, of in description["paths"].items()
    }
    assert {path: methods for path, methods in with_body.items() if methods} == {p: set(m) for p, m in bodies.items()}
    for path, operations in description["paths"].items():
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            answer = server.client.request(method, path.replace("{name}", "small"))
            assert (answer.status_code != 405) == (method.lower() in operations), (method, path)
            if answer.status_code == 405:
                assert set(answer.headers["allow"].split(", ")) == {m.upper() for m in operations}
    assert server.client.options("/api").headers["allow"] == "PUT, POST"
    schemas = description["components"]["schemas"]
    assert ("ChatRequest" in schemas) == ("/v1/chat/completions" in bodies) == (name == "server")
    assert next(iter(schemas["CompletionRequest"]["properties"])) == "prompt"


def test_a_key_is_described(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    with running(settings=ServeSettings(key_file=tmp_path / "key")) as server:
        description = server.client.get("/openapi.json").json()
        assert KEY not in json.dumps(description)
        assert description["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
        for path, operations in description["paths"].items():
            for operation in operations.values():
                assert (operation.get("security") == [{"key": []}]) == (path != "/health")
                assert ("401" in operation["responses"]) == (path != "/health")
        check(description, server.client.get("/v1/models"))


def test_unsupported_fields_and_routes_are_named(server: Running) -> None:
    for field, value, nothing in (
        ("presence_penalty", 0.5, 0),
        ("frequency_penalty", "1", 0.0),
        ("logit_bias", {"50256": -100}, {}),
        ("suffix", "b", ""),
        ("presence_penalty", False, None),
        ("repetition_penalty", 1.1, 1.0),
        ("min_p", 1e-9, 0),
        ("ignore_eos", True, False),
        ("ignore_eos", 0, None),
        ("stop_token_ids", [5], []),
        ("skip_special_tokens", False, True),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
    ):
        asked = {"prompt": "a", "max_tokens": 1}
        answer = server.client.post("/v1/completions", json=asked | {field: value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
        assert f"{field}: not supported" in answer.json()["error"]["message"]
        assert server.client.post("/v1/completions", json=asked | {field: nothing}).status_code == 200
    asked = {"prompt": "Once", "max_tokens": 20, "seed": 3}
    plain, silent = (
        server.client.post("/v1/completions", json=asked | more).json()["choices"]
        for more in ({}, NEUTRAL | dict.fromkeys(IGNORED, "x") | {"top_k": -1, "logprobs": False})
    )
    assert silent == plain
    scored = [server.client.post("/v1/completions", json=asked | {"logprobs": one}).json() for one in (True, 1)]
    assert scored[0]["choices"] == scored[1]["choices"] and scored[0]["choices"][0]["logprobs"]
    options = {"include_usage": True, "continuous_usage_stats": False, "include_obfuscation": False}
    sent = asked | {"stream": True, "stream_options": options}
    assert server.client.post("/v1/completions", json=sent).status_code == 200
    answer = server.client.post("/v1/completions", json=sent | {"stream_options": {"continuous_usage_stats": True}})
    assert answer.status_code == 400 and "stream_options.continuous_usage_stats" in answer.text
    for field, value in (("tools", [{"type": "function"}]), ("tool_choice", "auto"), ("functions", [{}]), ("min_p", 1)):
        answer = server.client.post("/v1/chat/completions", json={"messages": [], field: value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_chat_without_a_template_is_refused_with_the_reason(server: Running, without_chat: Running) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/embeddings"):
        answer = without_chat.client.post(path, json={"messages": [{"role": "user", "content": "Hello"}]})
        assert answer.status_code == 404
        message = answer.json()["error"]["message"]
        assert message.endswith("the paths are GET /v1/models and POST /v1/completions")
        assert ("chat is not supported" in message and "no chat template" in message) == (path != "/v1/embeddings")
    for path in ("/v1/responses", "/v1/embeddings"):
        message = server.client.post(path, json={}).json()["error"]["message"]
        assert message == (
            "no such path; the paths are GET /v1/models and POST /v1/completions and POST /v1/chat/completions"
        )
    assert [one.client.get("/v1/models").json()["data"][0]["chat"] for one in (server, without_chat)] == [True, False]


def test_integers_may_be_written_with_a_point(server: Running) -> None:
    """To JSON Schema 3.0 is an integer; 3.5 is none, and true is no number."""
    asked = {"prompt": [[70, 71.0]], "max_tokens": 3.0, "seed": 1e3, "n": 1.0}
    plain = {"prompt": [[70, 71]], "max_tokens": 3, "seed": 1000}
    texts = [server.client.post("/v1/completions", json=one).json()["choices"][0]["text"] for one in (asked, plain)]
    assert texts[0] == texts[1]
    for wrong in (
        {"max_tokens": 3.5},
        {"prompt": [70, 1.5]},
        {"prompt": [True]},
        {"n": True},
        {"prompt": [float("inf")]},
    ):
        content = json.dumps(plain | wrong)
        sent = server.client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        assert sent.status_code == 400


@pytest.mark.skipif(SCHEMATHESIS is None, reason="schemathesis is not installed: pip install 'gpt2train[peers]'")
@pytest.mark.parametrize(  # about 700 requests each, half a minute on an idle machine
    "with_key", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.exhaustive)]
)
def test_schemathesis_finds_no_difference(with_key: bool, tmp_path: Path) -> None:
    """All checks of schemathesis; schemathesis_hooks.py leaves out requests that rules between fields refuse."""
    (tmp_path / "key").write_text(KEY)
    settings = ServeSettings(key_file=tmp_path / "key" if with_key else None)
    with running(settings=settings, chat=small_chat()) as server:
        command = [str(SCHEMATHESIS), "run", f"{server.url}/openapi.json", "--checks", "all", "--max-examples", "30"]
        command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--seed", "1", "--no-color"]
        command += ["--header", f"Authorization: Bearer {KEY}"] if with_key else []
        limits = f"{SHAPE.context} {settings.max_sequences} {settings.max_tokens} {settings.max_api_tokens}"
        root = str(Path(__file__).parents[3])
        environment = os.environ | {
            "SCHEMATHESIS_HOOKS": "tests.gpt2train.serve.schemathesis_hooks",
            "LIMITS_OF_THE_SERVER": limits,
            "PYTHONPATH": root,
        }
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "Tested: 8" in done.stdout
        assert server.client.get("/health").json()["status"] == "ok"
