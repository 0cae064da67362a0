"""Chats of the server as OpenAI's API has them, and its description by OpenAPI against what it answers."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from gpt2train.data import chat_template
from gpt2train.data.chat import Chat
from gpt2train.data.chat_template import ChatTemplate
from gpt2train.serve.completions import IGNORED, NEUTRAL
from gpt2train.serve.middleware import bodies_of
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.serve.local_server import SHAPE, Running, running, small_chat, tokenizer

PATH = "/v1/chat/completions"
HELLO = {"role": "user", "content": "Hello"}
PART = {"type": "text", "text": "a"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(chat=small_chat()) as one:
        yield one


def post(server: Running, **body: Any) -> Any:
    answer = server.client.post(PATH, json={"messages": [HELLO], **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(server: Running, **body: Any) -> list[Any]:
    sent = {"messages": [HELLO], "stream": True, **body}
    with server.client.stream("POST", PATH, json=sent) as response:
        assert response.status_code == 200
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_an_answer_ends_where_the_turn_ends(reciting: Running) -> None:
    found = post(reciting, temperature=0, logprobs=True, top_logprobs=2)
    [choice] = found["choices"]
    assert found["object"] == "chat.completion" and found["id"].startswith("chatcmpl-")
    assert choice["message"] == {"role": "assistant", "content": "I hear you."}
    assert choice["finish_reason"] == "stop"
    tokens = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens) == "I hear you."
    assert [bytes(one["bytes"]).decode() for one in tokens] == list("I hear you.")
    assert all(len(one["top_logprobs"]) == 2 and one["top_logprobs"][0]["token"] == one["token"] for one in tokens)
    assert found["usage"] == {"prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18}
    assert post(reciting, temperature=0, stop=" you")["choices"][0]["message"]["content"] == "I hear"
    for name in ("max_tokens", "max_completion_tokens"):
        [cut] = post(reciting, temperature=0, **{name: 3})["choices"]
        assert (cut["message"]["content"], cut["finish_reason"]) == ("I h", "length")


def test_a_stream_gives_the_same_answer_in_pieces(server: Running) -> None:
    body = {"n": 2, "seed": 7, "logprobs": True, "top_logprobs": 1, "max_tokens": 20}
    whole = post(server, **body)
    pieces = chunks(server, **body, stream_options={"include_usage": True})
    assert pieces.pop()["usage"] == whole["usage"]
    assert {one["object"] for one in pieces} == {"chat.completion.chunk"}
    for choice in whole["choices"]:
        own = [c for one in pieces for c in one["choices"] if c["index"] == choice["index"]]
        assert [c["delta"].get("role") for c in own][:2] == ["assistant", None]
        assert "".join(c["delta"].get("content", "") for c in own) == choice["message"]["content"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        assert [one for c in own for one in c["logprobs"]["content"]] == choice["logprobs"]["content"]
    assert len({one["message"]["content"] for one in whole["choices"]}) == 2
    assert post(server, **body)["choices"] == whole["choices"]


def test_an_answer_is_the_completion_of_what_the_template_writes(server: Running) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
        HELLO,
        {"role": "assistant", "content": "Hi", "refusal": None, "tool_calls": None},
        HELLO | {"name": "me"},
    ]
    ids = [*tokenizer().encode("Be kind.\nHello\nHi").ids, 256, *tokenizer().encode("Hello\n").ids]
    asked = {"temperature": 0, "max_tokens": 9}
    plain = server.client.post("/v1/completions", json={"prompt": ids, **asked}).json()
    found = post(server, messages=messages, **asked)
    assert found["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
    assert found["usage"] == plain["usage"]
    assert (
        post(server, messages=[messages[0] | {"role": "developer"}, *messages[1:]], **asked)["choices"]
        == found["choices"]
    )
    rest = post(server, temperature=0)["usage"]  # by default all that the context leaves
    assert rest["total_tokens"] == 128
    assert post(server, temperature=0, max_tokens=1000)["usage"] == rest  # a bound, which clients set for all models


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"messages": []}, "messages", "messages: list should have at least 1 item"),
        ({"messages": "Hello"}, "messages", "messages: input should be a valid list"),
        ({}, "messages", "messages is required"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages", "messages[0].role: input should be 'system', "),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0].content is required"),
        ({"messages": [HELLO | {"content": [IMAGE]}]}, "messages", "content: a part of the type 'image_url'"),
        ({"messages": [HELLO | {"content": 5}]}, "messages", "messages[0].content: a text is expected, or a list"),
        ({"messages": [HELLO | {"content": [PART, {"type": "text"}]}]}, "messages", "messages[0].content[1].text is"),
        ({"messages": [HELLO | {"content": [PART | {"x": 1}]}]}, "messages", "field 'messages[0].content[0].x'"),
        ({"messages": [HELLO | {"x": 1}]}, "messages", "unknown field 'messages[0].x'"),
        ({"messages": [HELLO | {"content": "\ud800"}]}, "messages", "a lone surrogate"),
        ({"messages": [HELLO | {"content": "a" * 128}]}, "messages", "the prompt has 129 alone; shorten it"),
        ({"messages": [HELLO | {"content": "a" * 99999}]}, "messages", "longer than the model's context of 128 tokens"),
        ({"messages": [HELLO], "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "not supported"),
        ({"messages": [HELLO], "tool_choice": "required"}, "tool_choice", "tool_choice: not supported; leave it out"),
        ({"messages": [HELLO], "response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"messages": [HELLO], "max_tokens": 0}, "max_tokens", "max_tokens: input should be greater"),
        ({"messages": [HELLO], "max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "leave one out"),
        ({"messages": [HELLO], "top_logprobs": 5}, "top_logprobs", "only with logprobs"),
        ({"messages": [HELLO], "n": 129}, "messages", "is above 128"),
        ({"messages": [HELLO], "prompt": "a"}, "prompt", "unknown field 'prompt'"),
    ],
)
def test_a_wrong_request_is_refused(server: Running, body: Any, field: str, said: str) -> None:
    content = json.dumps(body)  # httpx would refuse a lone surrogate
    answer = server.client.post(PATH, content=content, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field and said in error["message"], error
    assert "\n" not in error["message"]
    assert server.client.post(PATH, json={"messages": [HELLO], "model": "gpt-4"}).status_code == 404


def test_a_template_that_runs_on_delays_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.5)
    loop = "{% if messages[0].content == 'loop' %}{{ 10 ** (10 ** (8 + messages | length)) }}{% endif %}"
    text = loop + "{{ messages[0].content + eos_token }}"
    tokens = {"eos_token": "<|endoftext|>"}
    with running(chat=Chat(ChatTemplate(text, tokens), tokenizer())) as one, ThreadPoolExecutor(3) as pool:
        body = {"messages": [{"role": "user", "content": "loop"}], "max_tokens": 2}
        meanwhile = 0
        for _ in range(3):  # once more if this process was stopped for as long as the templates ran
            late = [pool.submit(one.client.post, PATH, json=body) for _ in range(2)]
            time.sleep(0.2)
            while not all(request.done() for request in late):
                with httpx.Client(base_url=one.url, trust_env=False, timeout=60) as client:
                    plain = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
                assert plain.status_code == 200
                meanwhile += not all(request.done() for request in late)
            if meanwhile:
                break
        assert meanwhile
        for request in late:
            assert request.result().status_code == 500
            message = request.result().json()["error"]["message"]
            assert message.startswith(
                "the chat template takes over 0.5 s of processor time; correct chat_template.jinja"
            )
        assert one.client.post(PATH, json={"messages": [HELLO], "max_tokens": 2}).status_code == 200
        refusing = {"messages": [HELLO, HELLO], "max_tokens": 2}
        answer = one.client.post(PATH, json=refusing)
        assert answer.status_code == 200
        assert one.client.get("/health").json()["status"] == "ok"


def test_a_message_that_the_template_leaves_out_is_refused() -> None:
    text = "{{ messages[-1].content + eos_token }}"
    with running(chat=Chat(ChatTemplate(text, {"eos_token": "<|endoftext|>"}), tokenizer())) as one:
        asked = {"messages": [{"role": "system", "content": "Be kind."}, HELLO], "max_tokens": 2}
        error = one.client.post(PATH, json=asked).json()["error"]
        assert error["param"] == "messages" and "leaves out the message 0 of the role system" in error["message"]


def test_the_openai_package_talks(reciting: Running) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is the peer; extra peers")
    client = openai.OpenAI(base_url=f"{reciting.url}/v1", api_key="any", max_retries=0)
    asked: dict[str, Any] = {"model": "small", "messages": [HELLO], "temperature": 0}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=1)
    choice = whole.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "I hear you.", "stop")
    assert len(choice.logprobs.content) == 11 and choice.logprobs.content[0].top_logprobs[0].token == "I"
    stream = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.delta.content or "" for one in stream for c in one.choices) == "I hear you."
    assert stream[-1].usage == whole.usage
    history = [HELLO, choice.message, HELLO]  # as clients send an answer back
    assert client.chat.completions.create(model="small", messages=history, max_tokens=1).usage.prompt_tokens == 24
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="small", messages=[])


ANSWER = "I hear you."
MISSING = "the package {} is not installed"


def test_langchain_talks_and_streams(reciting: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason=MISSING.format("langchain-openai"))
    given: dict[str, Any] = {"base_url": f"{reciting.url}/v1", "api_key": "any", "model": "small", "temperature": 0}
    for more in ({}, {"max_tokens": 5000}, {"streaming": True}):
        answer = langchain.ChatOpenAI(**given, **more).invoke("Hello")
        assert answer.content == ANSWER and answer.response_metadata["finish_reason"] == "stop"
    pieces = list(langchain.ChatOpenAI(**given, stream_usage=True).stream([("human", "Hello")]))
    assert "".join(piece.content for piece in pieces) == ANSWER
    assert sum((piece.usage_metadata or {"output_tokens": 0})["output_tokens"] for piece in pieces) == 12


def test_llama_index_talks_and_streams(reciting: Running) -> None:
    openai_like = pytest.importorskip(
        "llama_index.llms.openai_like", reason=MISSING.format("llama-index-llms-openai-like")
    )
    messages = [pytest.importorskip("llama_index.core.llms").ChatMessage(role="user", content="Hello")]
    given = {"model": "small", "api_base": f"{reciting.url}/v1", "api_key": "any", "temperature": 0}
    llm = openai_like.OpenAILike(**given, is_chat_model=True, context_window=4096)
    assert llm.chat(messages).message.content == ANSWER
    assert list(llm.stream_chat(messages))[-1].message.content == ANSWER
    assert llm.complete("Hello").text == ANSWER


def test_llm_talks_by_its_file_of_models(reciting: Running, tmp_path: Path) -> None:
    if importlib.util.find_spec("llm") is None:
        pytest.skip(MISSING.format("llm"))
    entry = f"- model_id: mine\n  model_name: small\n  api_base: {reciting.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "any"}
    for more in ([], ["--no-stream"]):
        command = [sys.executable, "-m", "llm", "-m", "mine", "-o", "temperature", "0", *more, "Hello"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == ANSWER, done.stderr


def test_the_requests_of_open_webui_are_answered(reciting: Running) -> None:
    """Those of its backend/open_webui/routers/{openai,tasks}.py: models, a chat in pieces, titles with a high bound."""
    headers = {"Authorization": "Bearer any", "X-OpenWebUI-User-Name": "me"}
    [model] = reciting.client.get("/v1/models", headers=headers).json()["data"]
    assert model["id"] == "small" and model["chat"]
    chat = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    streamed = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    answer = reciting.client.post("/v1/chat/completions", json=streamed, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    pieces = [choice["delta"].get("content", "") for event in map(json.loads, events) for choice in event["choices"]]
    assert done == "[DONE]" and "".join(pieces) == ANSWER and json.loads(events[-1])["usage"]["total_tokens"] == 18
    title = {**chat, "stream": False, "max_completion_tokens": 5000}
    found = reciting.client.post("/v1/chat/completions", json=title, headers=headers).json()
    assert found["choices"][0]["message"]["content"] == ANSWER


SCHEMATHESIS = shutil.which("schemathesis", path=Path(sys.executable).parent)
KEY = "a key that nobody may see"


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
