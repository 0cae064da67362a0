"""llama.cpp's own converter on model folders: it writes the tensors that `gpt2train export` writes, and llama.cpp
continues its file with the tokens of `gpt2train generate`.

`GPT2TRAIN_LLAMA_CPP` names a folder of its sources.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.inference.generate import SamplingSettings, generate
from tests.gpt2train.convert.export_models import (
    GQA,
    PROMPTS,
    export_folder,
    passages,
    read_gguf,
    write_model,
    write_tokenizer,
)
from tests.gpt2train.convert.llama_cpp_peer import ask
from tests.gpt2train.convert.test_export_t5 import V1_1, check_greedy

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


# Of what `gpt2train export` and the converter write alike only one is here. The architecture is the converter's.
GREEDY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": CASES["gpt2"],
    "llama": CASES["llama"],
    "llama, tied": ("published", "llama", GQA | {"tied": True, "head_dim": 24}),
    "llama, attention_bias qkv": ("published", "llama", GQA | {"attention_bias": "qkv"}),
    "llama, attention_bias qkv, SentencePiece": ("sentencepiece_bpe", "llama", GQA | {"attention_bias": "qkv"}),
    "qwen3": CASES["qwen3"],
    "arcee": CASES["arcee"],
}
T5: dict[str, dict[str, Any]] = {"t5": {}, "t5 1.1": V1_1}
# The end of the converter's message.
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "trained byte-level BPE": ("bpe", "gpt2", {}, "BPE pre-tokenizer was not recognized"),
    "qwen2": ("qwen2", "llama", GQA | {"attention_bias": "qkv"}, "BPE pre-tokenizer was not recognized"),
    "gpt2 without biases": ("published", "gpt2", {"bias": False}, "Model GPT2 is not supported"),
    "t5 with trained byte-level BPE": ("bpe with sentinels", "t5", {}, "File not found: m/spiece.model"),
    "qkv and mlp_bias": ("published", "llama", {"attention_bias": "qkv", "mlp_bias": True}, "Llama is not supported"),
}


def convert(
    place: Path, data: Path, kind: str, family: str, options: dict[str, Any], **sizes: int
) -> subprocess.CompletedProcess[str]:
    """Write a model folder `m`, and run the converter on it; its file is `c.gguf`."""
    sources = os.environ.get("GPT2TRAIN_LLAMA_CPP")
    if not sources:
        pytest.skip("set GPT2TRAIN_LLAMA_CPP to a folder of llama.cpp's sources (its converter needs sentencepiece)")
    tokenizer = data / "bpe" if kind == "published" else write_tokenizer(place / "t", kind, passages(data))
    write_model(place / "m", tokenizer, family, options, **sizes)
    program = str(Path(sources) / "convert_hf_to_gguf.py")
    command = [sys.executable, program, "m", "--outtype", "f32", "--outfile", "c.gguf"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("name", CASES)
def test_the_converter_of_llama_cpp_writes_the_same(name: str, tmp_path: Path, open_data: Path) -> None:
    kind = CASES[name][0]
    done = convert(tmp_path, open_data, *CASES[name])
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


@pytest.mark.parametrize("name", GREEDY)
def test_llama_cpp_continues_the_file_of_its_converter_as_the_model_does(
    name: str, tmp_path: Path, open_data: Path
) -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra peers")
    done = convert(tmp_path, open_data, *GREEDY[name])
    assert done.returncode == 0, done.stderr
    architecture = read_gguf(tmp_path / "c.gguf")[0]["general.architecture"]
    assert architecture == name.partition(",")[0]
    settings = SamplingSettings(max_new_tokens=64, temperature=0)
    ours = generate(read_model(tmp_path / "m"), load_tokenizer(tmp_path / "m"), PROMPTS, settings)
    tokens, continued = ask(tmp_path / "c.gguf", PROMPTS, [answer.prompt_tokens for answer in ours])
    assert tokens == [list(answer.prompt_tokens) for answer in ours]  # no `<s>` before a text
    assert continued == [list(answer.tokens) for answer in ours]
    assert any(len(set(answer.tokens)) > 4 for answer in ours)


@pytest.mark.parametrize("name", T5)
def test_llama_cpp_writes_with_the_file_of_its_converter_as_a_t5_does(
    name: str, tmp_path: Path, open_data: Path
) -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra peers")
    done = convert(tmp_path, open_data, "sentencepiece_unigram", "t5", T5[name], context=256)
    assert done.returncode == 0, done.stderr
    assert read_gguf(tmp_path / "c.gguf")[0]["general.architecture"] == "t5"
    check_greedy(tmp_path / "m", tmp_path / "c.gguf", sentinels=False)


@pytest.mark.parametrize("name", REFUSED)
def test_the_converter_refuses_what_the_page_says(name: str, tmp_path: Path, open_data: Path) -> None:
    *model, message = REFUSED[name]
    done = convert(tmp_path, open_data, *model)
    assert done.returncode != 0 and message in done.stderr
