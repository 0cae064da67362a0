"""llama.cpp on a GGUF file, in a process of its own: tokens of texts, greedy continuations of tokens, and answers.

Reads {"texts": [...], "prompts": [[...]], "count": N, "chats": [[...]]} from the standard input and writes {"tokens":
[[...]], "continuations": [[...]], "chats": [[[...], "answer", "reason"]]}. The cache of keys and values is in float32;
by default it is in float16.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def ask(
    file: Path, texts: Sequence[str] = (), prompts: Sequence[Sequence[int]] = (), count: int = 64
) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of texts, with those that the file puts before a text, and continuations of prompts."""
    answer = _run(file, texts=list(texts), prompts=[list(prompt) for prompt in prompts], count=count)
    return answer["tokens"], answer["continuations"]


def talk(file: Path, chats: Sequence[Sequence[dict[str, str]]]) -> list[tuple[list[int], str, str]]:
    """Tokens of the prompt that the file's template makes of a conversation, the answer, and why it ends."""
    return [tuple(one) for one in _run(file, chats=[list(messages) for messages in chats])["chats"]]


def _run(file: Path, **request: Any) -> dict[str, Any]:
    pytest.importorskip("xllamacpp", reason="needs the extra peers")
    command = [sys.executable, "-m", "tests.gpt2train.convert.llama_cpp_peer", str(file)]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def serve(file: str) -> Any:
    """Start llama.cpp's server of a file in this process, on a port of its own."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = file
    parameters.n_parallel, parameters.port, parameters.verbosity = 1, 0, -1
    parameters.warmup = parameters.fit_params = False
    parameters.cpuparams.n_threads = 1
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(parameters)


def main() -> None:
    request = json.load(sys.stdin)
    server = serve(sys.argv[1])

    def post(route: str, body: dict[str, Any]) -> dict[str, Any]:
        content = json.dumps(body).encode()
        query = urllib.request.Request(server.listening_address + route, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(query) as reply:
            return dict(json.load(reply))

    def answer(messages: list[dict[str, str]]) -> tuple[list[int], str, str]:
        prompt = post("/apply-template", {"messages": messages})["prompt"]
        ids = post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"]
        [choice] = post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 32})["choices"]
        return ids, choice["message"]["content"], choice["finish_reason"]

    greedy = {"n_predict": request.get("count", 0), "samplers": ["top_k"], "top_k": 1, "return_tokens": True}
    plain = {"add_special": True, "parse_special": False}
    tokens = [post("/tokenize", {"content": text, **plain})["tokens"] for text in request.get("texts", ())]
    continued = [post("/completion", {"prompt": prompt, **greedy})["tokens"] for prompt in request.get("prompts", ())]
    chats = [answer(messages) for messages in request.get("chats", ())]
    json.dump({"tokens": tokens, "continuations": continued, "chats": chats}, sys.stdout)


if __name__ == "__main__":
    main()
