"""The tokenizer step: reproducible training, or GPT-2's files, checked by hash."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from gpt2train.data import published_gpt2 as module
from gpt2train.data.bpe_training import cut_runs, train_bpe
from gpt2train.data.tokenizer import (
    END_OF_TEXT,
    FILES,
    encode_ordinary,
    end_of_text_id,
    load_tokenizer,
    tokenizer_files,
)
from gpt2train.data.tokenizer_reader import read_files, tables_of
from gpt2train.errors import UserError
from gpt2train.store.manifest import Folder, Manifest
from tasks.tokenizer.step import TokenizerSettings, check_tokenizer, tokenizer
from tests.tasks.corpus import Inline, content_of, documents_of, row, texts_of

TRAIN = """
import gzip, hashlib, json, sys
from gpt2train.data.tokenizer import tokenizer_files
from gpt2train.data.bpe_training import train_bpe
texts = [json.loads(line)["text"] for line, _ in zip(gzip.open(sys.argv[1]), range(400))]
print(hashlib.sha256(b"".join(tokenizer_files(*train_bpe(iter(texts), 1500)).values())).hexdigest())
"""


def make(root: Folder, documents: Manifest | None, **settings: object) -> Manifest:
    with Inline(workers=1) as runner:
        return tokenizer(root, documents, TokenizerSettings.model_validate(settings), runner)


def test_training_depends_on_the_texts_alone(open_data: Path) -> None:
    """Two hash seeds, one and several threads: the same three files, byte for byte."""
    seen = set()
    for seed, threads, parallel in (("0", "1", "false"), ("1", "2", "true"), ("77", "5", "true")):
        extra = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": parallel}
        command = [sys.executable, "-c", TRAIN, str(open_data / "text/speeches_dev.jsonl.gz")]
        done = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=True)
        seen.add(done.stdout)
    assert len(seen) == 1


def test_only_the_train_split_is_used(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    rows = [row("low lower lowest " * 20), row("zzqq " * 500, split="test"), row("xxvv " * 500, split="valid")]
    manifest = make(root, documents_of(root, rows, per_shard=1), vocab_size=300)
    assert [record.name for record in manifest.outputs] == list(FILES)
    folder = tmp_path / "tokenizer"
    trained = load_tokenizer(folder)
    vocab = trained.get_vocab()
    assert vocab[END_OF_TEXT] == len(vocab) - 1 == end_of_text_id(trained)
    assert manifest.outcome.facts == {"characters": 340, "documents": 1, "vocab_size": len(vocab)}
    assert sorted(vocab.values()) == list(range(len(vocab)))
    assert "Ġlow" in vocab and not [token for token in vocab if "zz" in token or "xx" in token]
    loaded = AutoTokenizer.from_pretrained(folder)
    text = "the lowest\n\x00é👩 of all"
    assert loaded.encode(text) == encode_ordinary(trained, [text])[0]
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.convert_tokens_to_ids(END_OF_TEXT) == vocab[END_OF_TEXT]


def test_the_vocabulary_has_the_requested_size_and_long_runs_are_cut_for_training_only(open_data: Path) -> None:
    vocab, merges = train_bpe(iter(texts_of(open_data / "text/speeches_dev.jsonl.gz", 60)), 1000)
    assert (len(vocab), len(merges)) == (1000, 1000 - 257)
    assert cut_runs("a" * 5000 + " b" + " " * 5000 + "c") == "a" * 256 + " b" + " " * 256 + "c"
    assert cut_runs("plain text, \n\n as it is") == "plain text, \n\n as it is"
    vocab, _ = train_bpe(iter(["ab" * 1_000_000]), 400)  # more than ten minutes without the cut
    assert "abab" in vocab
    vocab, merges = train_bpe(iter([f"{END_OF_TEXT} " * 50]), 300)  # in the texts it is never a merge
    assert vocab[END_OF_TEXT] == len(vocab) - 1
    assert END_OF_TEXT not in {left + right for left, right in merges}


def test_the_sample_is_limited_by_characters(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    documents = documents_of(root, [row(f"{letter} " * 50) for letter in "abcdef"], per_shard=2)
    assert make(root, documents, vocab_size=300, sample_characters=201).outcome.facts["documents"] == 3


@pytest.mark.parametrize("rows", [[], [row("held out", split="test")], [row("")]])
def test_a_corpus_without_text_is_refused(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    root = Folder(tmp_path)
    with pytest.raises(UserError, match="no document of the train split") as caught:
        make(root, documents_of(root, rows))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="needs documents"):
        make(root, None)


def test_published_files_are_read_from_a_folder(open_data: Path, tmp_path: Path) -> None:
    root = Folder(tmp_path / "out")
    manifest = make(root, None, name="gpt2", folder=str(open_data / "bpe"))
    assert manifest.outcome.facts == {"vocab_size": 50257}
    for name in FILES[:2]:
        assert (tmp_path / "out/tokenizer" / name).read_bytes() == (open_data / "bpe" / name).read_bytes()
    assert load_tokenizer(tmp_path / "out/tokenizer").encode("Hello world").ids == [15496, 995]
    # Where the files came from is no part of the work: another folder, the same step.
    assert make(root, None, name="gpt2", folder=None) == manifest


@pytest.fixture
def server(open_data: Path, tmp_path: Path) -> Iterator[str]:
    place = tmp_path / "site"
    place.mkdir()
    (place / "encoder.json").symlink_to(open_data / "bpe/vocab.json")
    (place / "vocab.bpe").symlink_to(open_data / "bpe/merges.txt")
    handler = partial(QuietHandler, directory=str(place))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def test_published_files_are_downloaded_or_it_is_said(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUBLISHED_AT", server)
    folder, url = Folder(tmp_path / "folder"), Folder(tmp_path / "url")
    loaded = make(url, None, name="gpt2")
    assert content_of(url, loaded) == content_of(folder, make(folder, None, name="gpt2", folder=str(tmp_path / "site")))
    for address in (f"{server}/nothing-here", "http://127.0.0.1:1"):
        monkeypatch.setattr(module, "PUBLISHED_AT", address)
        with pytest.raises(UserError, match=r"give tokenizer\.folder") as caught:
            make(Folder(tmp_path / "out"), None, name="gpt2")
        assert address in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_other_files_are_refused(open_data: Path, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "bpe"
    place.mkdir()
    for name in FILES[:2]:
        (place / name).write_bytes((open_data / "bpe" / name).read_bytes())
    victim = place / "merges.txt"
    victim.unlink() if damage == "missing" else victim.write_bytes(victim.read_bytes() + b"a b\n")
    with pytest.raises(UserError, match=r"merges\.txt") as caught:
        make(Folder(tmp_path / "out"), None, name="gpt2", folder=str(place))
    assert str(place) in str(caught.value) and "tokenizer.folder" in str(caught.value)
    assert not (tmp_path / "out/tokenizer/_manifest.json").exists()


def own_tables(tokens: int = 300) -> tuple[dict[str, int], list[tuple[str, str]]]:
    return train_bpe(iter(["the weather of the north is the weather of the sea"] * 3), tokens)


@pytest.mark.parametrize("layout", ["vocab.json", "encoder.json", "tokenizer.json"])
def test_a_tokenizer_of_the_user_is_used(tmp_path: Path, layout: str) -> None:
    """Of any size: as two tables, under OpenAI's names, and as the one file that transformers saves."""
    vocab, merges = own_tables()
    place = tmp_path / "own"
    place.mkdir()
    files = tokenizer_files(vocab, merges)
    names = {
        "vocab.json": {"vocab.json": "vocab.json", "merges.txt": "merges.txt"},
        "encoder.json": {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"},
        "tokenizer.json": {"tokenizer.json": "tokenizer.json"},
    }[layout]
    for name, ours in names.items():
        (place / name).write_bytes(files[ours])
    root = Folder(tmp_path / "out")
    manifest = make(root, None, name="folder", folder=str(place))
    assert manifest.outcome.facts == {"vocab_size": len(vocab)} and 256 < len(vocab) < 300
    assert tables_of(read_files(tmp_path / "out/tokenizer"), "out") == (vocab, merges)
    moved = place.rename(tmp_path / "elsewhere")
    assert make(root, None, name="folder", folder=str(moved)) == manifest  # the path is not part of the fingerprint
    vocab["new"] = len(vocab)
    (moved / "tokenizer.json").write_bytes(tokenizer_files(vocab, merges)["tokenizer.json"])
    (moved / "vocab.json").write_bytes(tokenizer_files(vocab, merges)["vocab.json"])
    (moved / "encoder.json").unlink(missing_ok=True)
    (moved / "merges.txt").write_bytes(files["merges.txt"])
    assert make(root, None, name="folder", folder=str(moved)).identity != manifest.identity
    with pytest.raises(UserError, match=r"for your own files set tokenizer\.name = 'folder'"):
        make(Folder(tmp_path / "gpt2"), None, name="gpt2", folder=str(moved))


def test_a_folder_that_would_be_ignored_is_refused() -> None:
    for settings in ({"name": "folder"}, {"name": "train", "folder": "x"}, {"folder": "x"}):
        with pytest.raises(ValueError, match="set name = 'folder'" if "folder" in settings else "needs folder"):
            TokenizerSettings.model_validate(settings)


@pytest.mark.parametrize("name", ["folder", "gpt2"])
@pytest.mark.parametrize("damage", ["empty", "no merges", "no end", "bytes"])
def test_a_bad_folder_is_found_before_anything_starts(tmp_path: Path, name: str, damage: str) -> None:
    vocab, merges = own_tables()
    if damage == "no end":
        del vocab[END_OF_TEXT]
    if damage != "empty":
        (tmp_path / "vocab.json").write_bytes(b"\xff" if damage == "bytes" else json.dumps(vocab).encode())
    if damage not in ("empty", "no merges"):
        (tmp_path / "merges.txt").write_bytes(tokenizer_files({**vocab, END_OF_TEXT: 300}, merges)["merges.txt"])
    with pytest.raises(UserError) as caught:
        check_tokenizer(TokenizerSettings.model_validate({"name": name, "folder": str(tmp_path)}))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    if name == "gpt2" and damage == "no end":
        assert "for your own files set tokenizer.name = 'folder'" in str(caught.value)
