"""A model folder for conversations: its template, ends and special tokens, in transformers and in llama.cpp's file."""

import json
from pathlib import Path

import pytest
import tokenizers

from gpt2train.convert.hf_config import read_end_tokens
from gpt2train.data.added_tokens import CONFIG, SPECIAL_MAP
from gpt2train.data.chat import open_chat
from gpt2train.data.chat_template import FILE, chat_files, default_template
from gpt2train.data.tokenizer import build_tokenizer, load_tokenizer, save_tokenizer
from tests.gpt2train.convert.export_models import export_folder, passages, read_gguf, write_model, write_tokenizer
from tests.gpt2train.convert.llama_cpp_peer import talk
from tests.gpt2train.data.test_chat import TEMPLATES
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.gpt2train.serve.fixed_text_model import write_reciting_model

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
    shape = write_model(tmp_path / "m", own_template(tmp_path / "t"), "llama", {})
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
    write_model(tmp_path / "plain", tmp_path / "t", "gpt2", {})
    assert not (tmp_path / "plain" / FILE).exists()
    for name, content in chat_files(default_template(load_tokenizer(tmp_path / "t"), "\n")).items():
        (tmp_path / "t" / name).write_bytes(content)
    write_model(tmp_path / "m", tmp_path / "t", "gpt2", {})
    for file in (tmp_path / "plain").iterdir():  # nothing else changes, but the order of keys
        if file.suffix == ".json" and file.name not in (CONFIG, SPECIAL_MAP):
            assert file.read_bytes() == (tmp_path / "m" / file.name).read_bytes()
    check_in_transformers(tmp_path / "m")


def test_pieces_of_sentencepiece_are_those_of_transformers(tmp_path: Path, open_data: Path) -> None:
    """As of Llama 2: the template writes the tokens that begin and end a text."""
    folder = write_tokenizer(tmp_path / "t", "sentencepiece_bpe", passages(open_data))
    (folder / CONFIG).write_text(json.dumps({"add_bos_token": True, "chat_template": TEMPLATES["llama2"][1]}))
    write_model(tmp_path / "m", folder, "llama", {})
    check_in_transformers(tmp_path / "m")


def test_llama_cpp_gets_the_template_and_the_end_of_a_turn(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    write_model(tmp_path / "m", own_template(tmp_path / "t"), "llama", {})
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
