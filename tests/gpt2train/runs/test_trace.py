"""`gpt2train trace`, `data index` and `data contamination`: from samples and texts to documents and pages."""

import json
import re
import shutil
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt2train.cli import app, run_command
from gpt2train.config import CONFIG_FILE, RunConfig, TrainSettings, run_config, to_toml
from gpt2train.data.samples import Samples
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.runs.contamination import measure
from gpt2train.runs.documents import document_steps, look_up
from gpt2train.runs.text_trace import TextTracer, find_source
from gpt2train.runs.trace import trace
from gpt2train.settings import build
from gpt2train.store.manifest import Outcome
from gpt2train.store.output import Folder, Output, read_manifest
from tasks.core.shards import CLEAN, commit_rows, read_rows, write_rows
from tasks.core.step import Step
from tasks.download.ledger import LEDGER
from tasks.download.warc import Page
from tasks.report.step import REPORT, ReportSettings, report
from tasks.sources.index import read_pages
from tasks.tokenize.step import TokenizeSettings, tokenize
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.gpt2train.jobs import make
from tests.gpt2train.runs.indexed_corpus import make_indexed
from tests.tasks.corpus import Inline, documents_of, row
from tests.tasks.warc_pages import write_pages

CONTEXT = 16
ROWS = [
    row(f"Document {number} says: {'word ' * (number % 9 + 3)}{number}.", split=("train", "train", "valid")[number % 3])
    for number in range(40)
]
BATCH, STEPS = 2, 40
TEXTS = [
    f"Chapter {n}. The {'old red fox and the grey wolf '[: n % 9 + 9]}met at gate {n * 7}. Grüße!" for n in range(60)
]
DATED = [row(text, split=("train", "train", "valid")[n % 3]) | {"date": "2020-02-03"} for n, text in enumerate(TEXTS)]


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


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pydivsufsort", reason="needs the extra trace")
    return make_indexed(tmp_path_factory.mktemp("traced"), DATED)


@pytest.fixture(scope="module")
def run(indexed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two corpora, of which the other one has the same documents twice as often, and that has begun."""
    place = tmp_path_factory.mktemp("run")
    shutil.copytree(indexed, place / "other")
    shutil.copytree(indexed / "tokenizer", place / "tokenizer")
    weights = {indexed: 1, place / "other": 2}
    corpora = [{"prefix": f"{folder}/tokens/train/tokens", "weight": weight} for folder, weight in weights.items()]
    settings = {"model": {"context": CONTEXT}, "seed": 7, "vocab": 300, "output": str(place), "schedule": {"warmup": 2}}
    ramp = {"start": BATCH, "increment": BATCH, "samples": 24}
    batch = {"batch": {"global_batch": 2 * BATCH, "micro_batch": BATCH, "ramp_up": ramp}}
    config = build(RunConfig, settings, {"data": {"train": corpora}}, batch)
    (place / CONFIG_FILE).write_text(to_toml(config))
    rows = [{"step": step, "tokens": samples * CONTEXT} for step, samples in enumerate(sample_counts(), 1)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return place


def sample_counts() -> list[int]:
    """Samples after each step: the batch grows from 2 to 4 after 24 samples."""
    return np.cumsum([BATCH] * 12 + [2 * BATCH] * (STEPS - 12)).tolist()


def test_a_text_leads_to_its_documents(indexed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracer = TextTracer(find_source(indexed))
    chosen = DATED[4]
    text = f"zzzz {chosen['text'][3:40]} qqq {chosen['text']}"
    found = tracer.trace_text(text)
    words = load_tokenizer(indexed / "tokenizer")
    ids = words.encode(text).ids
    assert found.tokens == len(ids) and found.covered <= found.tokens
    whole = found.spans[-1]
    assert whole.characters is not None and text[slice(*whole.characters)] == whole.text
    assert whole.text.endswith(chosen["text"][2:]) and whole.count == 1
    assert (whole.places[0].doc_id, whole.places[0].url) == (chosen["id"], chosen["url"])
    details = tracer.details(0, whole.places[0].position, whole.end - whole.start)
    assert details.text == whole.text and details.after.startswith("<|endoftext|>") is True
    record = details.record
    assert record is not None and (record.text, record.date) == (chosen["text"], "2020-02-03")
    assert [step.step for step in record.steps] == ["clean", "shuffled"]
    assert record.steps[0].values["tokens"] == chosen["tokens"] and record.complete
    assert details.reading is None  # no run

    assert run_command(app, ["trace", "--text", text, "--data", str(indexed)]) == 0
    shown = capsys.readouterr().out
    assert chosen["url"] in shown and f"tokens {chosen['tokens']}" in shown and "date 2020-02-03" in shown
    assert run_command(app, ["trace", "--text", "nothing like it", "--data", str(indexed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"] == []


def test_the_steps_are_those_that_read_the_span(indexed: Path, run: Path) -> None:
    """Compared with the samples of the training's own loader, over a mixture and a growing batch."""
    assert run_command(app, ["data", "index", str(run)]) == 0
    tracer = TextTracer(find_source(run))
    assert [index.tokens for index in tracer.indexes] == [tracer.indexes[0].tokens] * 2
    assert tracer.source.config is not None
    data = packed_data(tracer.source.config, "train")
    counts = sample_counts()
    batch = data.batch(range(counts[-1]))
    samples = np.concatenate([batch.tokens.numpy(), batch.targets.numpy()[:, -1:]], axis=1)
    words = load_tokenizer(indexed / "tokenizer")
    for chosen in [one for one in DATED if one["split"] == "train"][:12]:
        found = tracer.trace_text(chosen["text"], places=100)
        span = max(found.spans, key=lambda one: one.end - one.start)
        assert span.counts == (1, 1) and [place.corpus for place in span.places] == [0, 1]
        read = set[int]()
        for place in span.places:
            details = tracer.details(place.corpus, place.position, span.end - span.start)
            assert details.reading is not None
            assert details.reading.count == len(details.reading.steps)
            read |= set(details.reading.steps)
            first = np.searchsorted(counts, details.reading.samples, side="right").tolist()
            assert sorted(set(first)) == list(details.reading.steps)
        marker = words.encode(chosen["text"][8:40]).ids[2:10]  # lies within the span
        windows = np.lib.stride_tricks.sliding_window_view(samples, len(marker), axis=1)
        holding = np.flatnonzero((windows == marker).all(axis=2).any(axis=1))
        unique = sum(" ".join(one["text"].split()).count(words.decode(marker)) for one in DATED) == 1
        if unique:
            assert {int(np.searchsorted(counts, sample, side="right")) for sample in holding} <= read
    assert tracer.trace_text("zz").spans == ()


def test_samples_of_a_span_equal_a_scan(run: Path) -> None:
    """Each token of the corpus, each epoch: the samples that hold it."""
    source = find_source(run)
    assert source.config is not None
    corpus = packed_data(source.config, "train").corpora[0]
    until = corpus.per_epoch * 2 + 3
    offsets, _ = corpus.locate(range(until))
    bounds = TextTracer(source).indexes[0].bounds
    for document in range(0, len(bounds) - 1, 5):
        start, end = int(bounds[document]) + 2, min(int(bounds[document]) + 9, int(bounds[document + 1]))
        expected = np.flatnonzero(((offsets >= start) & (offsets < end)).any(axis=1))
        assert corpus.containing(start, end, until).tolist() == expected.tolist()


def test_token_files_without_a_table_of_documents(indexed: Path, tmp_path: Path) -> None:
    """Made elsewhere, or by an older release: spans are found, what is not known is None."""
    for file in (indexed / "tokens" / "train").glob("tokens*"):
        shutil.copy(file, tmp_path / file.name.replace("tokens", "mine"))
    shutil.copytree(indexed / "tokenizer", tmp_path / "tokenizer")
    prefix = str(tmp_path / "mine")
    with pytest.raises(UserError, match="no index of these tokens; build it with gpt2train data index"):
        TextTracer(find_source(prefix), tmp_path / "token_index")
    # The same tokens, so that the index of the data steps serves as well.
    tracer = TextTracer(find_source(prefix), indexed / "token_index")
    [span] = tracer.trace_text(TEXTS[0][5:], min_tokens=12).spans
    place = span.places[0]
    assert (place.doc_id, place.url) == (None, None)
    details = tracer.details(place.corpus, place.position, 12)
    assert details.record is None and details.reading is None and details.text


def test_one_part_of_token_files_is_indexed(indexed: Path, tmp_path: Path) -> None:
    prefix = str(indexed / "tokens" / "train" / "tokens")
    weights = ["--weights", "1,1,0", "--output", str(tmp_path)]
    assert run_command(app, ["data", "index", prefix, *weights]) == 0
    assert run_command(app, ["data", "index", prefix, *weights, "--split", "valid"]) == 0
    parts = [TextTracer(find_source(prefix, part, "1,1,0"), tmp_path) for part in ("train", "valid")]
    texts = [one["text"] for one in DATED if one["split"] == "train"]
    found = [[part.trace_text(text) for text in texts] for part in parts]
    hits = [[any(span.end - span.start == one.tokens for span in one.spans) for one in part] for part in found]
    assert all(one != other for one, other in zip(*hits, strict=True)) and sum(hits[0]) == len(texts) // 2


def test_documents_on_an_object_store(indexed: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(f"{indexed}/", "/corpus/", recursive=True)
    try:
        outputs = [Output(Folder(place)) for place in ("memory://corpus", indexed)]
        assert [[step.name for step in document_steps(one)] for one in outputs] == [["clean", "shuffled"]] * 2
        chosen = DATED[1]
        remote, local = (look_up(one, chosen["id"], chosen["url"]) for one in outputs)
        assert remote == local and remote.text == chosen["text"]
        assert not look_up(outputs[0], chosen["id"], None, seconds=0).complete
        tracer = TextTracer(find_source(indexed), documents="memory://corpus")
        place = tracer.trace_text(chosen["text"]).spans[0].places[0]
        assert tracer.details(0, place.position, 8).record == remote
    finally:
        store.rm("/corpus", recursive=True)


def assert_report_has(indexed: Path, names: list[str]) -> None:
    """The report of the tokens has a table of the sets, and that of other tokens none."""
    folder = Folder(indexed)
    manifest = read_manifest(folder / "tokens")
    assert manifest is not None
    with Inline(workers=1) as runner:
        made = report(folder, [manifest], ReportSettings(), runner=runner)
        page = (folder / made.folder).read_bytes(REPORT).decode()
        assert "Evaluation sets in the training tokens" in page
        assert all(f"<code>{name}</code>" in page for name in names)
        other = report(folder, [manifest.model_copy(update={"content": "0" * 64})], ReportSettings(), runner=runner)
        assert "Evaluation sets in" not in (folder / other.folder).read_bytes(REPORT).decode()


def test_contamination_of_evaluation_sets(indexed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of any shape; 30 of 100 repeat a training document in one of their texts."""
    train = [one["text"] for one in DATED if one["split"] == "train"]
    lines: list[Any] = [{"question": f"Row {n} xyz?", "choices": ["Quartz jumps.", f"Vex {n}!"]} for n in range(70)]
    lines += [{"id": n, "choices": ["No.", f"Lo: {text}"]} for n, text in enumerate(train[:30])]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "lines.txt").write_text(f"{train[3]}\n\nQuartz jumps over it.\n")
    tracer = TextTracer(find_source(indexed))
    found = measure(tracer, tmp_path / "mixed.jsonl")
    assert (found.rows, found.contaminated) == (100, 30)
    assert all(example.row > 70 and example.url for example in found.examples)
    assert measure(tracer, tmp_path / "mixed.jsonl", key="question").contaminated == 0
    pq.write_table(pa.Table.from_pylist(lines), tmp_path / "mixed.pq")
    assert measure(tracer, tmp_path / "mixed.pq").contaminated == 30
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "mixed.pq").read_bytes()[:-9])
    with pytest.raises(UserError, match=r"cut\.parquet is not a valid Parquet file \(.*\); copy it again"):
        measure(tracer, tmp_path / "cut.parquet")
    assert run_command(app, ["data", "contamination", str(tmp_path / "mixed.jsonl"), str(tmp_path / "lines.txt"),
                             "--data", str(indexed)]) == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert "| mixed.jsonl | 100 | 30 | 30.0 % |" in shown and "| lines.txt | 2 | 1 | 50.0 % |" in shown
    sets = json.loads((indexed / "contamination.json").read_text())
    assert_report_has(indexed, [one["name"] for one in sets])
    assert [(one["name"], one["contaminated"]) for one in sets] == [("lines.txt", 1), ("mixed.jsonl", 30)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["trace", "--data", "ROOT"], "give --sample N or --text TEXT"),
        (["trace", "--text", "x", "--sample", "1", "--data", "ROOT"], "give --sample N or --text TEXT"),
        (["trace", "--text", "x"], "give --run"),
        (["trace", "--text", "x", "--data", "ROOT", "--seed", "1"], "belong to --sample"),
        (["trace", "--text", "x", "--data", "ROOT", "--split", "valid"], "gpt2train data index"),
        (["trace", "--text", "x", "--data", "ROOT/none"], "is no run folder"),
        (["data", "index", "s3://bucket/out"], "local disk"),
        (["data", "index", "ROOT/clean"], "is no run folder"),
        (["data", "contamination", "ROOT", "--data", "ROOT"], "is a folder"),
        (["data", "contamination", "ROOT/none.jsonl", "--data", "ROOT"], "there is no file"),
    ],
)
def test_mistakes_about_an_index_are_one_line(
    indexed: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, [flag.replace("ROOT", str(indexed)) for flag in flags]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
