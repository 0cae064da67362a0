"""The plain way to serve a model: FastAPI, one request at a time under a lock, the cache of keys and values on.

    python -m benchmarks.peers.plain_server MODEL PORT transformers|gpt2train

It answers `POST /v1/completions` with greedy text, as far as `benchmarks.serve` asks for it. `transformers` generates
with its own `generate`; `gpt2train` with ours, so that what batching gives can be separated from what our steps give.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

Complete = Callable[[str, int], str]


class Asked(BaseModel):
    """The fields that the benchmark sends."""

    prompt: str
    max_tokens: int


def by_transformers(model_folder: str) -> Complete:
    """Continue a prompt by `transformers`' `generate`, until the length: as the benchmark's model never ends a text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()

    @torch.inference_mode()
    def complete(prompt: str, tokens: int) -> str:
        asked = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**asked, max_new_tokens=tokens, do_sample=False, pad_token_id=tokenizer.eos_token_id)
        return str(tokenizer.decode(made[0, asked["input_ids"].shape[1] :], skip_special_tokens=True))

    return complete


def by_gpt2train(model_folder: str) -> Complete:
    """Continue a prompt by our `generate`."""
    from gpt2train.convert.huggingface import read_model
    from gpt2train.data.tokenizer import load_tokenizer
    from gpt2train.inference.generate import generate
    from gpt2train.inference.settings import SamplingSettings

    model, tokenizer = read_model(Path(model_folder)), load_tokenizer(model_folder)

    def complete(prompt: str, tokens: int) -> str:
        return generate(model, tokenizer, [prompt], SamplingSettings(temperature=0, max_new_tokens=tokens))[0].text

    return complete


def make_app(complete: Complete) -> FastAPI:
    """The server: a thread for each request, of which one computes."""
    app, lock = FastAPI(), threading.Lock()

    @app.post("/v1/completions")
    def completions(asked: Asked) -> dict[str, object]:
        with lock:
            return {"choices": [{"index": 0, "text": complete(asked.prompt, asked.max_tokens)}]}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


if __name__ == "__main__":
    folder, port, kind = sys.argv[1:]
    app = make_app({"transformers": by_transformers, "gpt2train": by_gpt2train}[kind](folder))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
