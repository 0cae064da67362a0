"""The tokenize step: the ids of `tokenizers`, the same bytes for any division of the work."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from gpt2train.data.encoder import Encoded, Encoder, Texts
from gpt2train.data.indexed import IndexedDataset
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.template import encode_prompts, prefix_ids
from gpt2train.data.tokenizer import END_OF_TEXT, encode_ordinary, end_of_text_id, load_tokenizer, vocab_size
from gpt2train.errors import UserError
from gpt2train.store.manifest import Folder, Manifest, read_manifest
from tasks.core import tokenizer_file as tokenizer_files
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from tasks.tokenize.step import TokenizeSettings, tokenize
from tasks.tokenizer.sentencepiece_training import train_sentencepiece
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.gpt2train.data.test_template import POST_PROCESSORS, folder_of
from tests.gpt2train.data.test_tokenizer_kinds import CORPUS, WORDPIECE, unigram_json, wordpiece_folder
from tests.tasks.corpus import Inline, content_of, documents_of, real_texts, rejected_of, row

ROOT = Path(__file__).parents[3]
SPLITS = ("train", "valid", "test")
HARD = [
    "\x00",
    "a\x00b\x01\x1b[0m\x7f",
    "👩‍👩‍👧‍👦🇩🇪 e\u0301",
    "\u202eשלום\u202c مرحبا",
    "\r\n \t\u00a0\u2028\ufeff\ufffd\U0010ffff",
    END_OF_TEXT,
    f"a{END_OF_TEXT}{END_OF_TEXT} b",
    "ab" * 1_000_000,
    "=" * 100_000,
    " " * 100_000,
]


def mixed(texts: list[str]) -> list[dict[str, Any]]:
    return [row(text, split=SPLITS[i % 3]) for i, text in enumerate(texts)]


def run(
    place: Path, rows: list[dict[str, Any]], bpe: Path | None = None, per_shard: int = 100, **settings: object
) -> tuple[Folder, Manifest]:
    root = Folder(place)
    documents = documents_of(root, rows, per_shard)
    with Inline(workers=1) as runner:
        if bpe is None:  # a small vocabulary loads in no time
            words = tokenizer(root, documents, TokenizerSettings(vocab_size=400), runner)
        else:
            words = tokenizer(root, None, TokenizerSettings(name="gpt2", folder=str(bpe)), runner)
        return root, tokenize(root, documents, words, TokenizeSettings.model_validate(settings), runner)


@pytest.fixture(scope="module")
def news(open_data: Path) -> list[dict[str, Any]]:
    return mixed(real_texts(open_data))


def test_difficult_texts_have_the_ids_of_the_library(tmp_path: Path, open_data: Path) -> None:
    rows = mixed(HARD)
    _, manifest = run(tmp_path, rows, open_data / "bpe", per_shard=4)
    words = load_tokenizer(open_data / "bpe")
    end = end_of_text_id(words)
    parsing = Tokenizer.from_file(str(tmp_path / "tokenizer/tokenizer.json"))
    for split in SPLITS:
        dataset = IndexedDataset(tmp_path / "tokens" / split / "tokens")
        texts = [r["text"] for r in rows if r["split"] == split]
        alone = [words.encode_batch_fast([text])[0].ids for text in texts]
        assert [ids.tolist() for ids in dataset] == [[*ids, end] for ids in alone]
        assert int((dataset.tokens == end).sum()) == len(texts)  # none but our own, though some texts spell it
        for ids, text in zip(dataset, texts, strict=True):
            assert words.decode(ids[:-1].tolist(), skip_special_tokens=False) == text
            if END_OF_TEXT not in text and len(text) < 1000:  # with it the library's default would give the special id
                assert parsing.encode(text).ids == ids[:-1].tolist()
    assert manifest.outcome.kept == len(HARD)


def test_the_sidecar_leads_every_token_back_to_its_page(tmp_path: Path, news: list[dict[str, Any]]) -> None:
    root, manifest = run(tmp_path, news)
    words = load_tokenizer(tmp_path / "tokenizer")
    for split in SPLITS:
        dataset = IndexedDataset(tmp_path / "tokens" / split / "tokens")
        sidecar = list(read_rows(root / "tokens", f"{split}/documents.parquet"))
        sources = [r for r in news if r["split"] == split]
        assert [(d["doc_id"], d["url"]) for d in sidecar] == [(r["id"], r["url"]) for r in sources]
        assert [d["start"] for d in sidecar] == [0, *(d["end"] for d in sidecar[:-1])]
        assert all(one["end"] == other["start"] for one, other in pairwise(sidecar))
        last = sidecar[-1]
        assert words.decode(dataset.tokens[last["start"] : last["end"] - 1].tolist()) == sources[-1]["text"]
        assert manifest.outcome.facts[f"{split}_tokens"] == len(dataset.tokens) == last["end"]
        assert manifest.outcome.facts[f"{split}_documents"] == len(dataset)
        assert manifest.output(f"{split}/tokens.bin").rows == len(dataset.tokens)
    named = {record.name for record in manifest.outcome.files}
    assert set((root / "tokens").files()) == named | {"_manifest.json"}


def test_rows_that_cannot_be_encoded_are_counted(tmp_path: Path) -> None:
    rows = [row("good text"), row("", url="http://empty"), row("homeless", split=None), row("x", split="dev")]
    root, manifest = run(tmp_path, rows)
    assert manifest.outcome.reasons == {"empty": 1, "no_split": 2}
    assert (manifest.outcome.seen, manifest.outcome.kept) == (4, 1)
    assert [r["reason"] for r in rejected_of(root, manifest)] == ["empty", "no_split", "no_split"]
    assert len(IndexedDataset(tmp_path / "tokens/train/tokens")) == 1
    for split in ("valid", "test"):
        assert len(IndexedDataset(tmp_path / "tokens" / split / "tokens")) == 0
    # The end token is appended only if asked.
    assert TokenizeSettings.model_validate({"append_eod": False}) == TokenizeSettings(append_end_of_text=False)
    _, manifest = run(tmp_path, [row("Hello world")], append_end_of_text=False)
    expected = load_tokenizer(tmp_path / "tokenizer").encode("Hello world").ids
    assert IndexedDataset(tmp_path / "tokens/train/tokens").tokens.tolist() == expected
    assert manifest.outcome.facts["train_tokens"] == len(expected)


def test_bytes_do_not_depend_on_the_engine(tmp_path: Path, news: list[dict[str, Any]]) -> None:
    """Not even the manifest: the engine changes no byte, so it is no parameter of the work."""
    runs = {engine: run(tmp_path / engine, news, engine=engine) for engine in ("auto", "gigatoken", "tokenizers")}
    contents = {engine: content_of(*done) for engine, done in runs.items()}
    assert contents["auto"] == contents["gigatoken"] == contents["tokenizers"]
    assert len({manifest.fingerprint for _, manifest in runs.values()}) == 1
    assert runs["auto"][1] == runs["tokenizers"][1]


def one_token_off(encode: Encoder, at: str) -> Encoder:
    def encoder(texts: Texts) -> Encoded:
        encoded = encode(texts)
        ids = encoded.ids.copy()
        ends = np.cumsum(encoded.lengths)
        for number in range(len(texts)):
            if at.encode() in texts[number]:
                ids[ends[number] - 1] += 1
        return Encoded(ids, encoded.lengths)

    return encoder


def test_an_engine_with_wrong_ids_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row(f"text {number} of one kind") for number in range(90)] + [row("a rare word")]
    straight = content_of(*run(tmp_path / "straight", rows, per_shard=30))
    wrong = lambda words: one_token_off(tokenizer_files.PlainEncoder(words), "rare")  # noqa: E731
    monkeypatch.setitem(tokenizer_files.ENGINES, "gigatoken", wrong)
    tokenizer_files._cached.cache_clear()
    root, manifest = run(tmp_path / "wrong", rows, per_shard=30)
    assert content_of(root, manifest) == straight
    assert manifest.outcome.facts["engine_mismatches"] == 1
    assert "different tokens for 1 of" in caplog.text
    with pytest.raises(UserError, match=r"different tokens for 1 of .*tokenize\.engine = 'auto'"):
        run(tmp_path / "demanded", rows, per_shard=30, engine="gigatoken")
    tokenizer_files._cached.cache_clear()


def test_a_missing_engine_is_replaced_or_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = content_of(*run(tmp_path / "straight", [row("a text")]))
    monkeypatch.setitem(sys.modules, "gigatoken", None)  # what import makes of a package that is not installed
    tokenizer_files._cached.cache_clear()
    assert content_of(*run(tmp_path / "auto", [row("a text")])) == straight
    with pytest.raises(UserError, match="pip install gigatoken"):
        run(tmp_path / "demanded", [row("a text")], engine="gigatoken")
    tokenizer_files._cached.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("shard_tokens", [1, 1000, 10**9])
def test_many_files_contain_the_stream_of_one(tmp_path: Path, news: list[dict[str, Any]], shard_tokens: int) -> None:
    news = news[:60]
    run(tmp_path / "one", news)
    root, manifest = run(tmp_path / "many", news, per_shard=20, shard_tokens=shard_tokens)
    other = run(tmp_path / "other", news, per_shard=100, shard_tokens=shard_tokens)
    assert content_of(root, manifest) == content_of(*other)
    for split in SPLITS:
        one = IndexedDataset(tmp_path / "one/tokens" / split / "tokens")
        many = open_tokens(tmp_path / "many/tokens" / split / "tokens")
        assert many.tokens[:].tolist() == one.tokens.tolist() and many.lengths.tolist() == one.lengths.tolist()
        names = [record.name for record in manifest.outputs if record.name.startswith(f"{split}/documents")]
        table = [found for name in names for found in read_rows(root / "tokens", name)]
        assert table == list(read_rows(Folder(tmp_path / "one/tokens"), f"{split}/documents.parquet"))
        bins = [record for record in manifest.outputs if record.name.startswith(split) and record.name[-4:] == ".bin"]
        # A file ends with the document that crosses the bound.
        longest = int(one.lengths.max())
        assert all(record.rows and record.rows < shard_tokens + longest for record in bins)
        if shard_tokens == 1:
            assert len(bins) == len(one)
    assert manifest.outcome.facts["train_tokens"] == len(IndexedDataset(tmp_path / "one/tokens/train/tokens").tokens)


def test_text_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    """Parquet of others can hold anything: pyarrow checks no string that it reads."""
    root = Folder(tmp_path)
    with Inline(workers=1) as runner:
        words = tokenizer(root, documents_of(root, [row("x")]), TokenizerSettings(vocab_size=300), runner)
    raw = [b"good", b"lone \xed\xa0\x80 surrogate", b"cut \xe6\xb1", b"also good"]
    table = pq.read_table(root.path("clean/part-00000.parquet")).take([0] * len(raw))
    offsets = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(raw))]
    text = pa.Array.from_buffers(pa.large_string(), len(raw), buffers)
    place = table.schema.get_field_index("text")
    pq.write_table(table.set_column(place, table.schema.field(place), text), root.path("clean/part-00000.parquet"))
    documents = read_manifest(root / "clean")
    assert documents is not None
    with Inline(workers=1) as runner:
        manifest = tokenize(root, documents, words, TokenizeSettings(), runner)
    assert manifest.outcome.reasons == {"not_utf8": 2}
    assert manifest.outcome.facts["train_documents"] == 2
    assert "\ufffd" in rejected_of(root, manifest)[0]["text"]


@pytest.mark.parametrize("kind", ["json", "sentencepiece"])
def test_documents_begin_with_the_template_of_the_tokenizer(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "t"
    if kind == "json":
        folder_of(source, POST_PROCESSORS["bos"][0])
    else:
        pytest.importorskip("sentencepiece")
        source.mkdir()
        model = train_sentencepiece(iter(CORPUS * 20), 330, "sentencepiece_bpe")
        (source / "tokenizer.model").write_bytes(model)
        (source / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    root, rows = Folder(tmp_path / "out"), [row(text) for text in [*CORPUS, "ab <s>"]]
    documents = documents_of(root, rows)

    def made(runner: Runner, **settings: object) -> list[list[int]]:
        settings = TokenizeSettings.model_validate(settings)
        tokens = tokenize(root, documents, words, settings, runner)
        assert tokenize(root, documents, words, settings, runner) == tokens
        found = open_tokens(tmp_path / "out/tokens/train/tokens")
        return [found[number].tolist() for number in range(len(found))]

    with Inline(workers=1) as runner:
        words = tokenizer(root, None, TokenizerSettings(name="folder", folder=str(source)), runner)
        opened = load_tokenizer(tmp_path / "out/tokenizer")
        end, prompts = end_of_text_id(opened), encode_prompts(opened, [one["text"] for one in rows])
        assert prefix_ids(opened) == [opened.token_to_id("<s>")]
        assert made(runner) == [[*ids, end] for ids in prompts]
        assert made(runner, prepend_bos=False) == [[*ids[1:], end] for ids in prompts]


@pytest.mark.parametrize("kind", ["sentencepiece_unigram", "sentencepiece_bpe", "wordpiece", "unigram json"])
def test_tokens_of_another_kind_of_tokenizer(tmp_path: Path, kind: str) -> None:
    """Trained on the corpus or given: the step's ids are those of the tokenizer that it leaves beside them."""
    settings: dict[str, Any] = {"algorithm": kind, "vocab_size": 400}
    if kind == "wordpiece":
        settings = {"name": "folder", "folder": str(wordpiece_folder(tmp_path / "w", WORDPIECE))}
    elif kind == "unigram json":
        settings = {"name": "folder", "folder": str(unigram_json(tmp_path / "u") / "tokenizer.json")}
    else:
        pytest.importorskip("sentencepiece")
    root = Folder(tmp_path / "out")
    rows = [row(text * 3) for text in [*CORPUS, "ab 中文 </s> [SEP]", "a"] * 10]
    documents = documents_of(root, rows)
    with Inline(workers=1) as runner:
        made = tokenizer(root, documents, TokenizerSettings.model_validate(settings), runner)
        tokens = tokenize(root, documents, made, TokenizeSettings(), runner)
        assert tokenizer(root, documents, TokenizerSettings.model_validate(settings), runner) == made
    opened = load_tokenizer(tmp_path / "out/tokenizer")
    assert made.outcome.facts["vocab_size"] == vocab_size(opened)
    end = end_of_text_id(opened)
    found = open_tokens(tmp_path / "out/tokens/train/tokens")
    expected = [[*ids, end] for ids in encode_ordinary(opened, [one["text"] for one in rows])]
    assert [found[number].tolist() for number in range(len(found))] == expected
    assert tokens.outcome.facts["train_documents"] == len(rows) and "engine_mismatches" not in tokens.outcome.facts
