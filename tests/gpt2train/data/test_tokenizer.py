"""Tokenizers: ids of published files, wrong files, and the fast encoder against the reference for any text."""

import json
from pathlib import Path

import numpy as np
import pytest
from cyclopts import App
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, GPT2TokenizerFast

from gpt2train.command_line import run_command
from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.encoder import Encoded, FastEncoder, PlainEncoder, Texts, disagreement, pieces, with_end
from gpt2train.data.tokenizer import (
    END_OF_TEXT,
    FILES,
    build_tokenizer,
    copy_tokenizer,
    encode_ordinary,
    end_of_text_id,
    kind_of,
    load_tokenizer,
    parse_tokenizer,
    save_tokenizer,
    tokenizer_hash,
)
from gpt2train.data.tokenizer_reader import read_files, tables_of
from gpt2train.errors import UserError
from tests.gpt2train.serve.local_server import running
from tests.tasks.corpus import texts_of

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
HARD = [
    "",
    "\x00",
    "\x00a\x00\x00 b\x00",
    "".join(map(chr, range(32))) * 3 + "\x7f\x1b[0m",
    "👩‍👩‍👧‍👦🇩🇪 é e\u0301 🏳️‍🌈" * 50,
    "\u202eשלום\u202c مرحبا بالعالم ١٢٣",
    "\r\n \t\u00a0\u2028\ufeff\ufffd\U0010ffff\u0085\u180e\u200b\u3000  x   ",
    "it's I'LL we've don’t 'S 's's we'd'VE '  three   spaces",
    "½ ² ٣ 12345 Ⅷ 1,000.50",
    f"{END_OF_TEXT}",
    f"a{END_OF_TEXT}{END_OF_TEXT} b <|endoftext |>",
    "\u0378\ue000\U000e0001\U0001fbff\u0600",
]


def small_tables() -> tuple[dict[str, int], list[tuple[str, str]]]:
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("<", "|"), ("|", ">")]
    tokens = [*ALPHABET, *("".join(pair) for pair in merges), END_OF_TEXT]
    return {token: number for number, token in enumerate(tokens)}, merges


def tables_in(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]] | None:
    return tables_of(read_files(folder), str(folder))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, *small_tables())
    return folder


@given(st.text() | st.sampled_from(HARD))
@settings(deadline=None)
def test_text_round_trips_and_never_gives_the_special_id(text: str) -> None:
    tokenizer = build_tokenizer(*small_tables())
    [ids] = encode_ordinary(tokenizer, [text])
    assert end_of_text_id(tokenizer) not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode(text).ids == ids


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_three_files_load_the_same_with_and_without_tokenizer_json(
    small: Path, tmp_path: Path, line_end: bytes
) -> None:
    assert sorted(p.name for p in small.iterdir()) == sorted(FILES)
    for name in FILES[:2]:
        (tmp_path / name).write_bytes((small / name).read_bytes().replace(b"\n", line_end))
    one, other = load_tokenizer(small), load_tokenizer(tmp_path)
    assert encode_ordinary(one, HARD) == encode_ordinary(other, HARD)
    assert one.get_vocab() == other.get_vocab()
    assert tokenizer_hash(small) == tokenizer_hash(tmp_path)
    vocab, merges = small_tables()
    assert tables_in(small) == tables_in(tmp_path) == (vocab, merges)
    save_tokenizer(tmp_path, vocab, [merges[3], *merges[:3], merges[4]])
    assert tokenizer_hash(tmp_path) != tokenizer_hash(small)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "not a tokenizer"),
        ("vocab.json", '{"a": 0, "<|endoftext|>": 2}', "not the numbers from 0 to 1"),
        ("vocab.json", '{"a": 0, "<|endoftext|>": "1"}', "not the numbers"),
        ("vocab.json", '{"a": 0, "<|endoftext|>": true}', "not the numbers"),
        ("vocab.json", '{"a": 0, "<|endoftext|>": 1}', "not in vocab.json"),
        ("vocab.json", "[" * 100_000, ""),
        ("vocab.json", "", "vocab.json is not JSON"),
        ("vocab.json", "[]", "not a JSON object"),
        ("vocab.json", "{", "no GPT-2 tokenizer"),
        ("merges.txt", "#version: 0.2\na b c\n", "is not a pair"),
        ("merges.txt", None, "merges.txt"),
    ],
)
def test_a_bad_folder_is_one_error_line(
    small: Path, tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    for file in FILES if name == "tokenizer.json" else FILES[:2]:
        (tmp_path / file).write_bytes((small / file).read_bytes())
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as caught:
        load_tokenizer(tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_published_files_give_the_ids_of_transformers(open_data: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(open_data / "bpe")
    assert (tokenizer.get_vocab_size(), end_of_text_id(tokenizer), kind_of(tokenizer)) == (
        50257,
        50256,
        "byte-level BPE",
    )
    copy_tokenizer(open_data / "bpe", tmp_path)
    assert json.loads((tmp_path / "vocab.json").read_text()) == json.loads((open_data / "bpe/vocab.json").read_text())
    reference = GPT2TokenizerFast.from_pretrained(tmp_path)
    with (open_data / "lambada/lambada_test.jsonl").open() as file:
        passages = [json.loads(line)["text"] for line, _ in zip(file, range(300), strict=False)]
    texts = [*passages, *(text for text in HARD if END_OF_TEXT not in text)]
    assert encode_ordinary(tokenizer, texts) == [reference.encode(text) for text in texts]
    assert reference.eos_token_id == 50256


def test_tokenizer_json_alone_gives_the_same_tables(small: Path, tmp_path: Path) -> None:
    AutoTokenizer.from_pretrained(small).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    assert tables_in(tmp_path) == small_tables()
    assert tokenizer_hash(tmp_path) == tokenizer_hash(small)
    # Older files write a merge as one string; added tokens need not be in the model's own vocabulary.
    plain = json.loads((tmp_path / "tokenizer.json").read_text())
    plain["model"]["merges"] = [" ".join(pair) for pair in plain["model"]["merges"]]
    del plain["model"]["vocab"][END_OF_TEXT]
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    assert tables_in(tmp_path) == small_tables()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model", "type"), "WordPiece"),
        (("pre_tokenizer",), {"type": "Metaspace"}),
        (("pre_tokenizer",), None),
        (("pre_tokenizer", "add_prefix_space"), True),
        (("pre_tokenizer", "use_regex"), False),
        (("normalizer",), {"type": "NFC"}),
        (("model", "dropout"), 0.1),
        (("model", "ignore_merges"), True),
        (("model", "vocab"), [1]),
        (("model", "merges"), None),
        (("model", "merges"), ["a b c"]),
        (("model", "merges"), [["a", 3]]),
        (("model", "merges"), [["a", "b"]]),
        (("model",), None),
        (("added_tokens",), [{"id": 3, "content": END_OF_TEXT}]),
        (("added_tokens",), [{"id": 9999, "content": "<pad>"}]),
        (("added_tokens",), ["x"]),
    ],
)
def test_another_tokenizer_json_has_no_tables(
    small: Path, tmp_path: Path, place: tuple[str, ...], value: object
) -> None:
    plain = json.loads((small / "tokenizer.json").read_text())
    inner = plain
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    assert tables_in(small) is not None and tables_in(tmp_path) is None


def test_a_pattern_that_backtracks_without_end_is_one_error_line(small: Path, tmp_path: Path) -> None:
    """The library panics after some tenths of a second, with an exception that `except Exception` does not see."""
    plain = json.loads((small / "tokenizer.json").read_text())
    plain["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    hostile, text = load_tokenizer(tmp_path), "a" * 40 + "b"
    with pytest.raises(UserError, match=rf"^the tokenizer {tmp_path} cannot encode a text: .*retry-limit"):
        PlainEncoder(hostile)(Texts.of([text]))
    with running(words=hostile) as server:
        bad = server.client.post("/v1/completions", json={"prompt": text, "max_tokens": 1})
        assert bad.status_code == 400 and bad.json()["error"]["param"] == "prompt"
        assert "the tokenizer small cannot encode" in bad.text and str(tmp_path) not in bad.text
        assert server.client.post("/v1/completions", json={"prompt": [5], "max_tokens": 1}).status_code == 200


def test_a_panic_of_a_library_is_one_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    app = App()

    @app.default
    def command() -> None:
        raise type("PanicException", (BaseException,), {})("no such index")

    assert run_command(app, []) == 1
    assert capsys.readouterr().err == "error: PanicException: no such index (--debug shows the traceback)\n"


LICENSE = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8")
# 10 MB without a space. Both encoders are fast, since the time depends on merges, and there are few.
LONG = {"one word": "aXq9" * 2_500_000, "no words": "=-" * 5_000_000}


@pytest.fixture(scope="module")
def published(open_data: Path) -> Tokenizer:
    return load_tokenizer(open_data / "bpe")


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    """A small vocabulary of its own, through the text of its tokenizer.json as a run reads it."""
    made = build_tokenizer(*train_bpe(iter([LICENSE, "übung 汉字 汉字 " * 5]), 700))
    return parse_tokenizer(made.to_str(), "test")


def differing(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    return disagreement(FastEncoder(tokenizer), PlainEncoder(tokenizer), Texts.of(texts))


def test_difficult_texts_have_equal_ids_with_a_trained_vocabulary(trained: Tokenizer) -> None:
    assert differing(trained, [*HARD, *(f"x{text}y" for text in HARD), LICENSE]) == []


def test_difficult_texts_have_equal_ids_with_the_published_vocabulary(published: Tokenizer) -> None:
    assert differing(published, HARD) == []
    encoded = FastEncoder(published)(Texts.of([END_OF_TEXT]))
    assert encoded.ids.tolist() == encode_ordinary(published, [END_OF_TEXT])[0]
    assert end_of_text_id(published) not in encoded.ids


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LONG)
def test_ten_megabytes_without_a_space_have_equal_ids(published: Tokenizer, name: str) -> None:
    assert differing(published, [LONG[name]]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lang/udhr_lang", "text/novels", "text/speeches"])
def test_real_texts_have_equal_ids(published: Tokenizer, open_data: Path, name: str) -> None:
    assert differing(published, texts_of(open_data / f"{name}_dev.jsonl.gz", 400)) == []


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
SPACED = st.lists(
    st.sampled_from([" ", "  ", "\n", "a", "é", "'s", "7", "-", "\u00a0", "汉", "\t", "The"]), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXT | SPACED.map("".join), max_size=5))
def test_any_text_has_equal_ids(trained: Tokenizer, texts: list[str]) -> None:
    fast, plain = FastEncoder(trained)(Texts.of(texts)), PlainEncoder(trained)(Texts.of(texts))
    assert fast.lengths.tolist() == plain.lengths.tolist()
    assert fast.ids.tolist() == plain.ids.tolist() == [i for ids in encode_ordinary(trained, texts) for i in ids]


@settings(max_examples=300, deadline=None)
@given(text=SPACED.map("".join), most=st.integers(1, 10))
def test_cutting_a_long_text_changes_no_token(trained: Tokenizer, text: str, most: int) -> None:
    cut = list(pieces(text, most))
    assert "".join(cut) == text
    assert [i for ids in encode_ordinary(trained, cut) for i in ids] == encode_ordinary(trained, [text])[0]


def test_long_texts_are_cut_at_spaces() -> None:
    assert max(map(len, pieces("word " * 1000, 64))) < 70
    assert list(pieces("word" * 1000, 64)) == ["word" * 1000]
    assert list(pieces("a  b\n c \u00a0d" * 9, 2)) == ["a  b\n c \u00a0d" * 9]  # no space stands alone


def test_a_wrong_encoder_is_detected(trained: Tokenizer) -> None:
    plain = PlainEncoder(trained)

    def wrong(texts: Texts) -> Encoded:
        encoded = plain(texts)
        ids = encoded.ids.copy()
        ids[encoded.lengths[0]] += 1  # the first token of the second text
        return Encoded(ids, encoded.lengths)

    assert disagreement(wrong, plain, Texts.of(["one", "two", "three"])) == [1]


def test_what_cannot_be_stored_is_refused_by_name(trained: Tokenizer) -> None:
    with pytest.raises(UserError, match="lone surrogate"):
        encode_ordinary(trained, ["good", "\ud800"])
    with pytest.raises(UserError, match="70000"):
        with_end(Encoded(np.array([70000]), np.array([1])), None, np.dtype("<u2"))
