"""Text streams: pieces add up to the text, characters are complete, stop strings end the text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer
from gpt2train.inference.text_stream import TextStream, token_bytes

TEXTS = st.text(st.sampled_from("ab \né漢🙂\u200d") | st.characters(codec="utf-8"), max_size=30)


@pytest.fixture(scope="module")
def tokenizer(open_data: Path) -> Tokenizer:
    return load_tokenizer(open_data / "bpe")


def stream(tokenizer: Tokenizer, tokens: list[int], stop: list[str]) -> tuple[TextStream, list[str]]:
    made, pieces = TextStream(tokenizer, stop), []
    for token in tokens:
        made.add(token)
        pieces.append(made.pop_delta())
    made.end()
    return made, [*pieces, made.pop_delta()]


def test_the_pieces_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=150)
    @given(st.lists(st.integers(0, 50255), max_size=12) | TEXTS.map(lambda text: encode_ordinary(tokenizer, [text])[0]))
    def check(tokens: list[int]) -> None:
        made, pieces = stream(tokenizer, tokens, [])
        assert made.text == "".join(pieces) == tokenizer.decode(tokens)
        assert b"".join(token_bytes(tokenizer, token) for token in tokens).decode(errors="replace") == made.text

    check()


def test_no_piece_has_half_a_character(tokenizer: Tokenizer) -> None:
    text = "a🙂漢b"
    _, pieces = stream(tokenizer, encode_ordinary(tokenizer, [text])[0], [])
    assert "".join(pieces) == text
    assert len(pieces) > 5 and not any("\ufffd" in piece for piece in pieces)


def test_text_ends_before_the_first_stop_string(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=150)
    @given(st.text("ab\né", max_size=25), st.lists(st.text("ab\né", min_size=1, max_size=4), max_size=3))
    def check(text: str, stop: list[str]) -> None:
        # Letter by letter: a stop string spans several tokens. The first complete one ends the text.
        tokens = [token for letter in text for token in encode_ordinary(tokenizer, [letter])[0]]
        made, pieces = stream(tokenizer, tokens, stop)
        complete = [i for i in range(len(text) + 1) if any(text[:i].endswith(one) for one in stop)]
        if complete:
            assert made.text == min((text[: complete[0]].split(one)[0] for one in stop), key=len)
        else:
            assert made.text == text
        assert made.stopped == bool(complete)
        assert "".join(pieces) == made.text

    check()


def test_a_possible_start_of_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    tokens = [encode_ordinary(tokenizer, [letter])[0][0] for letter in "x###y###z"]
    made, pieces = stream(tokenizer, tokens, ["###z"])
    assert pieces == ["x", "", "", "", "###y", "", "", "", "", ""]
    assert made.stopped and made.text == "x###y"
    _, pieces = stream(tokenizer, tokens[:3], ["###z"])
    assert pieces == ["x", "", "", "##"]


def test_an_invalid_byte_holds_nothing_back(tokenizer: Tokenizer) -> None:
    broken = next(token for token in range(256) if token_bytes(tokenizer, token) == b"\xff")
    tokens = [broken, *encode_ordinary(tokenizer, [" text"])[0]]
    _, pieces = stream(tokenizer, tokens, [])
    assert pieces == ["\ufffd", " text", ""]


def test_an_unknown_id_has_no_text(tokenizer: Tokenizer) -> None:
    assert token_bytes(tokenizer, 50257) == b""
    assert token_bytes(tokenizer, 50256) == b"<|endoftext|>"
