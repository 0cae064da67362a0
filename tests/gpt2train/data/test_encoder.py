"""The fast encoder against the reference: equal ids for any text and any trained tokenizer."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.encoder import Encoded, FastEncoder, PlainEncoder, Texts, disagreement, pieces, with_end
from gpt2train.data.tokenizer import (
    END_OF_TEXT,
    build_tokenizer,
    encode_ordinary,
    end_of_text_id,
    load_tokenizer,
    parse_tokenizer,
)
from gpt2train.errors import UserError
from tests.gpt2train.data.test_tokenizer import HARD
from tests.tasks.corpus import texts_of

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
