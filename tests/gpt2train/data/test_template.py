"""Tokens that a tokenizer puts before a text, and those that files beside it add: ids as in transformers."""

import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from gpt2train.data.indexed import IndexedDataset
from gpt2train.data.sentinels import sentinel_names
from gpt2train.data.template import encode_prompts, prefix_ids, start_ids
from gpt2train.data.tokenize_files import TokenizeOptions, tokenize_files
from gpt2train.data.tokenizer import (
    END_OF_TEXT,
    build_tokenizer,
    canonical_files,
    copy_tokenizer,
    encode_ordinary,
    end_of_text_id,
    kind_of,
    load_model_tokenizer,
    load_tokenizer,
    open_tokenizer,
    save_tokenizer,
    tokenizer_hash,
    vocab_size,
)
from gpt2train.data.tokenizer_reader import has_tokenizer, read_files
from gpt2train.data.wordpiece import build_wordpiece
from gpt2train.errors import UserError
from tasks.tokenizer.sentencepiece_training import train_sentencepiece
from tests.gpt2train.convert.test_hf_tokenizer import KINDS as PIECES
from tests.gpt2train.convert.test_hf_tokenizer import model_folder, trained
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.gpt2train.data.test_tokenizer_kinds import CORPUS
from tests.gpt2train.indexed_writer import sequences

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<s>", "</s>", "[gMASK]"]


def template(single: str) -> processors.TemplateProcessing:
    names = [name for name in single.split() if name != "$A"]
    return processors.TemplateProcessing(single=single, special_tokens=[(name, SPECIAL.index(name)) for name in names])


# Post-processor, and the names of the tokens that it puts before a text.
POST_PROCESSORS = {
    "none": (None, []),
    "byte level": (processors.ByteLevel(trim_offsets=False), []),
    "bos": (template("<s> $A"), ["<s>"]),
    "bos and eos": (template("<s> $A </s>"), ["<s>"]),
    "eos": (template("$A </s>"), []),
    "two": (template("[gMASK] <s> $A"), ["[gMASK]", "<s>"]),
    "bert": (processors.BertProcessing(("</s>", 1), ("<s>", 0)), ["<s>"]),
    "roberta": (processors.RobertaProcessing(("</s>", 1), ("<s>", 0)), ["<s>"]),
    "sequence": (processors.Sequence([processors.ByteLevel(trim_offsets=False), template("<s> $A")]), ["<s>"]),
}


def byte_tokenizer(post_processor: object, ignore_merges: bool = False) -> Tokenizer:
    """A token for each byte, three special tokens, and one word."""
    vocab = {token: number for number, token in enumerate([*SPECIAL, *ALPHABET, "ab"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")], ignore_merges=ignore_merges))
    split = pre_tokenizers.Split(Regex(r"\s?\S+"), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


def folder_of(folder: Path, post_processor: object, ignore_merges: bool = False) -> Path:
    folder.mkdir()
    byte_tokenizer(post_processor, ignore_merges).save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("kind", POST_PROCESSORS)
def test_the_prefix_is_what_the_post_processor_puts_before_a_text(tmp_path: Path, kind: str) -> None:
    processor, names = POST_PROCESSORS[kind]
    tokenizer = load_tokenizer(folder_of(tmp_path / "t", processor))
    assert isinstance(tokenizer, Tokenizer) and kind_of(tokenizer) == "byte-level BPE"
    prefix = [SPECIAL.index(name) for name in names]
    assert prefix_ids(tokenizer) == prefix
    assert start_ids(tokenizer) == (prefix or [SPECIAL.index("</s>")])
    theirs = tokenizer.encode("ab c")  # with what the post-processor adds
    first = theirs.special_tokens_mask.index(0)
    assert encode_prompts(tokenizer, ["ab c", ""]) == [theirs.ids[: first + 3], start_ids(tokenizer)]


@pytest.mark.parametrize("kind", [kind for kind, (_, names) in POST_PROCESSORS.items() if kind != "eos"])
def test_prompts_have_the_ids_of_transformers(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = folder_of(tmp_path / "t", POST_PROCESSORS[kind][0])
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ours = load_tokenizer(folder)

    @given(st.text(st.sampled_from("ab c") | st.characters(codec="utf-8"), min_size=1, max_size=20))
    @example("a <s>b[gMASK] </s>")
    def check(text: str) -> None:
        if any(name in text for name in SPECIAL):  # letters of a user, which transformers takes for special tokens
            [letters] = encode_ordinary(ours, [text])
            assert not set(letters) & set(range(len(SPECIAL)))
            assert encode_prompts(ours, [text]) == [[*prefix_ids(ours), *letters]]
            return
        expected = theirs(text)["input_ids"]
        if expected[-1:] == [1]:  # what ends the text is left out of a prompt
            expected = expected[:-1]
        assert encode_prompts(ours, [text]) == [expected]

    check()


@pytest.mark.parametrize("name", ["<\uff5cend\u2581of\u2581sentence\uff5c>", "<EOS_TOKEN>"])
def test_other_published_names_end_a_document(tmp_path: Path, name: str) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    copy = tmp_path / "copy"
    copy.mkdir()
    copy_tokenizer(tmp_path, copy)
    found = load_tokenizer(copy)
    assert start_ids(found) == [256] and found.id_to_token(256) == name
    assert 256 not in encode_ordinary(found, [f"a{name}"])[0]


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_special_tokens_in_a_prompt_are_text(tmp_path: Path, ignore_merges: bool) -> None:
    tokenizer = load_tokenizer(folder_of(tmp_path / "t", POST_PROCESSORS["bos"][0], ignore_merges))
    for text in ("<s>", "</s> </s>", "a [gMASK]<s>", "<s>ab</s>"):
        [ids] = encode_prompts(tokenizer, [text])
        assert ids[0] == 0 and not {0, 1, 2} & set(ids[1:])
        assert tokenizer.decode(ids[1:]) == text


def test_whole_words_of_a_text_are_never_special(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "/": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["</s>", "<unk>"])
    words.save(str(tmp_path / "tokenizer.json"))
    assert encode_ordinary(load_tokenizer(tmp_path), ["a </s> a </s>x"]) == [[2, 0, 3, 0, 0, 2, 0]]


def test_gpt2s_kind_keeps_its_template_in_every_copy(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(*small_tables())
    assert prefix_ids(tokenizer) == []
    end, plain, source, copy = end_of_text_id(tokenizer), tmp_path / "plain", tmp_path / "source", tmp_path / "copy"
    for folder in (plain, source, copy):
        folder.mkdir()
    save_tokenizer(plain, *small_tables())
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, end)]
    )
    tokenizer.save(str(source / "tokenizer.json"))
    copy_tokenizer(source, copy)
    assert prefix_ids(load_tokenizer(copy)) == [end]
    assert tokenizer_hash(copy) == tokenizer_hash(plain)  # of the ids of a text


@pytest.fixture(scope="module")
def sentencepiece_model() -> bytes:
    pytest.importorskip("sentencepiece")
    return train_sentencepiece(iter(CORPUS * 20), 330, "sentencepiece_bpe")


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, []),
        ({"add_bos_token": True}, ["<s>"]),
        ({"tokenizer_class": "LlamaTokenizer"}, ["<s>"]),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, []),
        ({"tokenizer_class": "T5Tokenizer", "extra_ids": 0}, []),
    ],
)
def test_a_sentencepiece_model_has_the_bos_of_its_configuration(
    tmp_path: Path, sentencepiece_model: bytes, config: dict[str, object], names: list[str]
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert [tokenizer.id_to_token(number) for number in prefix_ids(tokenizer)] == names
    copied = canonical_files(read_files(tmp_path), "x")
    assert prefix_ids(open_tokenizer(copied, "x")) == prefix_ids(tokenizer)
    assert len(copied) == 1 + len(names)


def test_documents_begin_with_the_template_on_request(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "ab c"}\n{"text": ""}\n{"text": "<s>"}\n')
    source = folder_of(tmp_path / "t", POST_PROCESSORS["two"][0])
    files = read_files(source)
    made = tokenize_files(
        [tmp_path / "in.jsonl"], tmp_path / "o/x", files, TokenizeOptions(append_eod=True, prepend_bos=True)
    )
    tokenizer = load_tokenizer(source)
    expected = [[2, 0, *ids, 1] for ids in encode_ordinary(tokenizer, ["ab c", "<s>"])]
    assert sequences(IndexedDataset(tmp_path / "o/x")) == expected
    assert made.tokens == sum(map(len, expected))
    tokenize_files([tmp_path / "in.jsonl"], tmp_path / "o/y", files, TokenizeOptions())
    assert IndexedDataset(tmp_path / "o/y")[0].tolist() == expected[0][2:-1]
    shutil.rmtree(source)
    plain = read_files(folder_of(source, POST_PROCESSORS["eos"][0]))
    with pytest.raises(UserError, match="puts no token before a text; leave out --prepend-bos"):
        tokenize_files([tmp_path / "in.jsonl"], tmp_path / "p/z", plain, TokenizeOptions(prepend_bos=True))


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
    (tmp_path / CONFIG).write_text('{"add_bos_token"')  # its settings would be lost without a word
    with pytest.raises(UserError, match=r"tokenizer_config\.json is not JSON"):
        load_tokenizer(tmp_path)


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
