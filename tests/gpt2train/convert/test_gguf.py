"""llama.cpp's own converter on a model folder; `GPT2TRAIN_LLAMA_CPP` names a folder of its sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2train.convert.huggingface import write_model
from tests.gpt2train.convert.test_huggingface import SHAPE, make_model, weights_of

pytestmark = pytest.mark.exhaustive


def test_llama_cpp_converts_a_model_with_the_published_vocabulary(tmp_path: Path, open_data: Path) -> None:
    place = os.environ.get("GPT2TRAIN_LLAMA_CPP")
    if not place:
        pytest.skip("set GPT2TRAIN_LLAMA_CPP to a folder of llama.cpp's sources (its converter needs sentencepiece)")
    write_model(tmp_path / "m", weights_of(make_model(SHAPE)), SHAPE, open_data / "bpe")
    command = [sys.executable, str(Path(place) / "convert_hf_to_gguf.py"), "m", "--outfile", "m.gguf"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m.gguf").read_bytes()[:4] == b"GGUF"
