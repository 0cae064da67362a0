"""llama.cpp's own converter on model folders: it takes them, and writes the tensors that `gpt2train export` writes.

`GPT2TRAIN_LLAMA_CPP` names a folder of its sources.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpt2train.convert.export_models import GQA, passages, write_model, write_tokenizer
from tests.gpt2train.convert.test_export import export_folder, read_gguf

pytestmark = pytest.mark.exhaustive

# The converter knows a byte-level tokenizer by a hash of what it encodes, so that these have GPT-2's vocabulary. Of
# these models none is saved as a Qwen2: `attention_bias = "qkv"` is a Llama there, and a qwen2 in our file.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("published", "gpt2", {}),
    "llama": ("sentencepiece_bpe", "llama", GQA | {"attention_bias": "all", "mlp_bias": True}),
    "qwen3": ("published", "llama", GQA | {"qk_norm": True, "head_dim": 32, "tied": True}),
    "arcee": ("published", "llama", GQA | {"activation": "relu2"}),
    "t5": ("sentencepiece_unigram", "t5", {}),
}
NAMES = {"general.name", "general.size_label", "general.license", "general.tags"}  # from the folder's name and its card
KEYS = ("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces")
TOKENIZER = {
    f"tokenizer.ggml.{key}" for key in (*KEYS, "padding_token_id", "unknown_token_id")
}  # llama.cpp has defaults


@pytest.mark.parametrize("name", CASES)
def test_the_converter_of_llama_cpp_writes_the_same(name: str, tmp_path: Path, open_data: Path) -> None:
    place = os.environ.get("GPT2TRAIN_LLAMA_CPP")
    if not place:
        pytest.skip("set GPT2TRAIN_LLAMA_CPP to a folder of llama.cpp's sources (its converter needs sentencepiece)")
    kind, family, options = CASES[name]
    tokenizer = open_data / "bpe" if kind == "published" else write_tokenizer(tmp_path / "t", kind, passages(open_data))
    write_model(tmp_path / "m", tokenizer, family, options)
    command = [
        sys.executable,
        str(Path(place) / "convert_hf_to_gguf.py"),
        "m",
        "--outtype",
        "f32",
        "--outfile",
        "c.gguf",
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    export_folder(tmp_path / "m", tmp_path / "m.gguf")
    (ours, our_tensors), (theirs, their_tensors) = read_gguf(tmp_path / "m.gguf"), read_gguf(tmp_path / "c.gguf")
    assert our_tensors.keys() == their_tensors.keys()
    for key, tensor in our_tensors.items():
        assert tensor.tensor_type == their_tensors[key].tensor_type, key
        scale = 8 if key == "dec.output_norm.weight" else 1  # the output of a tied T5 is divided by sqrt(64)
        assert np.allclose(tensor.data * scale, their_tensors[key].data, rtol=1e-6, atol=0), key
    same = {key for key in ours.keys() & theirs.keys() if not key.startswith("GGUF.")}
    if kind == "sentencepiece_unigram":  # the letters of ASCII that we spell out
        same -= {f"tokenizer.ggml.{key}" for key in ("tokens", "scores", "token_type")}
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert theirs.keys() - ours.keys() <= NAMES | TOKENIZER
    defaults = {f"{ours['general.architecture']}.{key}" for key in ("vocab_size", "rope.dimension_count")}
    assert ours.keys() - theirs.keys() <= TOKENIZER | defaults
