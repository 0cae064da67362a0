"""Tokenizers of every kind: ids of their own libraries, no special id from a text, the same from every copy."""

import gzip
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gpt2train.data.encoder import FastEncoder
from gpt2train.data.token_bytes import longest_token, token_bytes
from gpt2train.data.tokenizer import (
    build_tokenizer,
    canonical_files,
    copy_tokenizer,
    encode_ordinary,
    end_of_text_id,
    end_token,
    kind_of,
    load_tokenizer,
    tokenizer_hash,
    vocab_size,
)
from gpt2train.data.tokenizer_reader import has_tokenizer, read_files
from gpt2train.errors import UserError
from tasks.tokenizer.sentencepiece_training import sentences, train_sentencepiece
from tests.gpt2train.data.test_tokenizer import small_tables

HARD = [
    "e\u0302\u0301 vi\u1ec7t",
    "Ａ\u0301x ｶﾞ ﾊﾟ \u1100\u1161\u11a8 क़",
    "a\x00b \t\n x  y \u3000 z \x96",
    "…½ﬁ①㍿ 👩‍👩‍👧‍👦 🇩🇪 \u202eשלום\u202c \ufeff\u200b \u0378\ue000",
    "",
    "  ",
    "▁a ▁ b",
    "<pad></s><unk> <s> [SEP] [CLS] <extra_id_0> <|endoftext|>",
    "<0x0A> a<0x41><0x62>b <0xE4><0xB8><0xAD> <0x4 <<0x3C>> <0xe9>",
]
WORDPIECE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b", "##cd", "中", "ab", "##e", "."]
CORPUS = ["The quick brown fox jumps over the lazy dog.\n", "Съешь ещё этих мягких французских булок. ", "北京 上海 "]


def characters() -> st.SearchStrategy[str]:
    return st.text(st.sampled_from("ab cd<>/s[]SEP\n中é") | st.characters(codec="utf-8"), max_size=40)


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SentencePiece models of both kinds."""
    pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("models")
    for kind in ("unigram", "bpe"):
        model = train_sentencepiece(iter(CORPUS * 20), 330, f"sentencepiece_{kind}")  # type: ignore[arg-type]
        (folder / f"{kind}.model").write_bytes(model)
    return folder


@pytest.mark.parametrize("name", ["unigram", "bpe"])
def test_a_trained_model_keeps_every_text(models_folder: Path, name: str) -> None:
    tokenizer = load_tokenizer(models_folder / f"{name}.model")

    @settings(max_examples=100)
    @given(characters().filter(lambda text: "\x00" not in text and "▁" not in text))
    def check(text: str) -> None:
        [ids] = encode_ordinary(tokenizer, [text])
        raw = b"".join(token_bytes(tokenizer, number) for number in ids)
        assert raw.decode() == (f" {text}" if text else "")  # a word begins with a space, also the first one
        assert tokenizer.decode(ids) == text

    check()
    assert longest_token(tokenizer) is None
    assert token_bytes(tokenizer, end_of_text_id(tokenizer)) == token_bytes(tokenizer, 10**6) == b""


def test_training_of_sentencepiece_depends_on_the_texts_alone(models_folder: Path) -> None:
    again = train_sentencepiece(iter(CORPUS * 20), 330, "sentencepiece_unigram")
    assert again == (models_folder / "unigram.model").read_bytes()
    assert all(len(line) <= 1024 and "\n" not in line for line in sentences(iter(["x" * 5000 + "\n\x00y"])))
    with pytest.raises(UserError, match=r"cannot train 260 pieces.*tokenizer\.vocab_size") as caught:
        train_sentencepiece(iter(CORPUS), 260, "sentencepiece_bpe")
    assert "\n" not in str(caught.value)


def wordpiece_folder(folder: Path, tokens: list[str], lower: bool | None = None) -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    if lower is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    return folder


@pytest.mark.parametrize("lower", [True, False])
def test_wordpiece_has_the_ids_of_transformers(tmp_path: Path, lower: bool) -> None:
    transformers = pytest.importorskip("transformers")
    folder = wordpiece_folder(tmp_path / "w", WORDPIECE, lower)
    ours = load_tokenizer(folder)
    theirs = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=lower)
    special = {theirs.convert_tokens_to_ids(token) for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")}

    @settings(max_examples=100)
    @given(characters())
    def check(text: str) -> None:
        [ids] = encode_ordinary(ours, [text])
        assert not special & set(ids)
        if not any(token in text for token in WORDPIECE[:5]):
            assert ids == theirs.encode(text, add_special_tokens=False)

    check()
    assert end_token(ours) == "[SEP]" and vocab_size(ours) == len(WORDPIECE) and kind_of(ours) == "WordPiece"
    assert token_bytes(ours, WORDPIECE.index("##cd")) == b"cd" and token_bytes(ours, WORDPIECE.index("ab")) == b" ab"


def test_case_of_a_vocabulary_is_seen_from_its_words(tmp_path: Path) -> None:
    plain, cased = (wordpiece_folder(tmp_path / name, [*WORDPIECE, name]) for name in ("ab", "Ab"))
    assert encode_ordinary(load_tokenizer(plain), ["AB"])[0] != [1]
    assert encode_ordinary(load_tokenizer(cased), ["AB"])[0] == [1]


def unigram_json(folder: Path) -> Path:
    """A tokenizer.json as converted from SentencePiece: its model knows the control symbols as pieces."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in "abs<"), ("▁ab", -2.5)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    folder.mkdir()
    tokenizer.enable_truncation(3)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_stored_dropout_of_merges_is_not_applied(tmp_path: Path) -> None:
    """The same ids each time, as in a training from which the file was saved."""
    plain = build_tokenizer(*small_tables())
    stored = json.loads(plain.to_str())
    stored["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    text = "the cat and the dog " * 9
    assert encode_ordinary(load_tokenizer(tmp_path), [text]) == [plain.encode(text).ids]


def test_text_never_gives_the_special_id_of_a_unigram_model(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(unigram_json(tmp_path / "u"))
    [ids] = encode_ordinary(tokenizer, ["ab</s>ab ab ab ab"])
    assert end_of_text_id(tokenizer) == 1 and 1 not in ids
    assert len(ids) > 6  # the limit of the file does not cut documents
    assert encode_ordinary(tokenizer, ["ab ab"])[0] == tokenizer.encode("ab ab").ids  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="byte-level BPE"):
        FastEncoder(tokenizer)


@pytest.mark.parametrize("kind", ["unigram json", "wordpiece", "sentencepiece", "bpe of another end"])
def test_a_copy_is_the_same_tokenizer(tmp_path: Path, kind: str, models_folder: Path) -> None:
    if kind == "unigram json":
        source = unigram_json(tmp_path / "u")
    elif kind == "wordpiece":
        source = wordpiece_folder(tmp_path / "w", WORDPIECE)
    elif kind == "sentencepiece":
        source = models_folder / "bpe.model"
    else:
        source = tmp_path / "b"
        source.mkdir()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        (source / "vocab.json").write_text(json.dumps({t: n for n, t in enumerate([*alphabet, "ab", "</s>"])}))
        (source / "merges.txt").write_text("a b\n")
    first, second = tmp_path / "first", tmp_path / "second"
    for target, origin in ((first, source), (second, first)):
        target.mkdir()
        copy_tokenizer(origin, target)
    assert tokenizer_hash(source) == tokenizer_hash(first) == tokenizer_hash(second) and has_tokenizer(first)
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}
    texts = [*CORPUS, *HARD, "ab ab"]
    one, other = load_tokenizer(source), load_tokenizer(first)
    assert encode_ordinary(one, texts) == encode_ordinary(other, texts)
    assert end_of_text_id(one) == end_of_text_id(other)
    assert canonical_files(read_files(first), "x").keys() == {p.name for p in first.iterdir()}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("words.bin", b"x", "unknown kind"),
        ("tokenizer.model", b"not a model", "is not a SentencePiece model"),
        ("tokenizer.model", b"", "is not a SentencePiece model"),
        ("vocab.txt", b"a\nb\n", r"no \[UNK\] token"),
        ("vocab.txt", b"\xff\xfe", "cannot read"),
        ("tokenizer.json", b"{}", "is not a tokenizer"),
        ("notes.md", b"x", "unknown kind"),
    ],
)
def test_a_file_of_another_kind_is_one_error_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    pytest.importorskip("sentencepiece")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(tmp_path / name)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"there is no folder"):
        load_tokenizer(tmp_path / "none")


def script_texts(data: Path) -> Iterator[str]:
    """10 MB in many scripts: passages of UDHR as they are, decomposed, and joined in other orders; Chinese novels."""
    with gzip.open(data / "lang/udhr_lang_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        passages = [json.loads(line)["text"] for line in file]
    for step in (1, 2, 3, 5):
        for first, second in zip(passages, passages[step:] + passages[:step], strict=True):
            joined = f"{first[: len(first) // step]} {second}"
            yield joined if step % 2 else unicodedata.normalize("NFD", joined)
    for name in ("sanguo", "hongloumeng"):
        lines = (data / f"eval/zh/corpus/{name}.txt").read_text(encoding="utf-8").split("\n")
        yield from ("\n".join(lines[start : start + 20]) for start in range(0, len(lines), 20))
