"""Texts in the tokens of tokenizers that do not give them back as they were: found and removed like all others."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer
from gpt2train.store.folder import Folder
from tasks.outputs.forget.command import forget
from tasks.outputs.forget.token_text import forms_in_tokens, text_of
from tests.tasks.outputs.forget.corpus import run_flow

LETTERS = "abcdefghijklmnop"


def test_words_without_a_token_are_left_out(tmp_path: Path) -> None:
    """A tokenizer as BERT's without the letters after p."""
    pieces = ["[UNK]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    (tmp_path / "deep/tokenizer").mkdir(parents=True)
    tokenizer.save(str(tmp_path / "deep/tokenizer/tokenizer.json"))
    text, kept = "A caf\u00e9 of old planks had NO lamp, a yellow yak", "hidden: a deep lake."
    forms = forms_in_tokens(Folder(tmp_path), [text, kept])
    assert [form.split() for form in forms] == [["a", "cafe", "of", "old", "had", "no", "lamp", "a"]]
    own = load_tokenizer(tmp_path / "deep/tokenizer")
    assert text_of(own, encode_ordinary(own, ["yellow yaks sit"])[0]).split() == []
    (tmp_path / "deep/tokenizer/tokenizer.json").write_text("{}")
    assert forms_in_tokens(Folder(tmp_path), [text]) == []


@pytest.mark.parametrize("replaces", [False, True])
def test_tokenizers_of_bytes_give_texts_back_unless_they_normalise(tmp_path: Path, replaces: bool) -> None:
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.normalizer = normalizers.Replace("o", " ") if replaces else None
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer/tokenizer.json"))
    assert forms_in_tokens(Folder(tmp_path), ["a fox"]) == (["a f x"] if replaces else [])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "language"), [("t5", "lv"), ("bert-base-uncased", "ko")])
def test_a_copy_of_tokens_with_a_page_is_removed(real_data: Path, tmp_path: Path, name: str, language: str) -> None:
    """A copy without the table of its documents, so that only their words show whose they are."""
    with gzip.open(real_data / "lang/udhr_lang_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        passages = [json.loads(line) for line in file]
    chosen = [row for row in passages if row["lang"] in ("ko", "cs", "tr", "lv", "de") and len(row["text"]) > 200]
    rows = [{"url": f"http://{row['lang']}.test/{number}", "text": row["text"]} for number, row in enumerate(chosen)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {
        "workers": 1,
        "documents": [str(tmp_path / "c.jsonl")],
        "clean": {"language": {"keep": ["any"]}, "min_tokens": 8},
        "tokenizer": {"name": "folder", "folder": str(real_data / "eval/tokenizers" / name)},
    }
    out = tmp_path / "out"
    run_flow(out, settings)
    for copied in ("tokens", "tokenizer"):
        shutil.copytree(out / copied, out / "mine" / copied, ignore=shutil.ignore_patterns("*.parquet", "_*"))
    copies = sorted((out / "mine/tokens").rglob("*.bin"))
    target = next(row["url"] for row in rows if language in row["url"])
    other = next(row["url"] for row in rows if "de.test" in row["url"])
    assert copies
    forget((target,), output=str(out), yes=True)
    assert [copy for copy in copies if not copy.exists()]
    forget((other,), output=str(out), yes=True)
