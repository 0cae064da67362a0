"""Generation of a T5: greedy and by beams as transformers, whatever the batch; texts with sentinels; refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.convert.huggingface import read_model, read_shape
from gpt2train.errors import UserError
from gpt2train.inference.beam_search import beam_search
from gpt2train.inference.decoder import decoder_of
from gpt2train.inference.settings import BeamSettings, SamplingSettings
from gpt2train.parallel.layout import Layout
from tests.gpt2train.convert.test_hf_t5 import save_peer
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.models import generate_tokens

pytest.importorskip("transformers")
RANKS = Path(__file__).parents[1] / "parallel/run_cases.py"
PROMPTS = [[5, 8, 13, 21, 34], [7], list(range(3, 40)), [99, 98, 97], [1, 2] * 10]
NEW = 24


def theirs(peer: Any, prompt: list[int], **options: Any) -> list[int]:
    """New tokens of transformers' `generate`."""
    chosen = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": 1, "pad_token_id": 0}
    chosen["use_cache"] = False  # whose size is that of the encoder in transformers 5
    found: list[int] = peer.generate(torch.tensor([prompt]), **chosen | options)[0].tolist()
    assert found.pop(0) == 0  # the decoder's first token
    return found


@pytest.mark.parametrize("kind", ["relu, tied", "gated, untied"])
def test_greedy_generation_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    peer = save_peer(kind, tmp_path / "model")
    expected = [theirs(peer, prompt) for prompt in PROMPTS]
    model = read_model(tmp_path / "model")
    assert len({tuple(tokens) for tokens in expected}) > 1
    for batch in (2, 5):
        settings = SamplingSettings(max_new_tokens=NEW, top_k=1)
        assert generate_tokens(model, PROMPTS, 1, settings, batch) == expected


def test_beams_are_those_of_transformers(tmp_path: Path) -> None:
    peer = save_peer("relu, tied", tmp_path / "model")
    model = read_model(tmp_path / "model")
    settings = BeamSettings(beams=3, max_new_tokens=12, stop_tokens=(1,))
    decoder = decoder_of(model, 3)
    for prompt in PROMPTS:
        best = beam_search(decoder, prompt, settings)[0]
        assert list(best.tokens) == theirs(peer, prompt, num_beams=3, max_new_tokens=12)


def test_two_tensor_parallel_processes_write_what_one_writes(tmp_path: Path) -> None:
    save_peer("gated, untied", tmp_path / "model")
    case = f"decode_cases.encoder_decoder '{tmp_path / 'model'}' 2 1"
    run_ranks(RANKS, str(tmp_path / "found.json"), case)
    whole = sum(parameter.numel() for parameter in read_model(tmp_path / "model").parameters())
    found, second = json.loads((tmp_path / "found.json").read_text())[case]
    assert found["greedy"] and found["beams"] and found["lengths"] and found["difference"] < 2e-5, found
    assert len({tuple(tokens) for tokens in found["tokens"]}) > 1
    assert "has an encoder and a decoder" in found["refused"]
    assert found["parameters"] == second["parameters"] < 0.55 * whole
    with pytest.raises(UserError, match="t5 generates on one pipeline stage, not on 2; leave out --pp"):
        Layout.of_model(read_shape(tmp_path / "model"), 1, 2, 2)


def test_a_model_without_a_first_token_and_prompt_scores_are_refused(tmp_path: Path) -> None:
    save_peer("relu, tied", tmp_path / "model")
    file = tmp_path / "model/config.json"
    fields = json.loads(file.read_text()) | {"decoder_start_token_id": None, "pad_token_id": None}
    with pytest.raises(UserError, match="has no scores of it"):
        decoder_of(read_model(tmp_path / "model"), 1).logits([1, 2])
    file.write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"set model\.options\.start_id"):
        decoder_of(read_model(tmp_path / "model"), 1)
