"""`gpt2train trace`: from a sample to the documents, rows and pages of its tokens."""

import json
import re
import shutil
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gpt2train.cli import app, run_command
from gpt2train.config import CONFIG_FILE, RunConfig, TrainSettings, run_config, to_toml
from gpt2train.data.samples import Samples
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.runs.trace import trace
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, Outcome
from tasks.core.shards import CLEAN, commit_rows, read_rows, write_rows
from tasks.core.step import Step
from tasks.download.ledger import LEDGER
from tasks.download.warc import Page
from tasks.sources.index import read_pages
from tasks.tokenize.step import TokenizeSettings, tokenize
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.gpt2train.jobs import make
from tests.tasks.corpus import Inline, documents_of, row
from tests.tasks.warc_pages import write_pages

CONTEXT = 16
ROWS = [
    row(f"Document {number} says: {'word ' * (number % 9 + 3)}{number}.", split=("train", "train", "valid")[number % 3])
    for number in range(40)
]


@pytest.fixture(scope="module", params=[1 << 30, 100], ids=["one file", "many files"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("traced")
    folder = Folder(place)
    with Inline(workers=1) as runner:
        documents = documents_of(folder, ROWS, per_shard=15)
        words = tokenizer(folder, documents, TokenizerSettings(vocab_size=300), runner)
        tokenize(folder, documents, words, TokenizeSettings(shard_tokens=request.param), runner)
    step = Step(folder, "extract", version=1, parameters={}, inputs={}, folder="documents")
    backwards = [{key: found.get(key) for key in CLEAN.names} for found in reversed(ROWS)]
    step.commit(commit_rows(step.folder, "part-00000.parquet", backwards, [], CLEAN))
    _write_pages(folder)
    return place


def _write_pages(root: Folder) -> None:
    step = Step(root, "download", version=1, parameters={}, inputs={}, folder="pages")
    outcomes = []
    for number in range(2):
        rows = ROWS[number * 20 : number * 20 + 20]
        bodies = {one["url"]: one["text"].encode() for one in rows}
        pages = [
            Page(url, url, "text/html", "utf-8", body, "2020-01-01T00:00:00Z", sha256(body).hexdigest(), "list")
            for url, body in bodies.items()
        ]
        with step.folder.writing(f"part-{number}.warc.gz") as draft:
            write_pages(draft, pages)
        fetched = {"status": "ok", "reason": "", "retryable": False}
        ledger = [fetched | {"url": url, "bytes": len(body)} for url, body in bodies.items()]
        table = write_rows(step.folder, f"ledger/part-{number}.parquet", ledger, LEDGER)
        outcomes.append(Outcome(outputs=(step.folder.record(f"part-{number}.warc.gz"),), audit=(table,)))
    step.commit(Outcome.total(outcomes))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_every_sample_leads_to_its_documents(root: Path, split: Any) -> None:
    samples = Samples(root / "tokens" / split / "tokens", CONTEXT, 300, 7 if split == "train" else None)
    words = load_tokenizer(root / "tokenizer")
    texts = {found["id"]: found["text"] for found in ROWS}
    urls = {found["id"]: found["url"] for found in ROWS}
    several = 0
    for sample in range(samples.per_epoch * (2 if split == "train" else 1)):
        found = trace(root, sample, split=split, context=CONTEXT, seed=7)
        tokens = samples.read([sample])[0][0].tolist()
        assert "".join(str(part.text) for part in found.parts) == words.decode(tokens, skip_special_tokens=False)
        several += len(found.parts) > 1
        for part in found.parts:
            assert part.url == urls[part.doc_id]
            ids = [*words.encode(texts[part.doc_id]).ids, words.token_to_id("<|endoftext|>")]
            assert part.tokens == len(ids)
            assert words.decode(ids[part.start : part.end], skip_special_tokens=False) == part.text
    assert several


def test_the_reported_rows_and_offsets_hold_the_document(root: Path) -> None:
    part = trace(root, 3, context=CONTEXT, seed=7).parts[0]
    files = dict(place.split(" row ") for place in part.found if "; " not in place)
    assert len(files) == 2  # clean and documents: the others are not there
    for name, number in files.items():
        folder, _, shard = name.partition("/")
        assert list(read_rows(Folder(root / folder), shard))[int(number)]["id"] == part.doc_id
    place = re.fullmatch(r"pages/(.*) record (\d+), byte ([\d,]+), fetched 2020.*; .* row (\d+)", part.found[-1])
    assert place is not None
    page = list(read_pages(Folder(root / "pages"), place[1]))[int(place[4])]
    assert page.url == part.url and int(place[2]) == int(place[4]) + 1
    member = (root / "pages" / place[1]).read_bytes()[int(place[3].replace(",", "")) :]
    assert page.body in zlib.decompressobj(31).decompress(member)


def write_settings(root: Path, run: Path) -> None:
    settings = TrainSettings.model_validate({"model": {"context": CONTEXT}, "seed": 7})
    prefix = f"{root}/tokens/train/tokens"
    config = run_config(settings, train=prefix, valid=None, vocab=300, tokenizer_hash=None, output=str(run))
    (run / CONFIG_FILE).write_text(to_toml(config))


def test_the_settings_come_from_the_run(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_settings(root, tmp_path)
    have_read(tmp_path, 6)
    assert run_command(app, ["trace", "--run", str(tmp_path), "--sample", "5", "--json"]) == 0
    by_run = json.loads(capsys.readouterr().out)
    flags = ["--data", str(root), "--seq-length", str(CONTEXT), "--seed", "7", "--json"]
    assert run_command(app, ["trace", "--sample", "5", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == by_run
    assert run_command(app, ["trace", "--run", str(tmp_path), "--sample", "5", "--excerpt", "10"]) == 0
    shown = capsys.readouterr().out
    assert by_run["parts"][0]["url"] in shown and "seed 7" in shown


def have_read(run: Path, samples: int) -> None:
    """Metrics of a run that has trained on this many samples, two a step."""
    rows = [{"step": step, "tokens": 2 * step * CONTEXT} for step in range(1, samples // 2 + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_sample_that_was_not_read_is_refused(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_settings(root, tmp_path)
    for samples, sample, code in ((0, 0, 2), (6, 5, 0), (6, 6, 2), (6, 10**9, 2)):
        have_read(tmp_path, samples)
        assert run_command(app, ["trace", "--run", str(tmp_path), "--sample", str(sample)]) == code
        error = capsys.readouterr().err
        assert (f"has read {samples} samples so far" in error) == (code == 2) and error.count("\n") == (code == 2)
    valid = ["trace", "--run", str(tmp_path), "--sample", "0", "--split", "valid"]
    have_read(tmp_path, 0)
    assert run_command(app, valid) == 0  # the validation set is read whole


def test_the_corpus_of_a_sample_is_named(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "other")
    settings = {"model": {"context": CONTEXT}, "seed": 7, "vocab": 300, "output": str(tmp_path)}
    weights = {root: 2, tmp_path / "other": 1}
    corpora = [{"prefix": f"{folder}/tokens/train/tokens", "weight": weight} for folder, weight in weights.items()]
    config = build(RunConfig, settings, {"data": {"train": corpora}})
    (tmp_path / CONFIG_FILE).write_text(to_toml(config))
    data = packed_data(config, "train")
    have_read(tmp_path, 12)
    for sample in range(12):
        found = trace(None, sample, run=tmp_path)
        text = "".join(str(part.text) for part in found.parts)
        tokens = data.batch([sample])
        ids = [*tokens.tokens[0].tolist(), int(tokens.targets[0, -1])]
        assert text == load_tokenizer(root / "tokenizer").decode(ids, skip_special_tokens=False)
        wheres = {place.split("/")[0] for part in found.parts for place in part.found}
        assert found.sample == sample and wheres


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--sample", "1"], "give --data"),
        (["--data", "ROOT", "--sample", "-1"], "counted from 0"),
        (["--data", "ROOT", "--sample", "1", "--seed", "-5"], "--seed"),
        (["--data", "/" + "x" * 300, "--sample", "1"], "/" + "x" * 50),
        (["--data", "ROOT/none", "--sample", "1"], "tokens.idx is missing"),
        (["--data", "ROOT", "--sample", "9999", "--split", "valid", "--seq-length", "16"], "valid has the samples 0"),
        (["--data", "ROOT", "--sample", "1", "--split", "test"], "fewer than one sample"),
        (["--run", "ROOT/none", "--sample", "1"], "none/config.toml"),
    ],
)
def test_mistakes_are_one_line(root: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["trace", *(flag.replace("ROOT", str(root)) for flag in flags)]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("prefix", ["tokens", "made/elsewhere/train"])
def test_tokens_of_no_data_flow_have_no_documents(prefix: str, tmp_path: Path) -> None:
    config = make(tmp_path, tmp_path / "run", data={"train": prefix})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(to_toml(config))
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1, "tokens": 1024}\n')
    with pytest.raises(UserError, match=f"^the tokens {prefix} of .*run are not those of a data flow"):
        trace(None, 1, run=tmp_path / "run")
