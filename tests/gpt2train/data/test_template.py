"""Tokens before a text: those of the tokenizer's template, in prompts and documents, as in transformers."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from gpt2train.data.indexed import IndexedDataset
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
    load_tokenizer,
    open_tokenizer,
    save_tokenizer,
    tokenizer_hash,
)
from gpt2train.data.tokenizer_reader import read_files
from gpt2train.errors import UserError
from tasks.tokenizer.sentencepiece_training import train_sentencepiece
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.gpt2train.data.test_tokenizer_kinds import CORPUS
from tests.gpt2train.data.token_files import sequences

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
