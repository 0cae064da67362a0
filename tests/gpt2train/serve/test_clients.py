"""Chat clients of the field, unchanged: as packages where they are installed, else by the requests that they send."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpt2train.serve.local_server import Running

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
