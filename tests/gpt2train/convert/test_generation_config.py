"""Further ends of a text in `generation_config.json`: `generate` and `serve` end there, as transformers does."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from benchmarks.serve import OURS, server
from gpt2train.cli import app, run_command
from gpt2train.convert.hf_config import read_end_tokens
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer
from gpt2train.errors import UserError
from tests.gpt2train.convert.peers import stirred
from tests.gpt2train.convert.small_tokenizer import write_tokenizer
from tests.gpt2train.serve.fixed_text_model import write_reciting_model

ROWS = 96
END = ROWS - 1  # of `<|endoftext|>`
TEXT = "sesame opens. "
GREEDY = ("--temperature", "0")


def write_ends(folder: Path, ends: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def test_a_text_ends_where_transformers_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=ROWS, max_position_embeddings=64, eos_token_id=END, **sizes)
    torch.manual_seed(3)
    folder = tmp_path / "model"
    stirred(transformers.LlamaForCausalLM(config), 0.3).save_pretrained(folder)
    for file in write_tokenizer(tmp_path / "tokenizer", ROWS).iterdir():
        shutil.copy(file, folder)
    prompt = "\x03"
    ids = torch.tensor([encode_ordinary(load_tokenizer(folder), [prompt])[0]])
    assert ids.shape == (1, 1)

    def theirs(**more: Any) -> Any:
        peer = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
        return peer.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=END, **more)

    def ours(*more: str) -> list[dict[str, Any]]:
        flags = ["--model", str(folder), "--prompt", prompt, "--max-new-tokens", "20", "--json", *more]
        assert run_command(app, ["generate", *flags]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    [whole] = ours(*GREEDY)
    assert (len(whole["tokens"]), whole["stopped"]) == (20, "length")
    last = next(token for token in whole["tokens"] if whole["tokens"].index(token) >= 3)
    write_ends(folder, [last, END])
    [cut] = ours(*GREEDY)
    assert cut["tokens"] == theirs()[0, 1:].tolist() == whole["tokens"][: whole["tokens"].index(last) + 1]
    assert cut["stopped"] == "stop"
    write_ends(folder, END)
    write_ends(folder, [ours("--beams", "3")[0]["tokens"][4], END])
    found = theirs(num_beams=3, num_return_sequences=3)
    expected = [[token for token in row[1:].tolist() if token != END] for row in found]  # without padding
    assert [[token for token in beam["tokens"] if token != END] for beam in ours("--beams", "3")] == expected
    assert any(len(row) < 20 for row in expected)


@pytest.mark.slow
def test_the_server_ends_a_text_there(tmp_path: Path) -> None:
    write_reciting_model(tmp_path / "model", TEXT)
    write_ends(tmp_path / "model", [load_tokenizer(tmp_path / "model").token_to_id("."), 256])
    with server(OURS, tmp_path / "model", ["--temperature", "0.01"], threads=1) as (address, _):
        body = {"prompt": "ses", "max_tokens": 40, "temperature": 0}
        answer = httpx.post(f"{address}/v1/completions", json=body, trust_env=False).json()
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("ame opens", "stop")
        assert answer["usage"]["completion_tokens"] == len("ame opens.")
        plain = {"prompts": ["ses"], "tokens_to_generate": 40}
        texts = [
            httpx.post(f"{address}/api", json=plain | more, trust_env=False).json()["text"][0]
            for more in ({}, {"beam_width": 2}, {"beam_width": 2, "stop_token": 256})
        ]
        assert texts[:2] == ["sesame opens."] * 2
        assert texts[2] == (TEXT * 4)[:43]  # a request that names its own end


@pytest.mark.parametrize(
    ("ends", "found"), [(None, ()), (5, (5,)), ([5, 7, 5], (5, 7)), ([], ()), ([-1, 96, 10**30, 3], (3,)), (-1, ())]
)
def test_ids_are_read(ends: Any, found: tuple[int, ...], tmp_path: Path) -> None:
    assert read_end_tokens(tmp_path, ROWS) == ()
    (tmp_path / "config.json").write_text('{"eos_token_id": [1, 2]}')
    assert read_end_tokens(tmp_path, ROWS) == (1, 2)  # where there is no such file
    write_ends(tmp_path, ends)
    assert read_end_tokens(tmp_path, ROWS) == found


@pytest.mark.parametrize("content", ['{"eos_token_id": ' + ends + "}" for ends in (
    '"5"', "true", "5.0", "[5, null]", "[[5]]", '{"id": 5}', json.dumps(list(range(17))),
)] + ["", "[5]", "\xff", "[" * 100_000])  # fmt: skip
def test_a_damaged_file_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError) as caught:
        read_end_tokens(tmp_path, ROWS)
    assert str(caught.value).startswith(str(file)) and "\n" not in str(caught.value)
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match=r"cannot read .*generation_config\.json: Is a directory"):
        read_end_tokens(tmp_path, ROWS)
