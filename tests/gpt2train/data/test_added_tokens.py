"""Tokens that files beside a tokenizer add: their ids are those of transformers, also after a conversion."""

import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt2train.data.bpe_tables import build_tokenizer, save_tokenizer
from gpt2train.data.sentinels import sentinel_names
from gpt2train.data.tokenizer import (
    copy_tokenizer,
    encode_ordinary,
    load_model_tokenizer,
    load_tokenizer,
    tokenizer_hash,
    vocab_size,
)
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.data.wordpiece import build_wordpiece
from gpt2train.errors import UserError
from tests.gpt2train.convert.test_hf_tokenizer import KINDS as PIECES
from tests.gpt2train.convert.test_hf_tokenizer import model_folder, trained
from tests.gpt2train.data.test_tokenizer import small_tables

WORDS = ("the", "river", "is", "wide", "one", "two", "naïve", "北京")
NAMES = ("<speaker1>", "<|im_end|>", "[CITE]", "<sep> ", "user_7")
CONFIG, ADDED, MAP = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"


def bpe(folder: Path) -> str:
    save_tokenizer(folder, *small_tables())
    (folder / "tokenizer.json").unlink()
    return "GPT2Tokenizer"


def wordpiece(folder: Path) -> str:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789_" for mark in ("", "##")]
    (folder / "vocab.txt").write_text("\n".join([*special, *letters, "the", "river", "[", "]", "<", ">", "|"]) + "\n")
    return "BertTokenizer"


def unigram(folder: Path) -> str:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS[n:] + WORDS[:n]) for n in range(8)] * 9),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>", "eos_piece": "</s>"},
    )
    (folder / "spiece.model").write_bytes(model.getvalue())
    return "T5Tokenizer"


KINDS: dict[str, Callable[[Path], str]] = {"bpe": bpe, "wordpiece": wordpiece, "unigram": unigram}


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def random_folder(folder: Path, kind: str, form: str, chosen: dict[str, bool], extra: int) -> None:
    """Write a folder with added tokens, `name -> special`, in one of the forms."""
    name = KINDS[kind](folder)
    config: dict[str, Any] = {"tokenizer_class": name}
    base = vocab_size(load_tokenizer(folder))
    if kind == "unigram":
        config["extra_ids"] = extra
        base += extra
    ids = {token: base + number for number, token in enumerate(chosen)}
    special = [token for token, is_special in chosen.items() if is_special]
    if form == "decoder":
        plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
        config["added_tokens_decoder"] = {
            str(ids[token]): {"content": token, "special": is_special, **plain} for token, is_special in chosen.items()
        }
    elif form == "map":  # special ones alone, without ids
        write(folder / MAP, {"additional_special_tokens": list(chosen)})
    else:
        write(folder / ADDED, ids)
        write(folder / MAP, {"additional_special_tokens": special, "pad_token": special[0]} if special else {})
    write(folder / CONFIG, config)
    if form == "json":  # as transformers 4 saved both kinds of files
        words = folder / "vocab.txt"
        made = build_tokenizer(*small_tables()) if kind == "bpe" else build_wordpiece(words.read_text())
        made.save(str(folder / "tokenizer.json"))


FORMS = [(kind, form) for kind in KINDS for form in ("decoder", "added", "map", "json")]
# T5's class of transformers 5 loses those of a map, that of 4 took them.
FORMS = [one for one in FORMS if one not in {("unigram", "map"), ("unigram", "json")}]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_ids_are_those_of_transformers(tmp_path: Path, kind: str, form: str, number: int) -> None:
    """Some tokens in one of the forms; also after a copy and a conversion."""
    transformers = pytest.importorskip("transformers", minversion="5")
    mixed = random.Random(f"{kind} {form} {number}")
    chosen = {name: form == "map" or mixed.random() < 0.5 for name in mixed.sample(NAMES, mixed.randint(1, 3))}
    extra, folder = mixed.randint(0, 3), tmp_path / "folder"
    folder.mkdir()
    random_folder(folder, kind, form, chosen, extra)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    assert vocab_size(ours) == len(theirs)
    for token in (*chosen, *(f"<extra_id_{number}>" for number in range(extra if kind == "unigram" else 0))):
        assert ours.token_to_id(token) == theirs.convert_tokens_to_ids(token), token
    assert len(sentinel_names(ours)) == (extra if kind == "unigram" else 0)
    found = [token for token, special in chosen.items() if not special]
    # A text has no special tokens: transformers would find them. User_7 is a word: its letters stay beside it.
    texts = [" ".join(mixed.choices([*WORDS[:6], *found], k=mixed.randint(1, 8))) for _ in range(6)]
    expected = [theirs(text, add_special_tokens=False).input_ids for text in texts]
    assert encode_ordinary(ours, texts) == expected
    if kind != "wordpiece":  # which changes spaces
        assert ["".join(ours.decode(ids).split()) for ids in expected] == ["".join(text.split()) for text in texts]

    copy, model = tmp_path / "copy", tmp_path / "model"
    copy.mkdir()
    copy_tokenizer(folder, copy)
    model_folder(model, folder)
    again = transformers.AutoTokenizer.from_pretrained(model)
    assert tokenizer_hash(copy) == tokenizer_hash(model) == tokenizer_hash(folder)
    for made in (copy, model):
        assert encode_ordinary(load_tokenizer(made), texts) == expected
    assert [again(text, add_special_tokens=False).input_ids for text in texts] == expected
    assert all(again.convert_tokens_to_ids(token) == ours.token_to_id(token) for token in chosen)


def test_the_published_tokenizer_of_t5_has_its_sentinels(tmp_path: Path, real_data: Path) -> None:
    pytest.importorskip("sentencepiece")
    published = real_data / "eval/tokenizers/t5"
    bare = tmp_path / "bare"  # as it was published first: the class and 100 sentinels follow from the model's type
    bare.mkdir()
    shutil.copy(published / "spiece.model", bare)
    write(bare / "config.json", {"model_type": "t5"})
    for folder in (published, bare):
        tokenizer = load_tokenizer(folder)
        assert vocab_size(tokenizer) == 32100 and len(sentinel_names(tokenizer)) == 100
        assert [tokenizer.token_to_id(f"<extra_id_{number}>") for number in (0, 99)] == [32099, 32000]
        assert tokenizer.token_to_id("<extra_id_100>") is None
        assert 32099 not in encode_ordinary(tokenizer, ["<extra_id_0> The river"])[0]
        ids = [*encode_ordinary(tokenizer, ["The river"])[0], 32099, *encode_ordinary(tokenizer, ["is wide"])[0]]
        assert tokenizer.decode(ids) == "The river is wide"
        assert tokenizer.decode(ids, skip_special_tokens=False) == "The river<extra_id_0> is wide"
    assert tokenizer_hash(bare) == tokenizer_hash(published)
    assert vocab_size(load_tokenizer(published / "spiece.model")) == 32100  # with the files beside it
    assert vocab_size(load_model_tokenizer(bare, 32050)) == 32050  # no text has a token without a row
    (tmp_path / "copy").mkdir()
    copy_tokenizer(bare, tmp_path / "copy", 32050)
    assert tokenizer_hash(tmp_path / "copy") == tokenizer_hash(bare, 32050) != tokenizer_hash(bare)


@pytest.mark.parametrize("legacy", [None, True, False])
def test_a_llama_with_added_tokens_has_a_space_where_transformers_has_it(tmp_path: Path, legacy: bool | None) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(trained(PIECES["llama"][0]))
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
    write(folder / CONFIG, config | ({} if legacy is None else {"legacy": legacy}))
    size = vocab_size(load_tokenizer(folder))
    write(folder / ADDED, {"<one>": size, "<pad>": size + 1})
    write(folder / MAP, {"pad_token": "<pad>"})
    model = model_folder(tmp_path / "model", folder)
    ours = load_tokenizer(folder)
    for place in (folder, model):
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        for text in ("the fox<one>the fox", "<one>the", "a <one>b<one>", "the"):
            ids = theirs(text, add_special_tokens=False).input_ids
            assert encode_ordinary(ours, [text])[0] == ids and (size in ids) == ("<one>" in text), (place, text)


def test_a_file_that_gives_other_ids_is_refused_by_name(tmp_path: Path) -> None:
    unigram(tmp_path)
    size, named = vocab_size(load_tokenizer(tmp_path)), {"tokenizer_class": "XLMRobertaTokenizer"}
    for name, content, message in (
        (ADDED, {"<a>": size + 1}, rf"added_tokens\.json gives the token '<a>' the id {size + 1}, but .* is {size}"),
        (ADDED, ["<a>"], r"added_tokens\.json is no JSON object"),
        (CONFIG, {"added_tokens_decoder": {"x": {"content": "<a>"}}}, r"tokenizer_config\.json, .* is damaged"),
        (CONFIG, named, r"tokenizer_config\.json names XLMRobertaTokenizer, whose ids are not those"),
    ):
        write(tmp_path / name, content)
        with pytest.raises(UserError, match=message):
            load_tokenizer(tmp_path)
        (tmp_path / name).unlink()


def test_the_token_that_ends_a_text_may_be_an_added_one(tmp_path: Path) -> None:
    bpe(tmp_path)
    whole = tokenizer_hash(tmp_path)
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    write(tmp_path / ADDED, {"<|endoftext|>": vocab.pop("<|endoftext|>")})
    write(tmp_path / "vocab.json", vocab)
    assert tokenizer_hash(tmp_path) == whole


@pytest.mark.parametrize("names", [("gpt2-vocab.json", "gpt2-merges.txt"), ("my-vocab.json", "my-merges.txt")])
def test_tables_are_found_under_their_published_names(tmp_path: Path, names: tuple[str, str]) -> None:
    bpe(tmp_path)
    expected = tokenizer_hash(tmp_path)
    for name, given_name in zip(("vocab.json", "merges.txt"), names, strict=True):
        (tmp_path / name).rename(tmp_path / given_name)
    if names[0].startswith("gpt2"):
        assert has_tokenizer(tmp_path) and tokenizer_hash(tmp_path) == expected
    for name in names:
        assert tokenizer_hash(tmp_path / name) == expected
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match=r"^\S*/other\.json is not a tokenizer"):
        load_tokenizer(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("bpe", {"add_prefix_space": True}),
        ("wordpiece", {"do_lower_case": False}),
        ("wordpiece", {"do_lower_case": True, "strip_accents": False}),
        ("wordpiece", {"do_lower_case": True, "tokenize_chinese_chars": False}),
    ],
    ids=str,
)
def test_settings_beside_the_tables_change_the_ids_as_in_transformers(
    tmp_path: Path, kind: str, config: dict[str, bool]
) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    write(tmp_path / CONFIG, {"tokenizer_class": KINDS[kind](tmp_path), **config})
    if kind == "wordpiece":
        with (tmp_path / "vocab.txt").open("a") as file:
            file.write("é\n##é\n北\n京\n北京\n##京\n")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    texts = ["the river", " The River", "née 北京 北 é", "É"]
    assert encode_ordinary(ours, texts) == [theirs(text, add_special_tokens=False).input_ids for text in texts]
    copy = tmp_path / "copy"
    copy.mkdir()
    copy_tokenizer(tmp_path, copy)
    assert encode_ordinary(load_tokenizer(copy), texts) == encode_ordinary(ours, texts)
