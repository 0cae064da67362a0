"""Token files: the ids of `tokenizers` one by one, the same bytes however the work is cut or killed."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gpt2train.data.indexed import IndexedDataset
from gpt2train.data.tokenizer import END_OF_TEXT, end_of_text_id, load_tokenizer
from tasks.runner import Runner, Stage
from tasks.shards import read_rows
from tasks.steps import Manifest
from tasks.storage import Folder
from tasks.tokenize import TokenizeSettings, tokenize
from tasks.tokenizer import TokenizerSettings, tokenizer
from tests.tasks.corpus import Inline, content_of, documents_of, rejected_of, row, texts_of

ROOT = Path(__file__).parents[2]
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
    place: Path, rows: list[dict[str, Any]], bpe: Path, per_shard: int = 100, workers: int = 1, **settings: bool
) -> tuple[Folder, Manifest]:
    with (Runner if workers > 1 else Inline)(workers=workers) as runner:
        return finish(place, rows, bpe, per_shard, runner, **settings)


def finish(
    place: Path, rows: list[dict[str, Any]], bpe: Path, per_shard: int, runner: Runner, **settings: bool
) -> tuple[Folder, Manifest]:
    root = Folder(place)
    documents = documents_of(root, rows, per_shard)
    words = tokenizer(root, None, TokenizerSettings(name="gpt2", folder=str(bpe)), runner)
    return root, tokenize(root, documents, words, TokenizeSettings(**settings), runner)


@pytest.fixture(scope="module")
def bpe(real_data: Path) -> Path:
    return real_data / "bpe"


@pytest.fixture(scope="module")
def news(real_data: Path) -> list[dict[str, Any]]:
    return mixed(texts_of(real_data / "text/reuters_dev.jsonl.gz", 250))


def test_hard_texts_equal_the_library_one_by_one(tmp_path: Path, bpe: Path) -> None:
    rows = mixed(HARD)
    _, manifest = run(tmp_path, rows, bpe, per_shard=4)
    words = load_tokenizer(bpe)
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


def test_every_token_leads_back_to_its_page(tmp_path: Path, bpe: Path, news: list[dict[str, Any]]) -> None:
    root, manifest = run(tmp_path, news, bpe)
    words = load_tokenizer(bpe)
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


def test_bytes_do_not_depend_on_shards_and_workers(tmp_path: Path, bpe: Path, news: list[dict[str, Any]]) -> None:
    one = run(tmp_path / "one", news, bpe, per_shard=100, workers=1)
    other = run(tmp_path / "other", news, bpe, per_shard=33, workers=2)
    assert content_of(*one) == content_of(*other)


@pytest.mark.parametrize("keep", [0, -2])
def test_torn_files_without_a_commit_are_not_trusted(
    tmp_path: Path, bpe: Path, news: list[dict[str, Any]], keep: int
) -> None:
    straight = content_of(*run(tmp_path / "straight", news, bpe))
    torn = tmp_path / "torn/tokens/encoded/part-00000.train.bin"
    torn.parent.mkdir(parents=True)
    whole = (tmp_path / "straight/tokens/train/tokens.bin").read_bytes()
    torn.write_bytes(whole[:keep])
    (tmp_path / "torn/tokens/train").mkdir()
    (tmp_path / "torn/tokens/train/tokens.bin").write_bytes(b"half a file")
    assert content_of(*run(tmp_path / "torn", news, bpe)) == straight


def test_kill_in_the_middle_then_the_same_again(tmp_path: Path, bpe: Path, news: list[dict[str, Any]]) -> None:
    """kill -9 of the whole process once a batch is committed; the next run repeats the others only."""
    straight = content_of(*run(tmp_path / "straight", news, bpe, per_shard=10))
    command = "import sys; from tests.tasks.test_tokenize import again; again(*sys.argv[1:])"
    (tmp_path / "news.json").write_text(json.dumps(news))
    with subprocess.Popen([sys.executable, "-c", command, str(tmp_path), str(bpe)], cwd=ROOT) as process:
        batches = tmp_path / "killed/tokens/_batches"
        deadline = time.monotonic() + 60
        while not list(batches.glob("part-*.json")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
    committed = list(batches.glob("part-*.json"))
    assert committed and not (tmp_path / "killed/tokens/_manifest.json").exists()
    with Witness(workers=1) as runner:
        assert content_of(*finish(tmp_path / "killed", news, bpe, 10, runner)) == straight
    assert len(committed) + len(runner.done) >= 25 and "part-00000" not in runner.done


class Witness(Inline):
    """Notes which batches of the encoding were run."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.done: set[str] = set()

    def dispatch(self, stage: Stage, todo: Any, at_once: int) -> None:
        self.done |= {name for name, _ in todo if stage.name == "part"}
        super().dispatch(stage, todo, at_once)


def again(folder: str, bpe: str) -> None:
    """Run in a process that is going to be killed."""
    with Inline(workers=1) as runner:
        finish(Path(folder) / "killed", json.loads((Path(folder) / "news.json").read_text()), Path(bpe), 10, runner)


def test_rows_that_cannot_be_encoded_are_counted(tmp_path: Path, bpe: Path) -> None:
    rows = [row("good text"), row("", url="http://empty"), row("homeless", split=None), row("x", split="dev")]
    root, manifest = run(tmp_path, rows, bpe)
    assert manifest.outcome.reasons == {"empty": 1, "no_split": 2}
    assert (manifest.outcome.seen, manifest.outcome.kept) == (4, 1)
    assert [r["reason"] for r in rejected_of(root, manifest)] == ["empty", "no_split", "no_split"]
    assert len(IndexedDataset(tmp_path / "tokens/train/tokens")) == 1
    for split in ("valid", "test"):
        assert len(IndexedDataset(tmp_path / "tokens" / split / "tokens")) == 0


def test_nothing_but_what_was_asked_for_is_appended(tmp_path: Path, bpe: Path) -> None:
    _, manifest = run(tmp_path, [row("Hello world")], bpe, append_end_of_text=False)
    assert IndexedDataset(tmp_path / "tokens/train/tokens").tokens.tolist() == [15496, 995]
    assert manifest.outcome.facts["train_tokens"] == 2
