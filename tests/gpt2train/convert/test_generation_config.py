"""Files of a model folder for conversations: its template, special tokens, and the ends of a text."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
import torch

from benchmarks.serve import OURS, server
from gpt2train.cli import app, run_command
from gpt2train.convert.hf_config import read_end_tokens
from gpt2train.data.added_tokens import CONFIG, SPECIAL_MAP
from gpt2train.data.chat import open_chat
from gpt2train.data.chat_template import FILE, chat_files, default_template
from gpt2train.data.tokenizer import build_tokenizer, encode_ordinary, load_tokenizer, save_tokenizer
from gpt2train.errors import UserError
from tests.gpt2train.convert.llama_cpp_peer import talk
from tests.gpt2train.convert.model_folders import (
    export_folder,
    passages,
    read_gguf,
    stirred,
    write_random,
    write_tokenizer,
    write_trained,
)
from tests.gpt2train.data.test_chat import TEMPLATES
from tests.gpt2train.data.test_tokenizer import small_tables
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


MESSAGES = [
    {"role": "user", "content": "the cat's  é </s>"},
    {"role": "assistant", "content": "a\n\n12"},
    {"role": "user", "content": "the"},
    {"role": "assistant", "content": " of"},
]


def own_template(folder: Path) -> Path:
    """A tokenizer with ChatML, whose `eos_token` is the end of a turn, and which has no first token."""
    folder.mkdir()
    tokenizer = build_tokenizer(*small_tables())
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATES["chatml"][1].replace("'<|im_end|>'", "eos_token")}
    config |= {"eos_token": "<|im_end|>", "bos_token": None, "pad_token": "<|endoftext|>"}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def check_in_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    peer, tokenizer = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    messages = [one | {"content": one["content"].replace("</s>", "")} for one in MESSAGES]
    chat = open_chat(folder, tokenizer, needed=True)
    assert chat is not None
    with chat:
        ids = [one for part in chat.turns(messages) for one in part]
        expected = peer.apply_chat_template(messages, return_dict=False)
        assert ids == expected[: len(ids)] and len(ids) >= len(expected) - 1
        prompt = peer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        assert chat.prompt(messages[:-1]) == prompt
        ends = transformers.GenerationConfig.from_pretrained(folder).eos_token_id
        assert chat.end in (ends if isinstance(ends, list) else [ends])


def test_a_folder_keeps_its_template_and_its_tokens(tmp_path: Path) -> None:
    shape = write_random(tmp_path / "m", own_template(tmp_path / "t"), "llama", {})
    tokenizer = load_tokenizer(tmp_path / "m")
    end, turn = (tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|im_end|>"))
    assert (tmp_path / "m" / FILE).read_text() == json.loads((tmp_path / "t" / CONFIG).read_text())["chat_template"]
    written = json.loads((tmp_path / "m" / CONFIG).read_text())
    assert (written["eos_token"], written["bos_token"]) == ("<|im_end|>", None)
    assert read_end_tokens(tmp_path / "m", shape.vocab) == (end, turn)
    assert json.loads((tmp_path / "m/config.json").read_text())["eos_token_id"] == end
    check_in_transformers(tmp_path / "m")


def test_a_folder_has_the_default_template_of_its_tuning(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    save_tokenizer(tmp_path / "t", *small_tables())
    write_random(tmp_path / "plain", tmp_path / "t", "gpt2", {})
    assert not (tmp_path / "plain" / FILE).exists()
    for name, content in chat_files(default_template(load_tokenizer(tmp_path / "t"), "\n")).items():
        (tmp_path / "t" / name).write_bytes(content)
    write_random(tmp_path / "m", tmp_path / "t", "gpt2", {})
    for file in (tmp_path / "plain").iterdir():  # nothing else changes, but the order of keys
        if file.suffix == ".json" and file.name not in (CONFIG, SPECIAL_MAP):
            assert file.read_bytes() == (tmp_path / "m" / file.name).read_bytes()
    check_in_transformers(tmp_path / "m")


def test_pieces_of_sentencepiece_are_those_of_transformers(tmp_path: Path, open_data: Path) -> None:
    """As of Llama 2: the template writes the tokens that begin and end a text."""
    folder = write_trained(tmp_path / "t", "sentencepiece_bpe", passages(open_data))
    (folder / CONFIG).write_text(json.dumps({"add_bos_token": True, "chat_template": TEMPLATES["llama2"][1]}))
    write_random(tmp_path / "m", folder, "llama", {})
    check_in_transformers(tmp_path / "m")


def test_llama_cpp_gets_the_template_and_the_end_of_a_turn(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    write_random(tmp_path / "m", own_template(tmp_path / "t"), "llama", {})
    export_folder(tmp_path / "m", tmp_path / "m.gguf")
    fields, _ = read_gguf(tmp_path / "m.gguf")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "m/tokenizer.json"))
    assert fields["tokenizer.chat_template"] == (tmp_path / "m" / FILE).read_text()
    assert fields["tokenizer.ggml.eot_token_id"] == tokenizer.token_to_id("<|im_end|>")
    assert fields["tokenizer.ggml.eos_token_id"] == tokenizer.token_to_id("<|endoftext|>")


def test_llama_cpp_answers_by_the_template_and_ends_the_turn(tmp_path: Path) -> None:
    write_reciting_model(tmp_path / "m", "Hello\nI hear you.\0Hello\nAgain.\0", end="\0", merge=True)
    tokenizer = load_tokenizer(tmp_path / "m")
    for name, content in chat_files(default_template(tokenizer, "\n")).items():
        (tmp_path / "m" / name).write_bytes(content)
    export_folder(tmp_path / "m", tmp_path / "m.gguf")
    hello, heard = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "I hear you."}
    chats = [[hello], [hello, heard, hello]]
    chat = open_chat(tmp_path / "m", tokenizer, needed=True)
    assert chat is not None
    with chat:
        expected = [(chat.prompt(chats[0]), "I hear you.", "stop"), (chat.prompt(chats[1]), "Again.", "stop")]
    assert talk(tmp_path / "m.gguf", chats) == expected
