"""Chat clients of the field, unchanged: as packages where they are installed, else by the requests that they send."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.inference.decoder import LocalDecoder
from tests.gpt2train.serve.fixed_text_model import write_reciting_model
from tests.gpt2train.serve.local_server import Running, running, small_chat

ANSWER = "I hear you."
MISSING = "the package {} is not installed"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model that answers "Hello" with "I hear you." and an end."""
    folder = tmp_path_factory.mktemp("reciting") / "small"
    write_reciting_model(folder, f"Hello\n{ANSWER}\0", end="\0")
    with running(LocalDecoder(read_model(folder), 4), words=load_tokenizer(folder), chat=small_chat()) as one:
        yield one


def test_langchain_talks_and_streams(server: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason=MISSING.format("langchain-openai"))
    given: dict[str, Any] = {"base_url": f"{server.url}/v1", "api_key": "any", "model": "small", "temperature": 0}
    for more in ({}, {"max_tokens": 5000}, {"streaming": True}):
        answer = langchain.ChatOpenAI(**given, **more).invoke("Hello")
        assert answer.content == ANSWER and answer.response_metadata["finish_reason"] == "stop"
    pieces = list(langchain.ChatOpenAI(**given, stream_usage=True).stream([("human", "Hello")]))
    assert "".join(piece.content for piece in pieces) == ANSWER
    assert sum((piece.usage_metadata or {"output_tokens": 0})["output_tokens"] for piece in pieces) == 12


def test_llama_index_talks_and_streams(server: Running) -> None:
    openai_like = pytest.importorskip(
        "llama_index.llms.openai_like", reason=MISSING.format("llama-index-llms-openai-like")
    )
    messages = [pytest.importorskip("llama_index.core.llms").ChatMessage(role="user", content="Hello")]
    llm = openai_like.OpenAILike(
        model="small",
        api_base=f"{server.url}/v1",
        api_key="any",
        is_chat_model=True,
        temperature=0,
        context_window=4096,
    )
    assert llm.chat(messages).message.content == ANSWER
    assert list(llm.stream_chat(messages))[-1].message.content == ANSWER
    assert llm.complete("Hello").text == ANSWER


def test_llm_talks_by_its_file_of_models(server: Running, tmp_path: Path) -> None:
    if importlib.util.find_spec("llm") is None:
        pytest.skip(MISSING.format("llm"))
    entry = f"- model_id: mine\n  model_name: small\n  api_base: {server.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "any"}
    for more in ([], ["--no-stream"]):
        command = [sys.executable, "-m", "llm", "-m", "mine", "-o", "temperature", "0", *more, "Hello"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == ANSWER, done.stderr


def test_curl_talks(server: Running) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "temperature": 0})
    command = ["curl", "-sS", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run([*command, "--noproxy", "*"], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == ANSWER, done.stderr


def test_the_requests_of_open_webui_are_answered(server: Running) -> None:
    """Those of its backend/open_webui/routers/{openai,tasks}.py: models, a chat in pieces, titles with a high bound."""
    headers = {"Authorization": "Bearer any", "X-OpenWebUI-User-Name": "me"}
    [model] = server.client.get("/v1/models", headers=headers).json()["data"]
    assert model["id"] == "small" and model["chat"]
    chat = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    streamed = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    answer = server.client.post("/v1/chat/completions", json=streamed, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    pieces = [choice["delta"].get("content", "") for event in map(json.loads, events) for choice in event["choices"]]
    assert done == "[DONE]" and "".join(pieces) == ANSWER and json.loads(events[-1])["usage"]["total_tokens"] == 18
    title = {**chat, "stream": False, "max_completion_tokens": 5000}
    found = server.client.post("/v1/chat/completions", json=title, headers=headers).json()
    assert found["choices"][0]["message"]["content"] == ANSWER
