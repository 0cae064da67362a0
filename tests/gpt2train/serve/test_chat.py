"""`/v1/chat/completions` over HTTP: answers, streams, ends, refusals, and chat clients of the field, unchanged.

Clients are packages where they are installed, else the requests that they send.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpt2train.data import chat_template
from gpt2train.data.chat import Chat
from gpt2train.data.chat_template import ChatTemplate
from tests.gpt2train.serve.local_server import Running, running, small_chat, tokenizer

PATH = "/v1/chat/completions"
HELLO = {"role": "user", "content": "Hello"}
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
        ({"messages": [HELLO | {"x": 1}]}, "messages", "unknown field 'messages[0].x'"),
        ({"messages": [HELLO | {"content": "\ud800"}]}, "messages", "a lone surrogate"),
        ({"messages": [HELLO | {"content": "a" * 128}]}, "messages", "the prompt has 129 and max_tokens is 1"),
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
        late = [pool.submit(one.client.post, PATH, json=body) for _ in range(2)]
        time.sleep(0.2)
        meanwhile = 0
        while not all(request.done() for request in late):
            with httpx.Client(base_url=one.url, trust_env=False, timeout=30) as client:
                plain = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
            assert plain.status_code == 200
            meanwhile += not all(request.done() for request in late)
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
