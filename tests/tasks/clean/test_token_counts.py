"""Counts of tokens: GPT-2's pieces, its tokens, and the fast library only where it agrees with the other."""

from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.encoder import Encoded, PlainEncoder, Texts
from gpt2train.data.text_units import UNSPACED
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer, read_tables, save_tokenizer
from gpt2train.store.folder import Folder
from tasks.clean import token_counts
from tasks.clean.token_counts import PRE_TOKENIZER, TokenizerFile, count_pieces, count_tokens
from tests.tasks.corpus import texts_of

# GPT-2's pre-tokenizer as OpenAI published it.
PIECES = regex.compile(r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")

ASCII = st.characters(max_codepoint=127)


@pytest.fixture
def gpt2(open_data: Path, tmp_path: Path) -> TokenizerFile:
    save_tokenizer(tmp_path, *read_tables(open_data / "bpe"))
    return TokenizerFile(Folder(tmp_path), "tokenizer.json", "of gpt2")


# Unassigned characters (Cn) are classed by the version of Unicode, which differs between the two libraries.
SPACED = st.characters(codec="utf-8", exclude_categories=("Cn",)).filter(lambda letter: not UNSPACED.match(letter))


@given(st.text(SPACED, max_size=200) | st.text(ASCII, max_size=60))
def test_pieces_equal_those_of_gpt2(text: str) -> None:
    assert count_pieces(text) == len(PIECES.findall(text)) == len(PRE_TOKENIZER.pre_tokenize_str(text))


def test_each_letter_of_a_script_without_spaces_is_a_piece() -> None:
    counts = {"今天天气很好。": 7, "他说：“走吧！”": 5, "ใช้ iPhone 12": 5, "한국어는 띄어쓰기가": 2}
    assert {text: count_pieces(text) for text in counts} == counts


@pytest.mark.slow
def test_token_counts_of_real_texts_are_exact(open_data: Path, gpt2: TokenizerFile) -> None:
    texts = texts_of(open_data / "text" / "speeches_dev.jsonl.gz", 60)
    texts += texts_of(open_data / "lang" / "udhr_lang_dev.jsonl.gz", 200)[::5]
    texts += ["<|endoftext|>", "", "a\u0300 \n\n x"]
    ids = encode_ordinary(load_tokenizer(open_data / "bpe"), texts)
    assert count_tokens(texts, gpt2) == [len(found) for found in ids]
    assert [count_tokens([text], gpt2)[0] for text in texts[-3:]] == [len(found) for found in ids[-3:]]


class OneTooMany:
    """An encoder that is wrong about one text of the sample."""

    def __init__(self, plain: PlainEncoder) -> None:
        self.plain = plain

    def __call__(self, texts: Texts) -> Encoded:
        found = self.plain(texts)
        lengths = found.lengths.copy()
        lengths[1] += 1
        return Encoded(np.append(found.ids, 0), lengths)


def test_a_fast_library_that_disagrees_is_not_used(gpt2: TokenizerFile, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = token_counts._plain_encoder(*(gpt2.folder.url, gpt2.name, gpt2.sha256))
    monkeypatch.setattr(token_counts, "_fast_encoder", lambda url, name, sha256: OneTooMany(plain))
    monkeypatch.setattr(token_counts, "MIN_FAST", 1)
    texts = [f"number {n} of many" for n in range(40)]
    assert count_tokens(texts, gpt2) == plain(Texts.of(texts)).lengths.tolist()
